"""Checks of chapter 06: who owns what, when a gradient may go, the stage-1 step, which stage fits, one norm."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.checks.zero_ranks import STEPS, clipped, released, stepped
from course_lib.grading.compare import difference
from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check
from simulator.inputs.plan import Plan
from simulator.predict.collective_traffic import sent_bytes
from simulator.predict.memory import model_states

SECONDS = 20  # a check's run on ranks is over in two; this ends what hangs


@check
def check_06_1(report: Report, pieces: Callable[[list[int], int], list[list[tuple[int, int, int]]]]) -> None:
    """Cutting a buffer of many tensors."""
    generator = random.Random(6)
    cases = [([12, 5, 7], 4), ([10, 3, 1, 9], 4), ([30, 1, 2], 3), ([3, 2], 4), ([9, 2, 2], 2)]
    cases.append(([generator.randint(1, 40) for _ in range(12)], 5))
    for sizes, ranks in cases:
        report.case(f"{sum(sizes)} elements in {len(sizes)} tensors, {ranks} ranks")
        _check_pieces(report, pieces(list(sizes), ranks), sizes, ranks)


def _check_pieces(report: Report, got: Any, sizes: Sequence[int], ranks: int) -> None:
    if not isinstance(got, list | tuple) or len(got) != ranks:
        hint = "a `return` is missing?" if got is None else "a rank that owns nothing has an empty list"
        report.fail(f"the answer is not a list of {ranks} lists", hint)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    owners: dict[int, list[int]] = {}
    for rank, own in enumerate(got):
        for index, start, stop in own:
            if not 0 <= start < stop <= sizes[index]:
                hint = (
                    "leave out what is empty, and count from the beginning of the tensor, not of the buffer"
                )
                report.fail(f"rank {rank} owns elements {start} to {stop} of tensor {index}", hint)
            for element in range(starts[index] + start, starts[index] + stop):
                owners.setdefault(element, []).append(rank)
    missing, twice = (
        sum(sizes) - len(owners),
        next((e for e, ranks_of in owners.items() if len(ranks_of) > 1), None),
    )
    if missing:
        hint = "the length of a part was rounded down: the remainder belongs to nobody"
        report.fail(f"{missing} of {sum(sizes)} elements have no owner", hint)
    if twice is not None:
        report.fail(
            f"element {twice} of the buffer belongs to ranks {owners[twice]}", "`stop` is not included"
        )
    report.ok("every element has one owner")
    part = -(-sum(sizes) // ranks)
    held = [sum(stop - start for _, start, stop in own) for own in got]
    want = [max(0, min(part, sum(sizes) - rank * part)) for rank in range(ranks)]
    hint = (
        "all parts are equally long, and what is missing is missing at the end: rank r begins at r times that"
    )
    if max(held) > part:
        hint = "cut the buffer, not each tensor: remainders of single tensors add up"
    if held != want:
        report.fail(f"the ranks own {held} elements, expected {want}", hint)
    report.true(
        all(ranks_of == [element // part] for element, ranks_of in owners.items()),
        f"parts of {part}, {part * ranks - sum(sizes)} of it padding",
        "the parts are not contiguous in the buffer",
        "rank r owns elements r * part to (r + 1) * part, so that a collective can deal them out",
    )
    hint = "a piece may be long: name each tensor at most once a rank"
    report.at_most("pieces", sum(map(len, got)), len(sizes) + ranks - 1, likely=hint)


@check
def check_06_2(report: Report, scatter_gradients: Callable[[list[nn.Parameter]], dict]) -> None:
    """Gradients that are gone before the next one comes."""
    for ranks in (2, 3):
        report.case(f"{ranks} ranks")
        results = launch(released, ranks, args=(scatter_gradients,), timeout=SECONDS)
        for step, when in enumerate(("after a backward", "after a second one, added up")):
            for rank, result in enumerate(results):
                for i in range(len(result["sizes"])):
                    _check_shard(report, result, step, i, f"{when}, tensor {i} on rank {rank}", ranks)
            report.ok(f"{when}: every rank has its part of every mean")
        left = max(max(result["left"]) for result in results)
        likely = (
            "set `.grad` to None; a hook on the tensor itself comes too early, autograd stores .grad after it"
        )
        report.at_most("whole gradients left after backward", left, 0, likely=likely)
        limit = sum(sorted(results[0]["sizes"])[-2:])
        likely = (
            "the whole gradient is there at once: reduce each as soon as it is complete, and let go of it"
        )
        peak = max(result["peak"] for result in results)
        report.at_most("bytes of gradients at once", peak, limit, likely=likely)
        limit = 2 * sent_bytes("reduce-scatter", sum(results[0]["padded"]), ranks)
        likely = "an all-reduce sends everyone everything: a rank needs its own part"
        report.at_most("bytes sent by a rank", int(results[0]["sent"]), int(limit), likely=likely)


def _check_shard(report: Report, result: dict[str, Any], step: int, i: int, name: str, ranks: int) -> None:
    want = sum(parts[i] for parts in result["want"][: step + 1])
    got = result["after"][step][i]
    if got is None:
        report.fail(f"{name} is missing", "fill the dict in the hook, under the parameter itself")
    own = sum(parts[i] for parts in result["own"][: step + 1])
    mistakes = {
        "not divided by the number of ranks?": want * ranks,
        "this rank's own gradient: reduce it": own,
    }
    if step:
        mistakes["only the second backward: add to what is there"] = result["want"][1][i]
        mistakes["the first gradient counts twice: is `.grad` still there at the second backward?"] = (
            want + result["want"][0][i]
        )
    if not isinstance(got, Tensor) or got.shape != want.shape or not torch.allclose(got, want, 1e-4, 1e-5):
        report.close(name, got, want, mistakes=mistakes)


@check
def check_06_3(report: Report, sharded_step: Callable[..., None]) -> None:
    """Reduce-scatter, update, all-gather."""
    for ranks, part in ((2, 5), (3, 4), (4, 3)):
        report.case(f"{ranks} ranks, {ranks * part} weights")
        results = launch(stepped, ranks, args=(sharded_step, part), timeout=SECONDS)
        for rank, result in enumerate(results):
            mistakes = {
                "not divided by the number of ranks? Adam alone would hide it, weight decay does not": "summed",
                "each rank has followed its own gradient: reduce it first": "alone",
                "the other ranks' parts are as before: gather them": "stale",
                "count the steps: Adam's moments begin at 0, and the correction depends on how long ago": "first",
                "nothing has changed: update a view of `weights`, or write the result back": "start",
            }
            if not torch.allclose(result["got"], result["want"], 1e-4, 1e-5):
                slips = {hint: result[key] for hint, key in mistakes.items()}
                report.close(f"weights on rank {rank}", result["got"], result["want"], mistakes=slips)
        report.ok(f"after {STEPS} steps the weights of one device, on every rank")
        likely = "moments of the whole model: a rank updates its own part, and keeps moments of that"
        state = max(result["state"] for result in results)
        report.at_most("numbers kept for Adam", state, 2 * part, likely=likely)
        whole = 4 * ranks * part
        limit = STEPS * (sent_bytes("reduce-scatter", whole, ranks) + sent_bytes("all-gather", whole, ranks))
        likely = "an all-reduce gives everyone the whole mean, of which a rank uses its part: reduce-scatter"
        report.at_most("bytes sent by a rank", int(results[0]["sent"]), int(limit), likely=likely)
        report.at_most("collectives", results[0]["calls"], 2 * STEPS, likely="two are enough for a step")


@check
def check_06_4(
    report: Report,
    largest_model: Callable[[float, int, int], float],
    choose_stage: Callable[[float, float, int], int | None],
) -> None:
    """Which model fits, and by which stage."""
    for memory, ranks in ((80e9, 64), (40e9, 8), (141e9, 2), (16e9, 1000)):
        report.case(f"{ranks:,} ranks with {memory / 1e9:.0f} GB")
        found = []
        for stage in range(4):
            bytes_each = {s: model_states(1, Plan(dp=ranks, zero=s)) for s in range(4)}
            want = memory / bytes_each[stage].total
            without_copy = bytes_each[stage].total - bytes_each[stage].optimizer_states / 3
            mistakes = {"the optimizer keeps the weights in fp32 too: 12 bytes, not 8": memory / without_copy}
            for other in set(range(4)) - {stage}:
                hint = f"that is stage {other}: 1 shards the optimizer's states, 2 the gradients too, 3 the weights"
                mistakes[hint] = memory / bytes_each[other].total
            found.append(_billions(largest_model(memory, stage, ranks)))
            if difference(found[-1], want / 1e9, 1e-6) is not None:
                slips = {hint: value / 1e9 for hint, value in mistakes.items()}
                report.close(f"stage {stage}, billions of parameters", found[-1], want / 1e9, mistakes=slips)
        report.ok(f"{', '.join(f'{value:.4g}' for value in found)} billion parameters by stage")
    cases = [(1e9, 80e9, 64), (7.5e9, 40e9, 64), (10e9, 80e9, 64), (30e9, 80e9, 64), (30e9, 80e9, 4)]
    for parameters, memory, ranks in cases:
        report.case(f"{parameters / 1e9:g} billion parameters, {ranks} ranks with {memory / 1e9:.0f} GB")
        fits = [s for s in range(4) if model_states(parameters, Plan(dp=ranks, zero=s)).total <= memory]
        got = choose_stage(parameters, memory, ranks)
        if not fits:
            report.equal("no stage fits", got, None, likely="say None where even stage 3 is too large")
            continue
        if got not in fits:
            report.fail(
                f"stage {got} does not fit", "compare what the stage needs on one rank with its memory"
            )
        report.ok("it fits")
        volume = {0: 2, 1: 2, 2: 2, 3: 3}
        likely = "stage 3 sends half as much again: take it only where no other stage fits"
        report.at_most("Ψ sent in a step", volume[got], volume[fits[0]], likely=likely)
        likely = "the same bytes for one backward, but stage 2 sends after every backward: take the lowest that fits"
        report.at_most("the stage", got, fits[0], likely=likely)


def _billions(value: Any) -> Any:
    return value / 1e9 if isinstance(value, int | float) else value


@check
def check_06_5(report: Report, clip_shards: Callable[..., Tensor]) -> None:
    """One norm of a gradient of which nobody has the whole."""
    for counts, max_norm in (([[4, 6], [6, 1]], 1.0), ([[5, 2], [5, 5], [3, 0]], 0.5), ([[4], [2]], 100.0)):
        ranks = len(counts)
        report.case(f"{ranks} ranks, norm at most {max_norm:g}")
        results = launch(clipped, ranks, args=(clip_shards, counts, max_norm), timeout=SECONDS)
        hints = {
            "padding": "padding is counted: only the first `count` elements are real",
            "tied": "the tied gradient is counted twice: it stands twice in `whole`",
            "copies": "what every rank holds is summed over the ranks: add it after the all-reduce",
            "local": "this rank's part only: add the squares of all ranks",
            "square": "the square root is missing",
        }
        for rank, result in enumerate(results):
            slips = {hints[key]: value for key, value in result["mistakes"].items()}
            hint = "norms do not add up, squares do"
            if result["norm"] is None or abs(result["norm"] - result["want"]) > 1e-4 * result["want"]:
                report.close(
                    f"norm on rank {rank}", result["norm"], result["want"], mistakes=slips, likely=hint
                )
        report.ok(f"the norm is {results[0]['want']:.4g} on every rank")
        factor = min(1.0, max_norm / results[0]["want"])
        for rank, result in enumerate(results):
            want, before = result["before"] * factor, result["before"]
            twice = want.clone()
            twice[result["tied_from"] : result["tied_from"] + 6] *= factor
            mistakes = {
                "a gradient shorter than max_norm stays as it is": before * max_norm / result["want"],
                "the gradients are as before: scale them in place": before,
                "the tied gradient is scaled twice": twice,
            }
            if not torch.allclose(result["after"], want, 1e-4, 1e-5):
                report.close(f"gradients on rank {rank}", result["after"], want, mistakes=mistakes)
        report.ok(f"every gradient is multiplied by {factor:.3g}")
        likely = "add the squares up on the rank first: one number is all that has to travel"
        report.at_most("collectives", results[0]["calls"], 1, likely=likely)
        limit = sent_bytes("all-reduce", 8, ranks)
        report.at_most("bytes sent by a rank", round(results[0]["sent"], 1), round(limit, 1), likely=likely)
