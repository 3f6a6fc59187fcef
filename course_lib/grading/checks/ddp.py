"""Checks of chapter 05: buckets, overlap, weights of slices, accumulation, statistics of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.data_parallel.ddp import DDP
from course_lib.data_parallel.ddp import assign_buckets as deal
from course_lib.grading.checks.ddp_ranks import CHANNELS, accumulated, overlap, statistics, weighted
from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check
from simulator.predict.traffic import ddp_traffic


def _on_ranks(fn: Callable, ranks: int, args: tuple) -> list[Any]:
    """On the CPU, wherever the course runs; a run is over in a second, and the time limit ends what hangs."""
    return launch(fn, ranks, args=args, backend="gloo", timeout=20)


def _within(report: Report, what: str, got: float, limit: float, *, likely: str) -> None:
    """A target whose fact reads the same for every answer that meets it, also for one that needs less."""
    report.true(
        got <= limit,
        f"{what}: at most {limit:,}",
        f"{what}: {got:,}, and at most {limit:,} are needed",
        likely,
    )


@check
def check_05_1(report: Report, assign_buckets: Callable[[list[Tensor], int], list[list[Tensor]]]) -> None:
    """Which tensors share a bucket."""
    half, tied = torch.zeros(30, dtype=torch.bfloat16), torch.zeros(8, 2)
    cases = {
        "6 parameters, 400 bytes": ([torch.zeros(n) for n in (20, 60, 30, 10, 50, 40)], 400),
        "one larger than the limit": ([torch.zeros(n) for n in (5, 300, 5, 5)], 100),
        "a tied parameter": ([tied, torch.zeros(5), torch.zeros(7), tied], 200),
        "float32 and bfloat16": (
            [torch.zeros(9), half, torch.zeros(4, 4), half.clone(), torch.zeros(3)],
            100,
        ),
    }
    generator = torch.Generator().manual_seed(5)
    sizes = torch.randint(1, 200, (40,), generator=generator).tolist()
    cases["40 parameters at random"] = [torch.zeros(n) for n in sizes], 2000
    for name, (parameters, limit) in cases.items():
        report.case(name)
        _check_buckets(report, assign_buckets(list(parameters), limit), parameters, limit)


def _check_buckets(report: Report, got: Any, parameters: list[Tensor], limit: int) -> None:
    places = {id(parameter): place for place, parameter in enumerate(reversed(parameters))}
    if not isinstance(got, list | tuple) or not all(isinstance(b, list | tuple) and len(b) for b in got):
        hint = (
            "a `return` is missing?"
            if got is None
            else "begin a new bucket only when there is a tensor for it"
        )
        report.fail("the answer is not a list of lists, each with at least one tensor", hint)
    dealt = [places.get(id(tensor), -1) for bucket in got for tensor in bucket]
    if len(set(dealt)) < len(dealt):
        report.fail(
            f"{len(dealt)} tensors are dealt, of which {len(set(dealt))} are different",
            "the tied tensor sits in two buckets, so it would be reduced twice: deal tensors, not names",
        )
    report.true(
        set(dealt) == set(places.values()),
        f"each of {len(places)} tensors is in one bucket",
        f"{len(places)} tensors are to be dealt, and {len(set(dealt))} are",
        "the bucket that is being filled when the parameters end belongs to the answer too",
    )
    if any(len({t.dtype for t in bucket}) > 1 for bucket in got):
        report.fail(
            "a bucket holds tensors of two types", "one buffer has one dtype: fill a bucket for each dtype"
        )
    late = {id(tensor): place for place, tensor in reversed(list(enumerate(reversed(parameters))))}
    likely = "backward ends with the first parameter: walk from the last to the first"
    if dealt == sorted(places.values(), key=lambda place: late[id(parameters[-1 - place])]):
        likely = "backward adds to a tied gradient until it reaches the first of its places: deal it there"
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in (tensor for bucket in got for tensor in bucket):
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    orders = [[places[id(tensor)] for tensor in tensors] for tensors in by_dtype.values()]
    in_order = all(order == sorted(order) for order in orders)
    report.true(in_order, "last parameters first", "the order is not that of the gradients", likely)
    longest = max(sum(t.nbytes for t in bucket[:-1]) for bucket in got)
    if longest >= limit:
        report.fail(
            f"a bucket holds {longest} bytes before its last tensor is added, and is to be closed at {limit}",
            "bytes are numel() times element_size(); ask after adding whether the bucket is complete",
        )
    _within(
        report,
        "buckets",
        len(got),
        len(deal(parameters, limit)),
        likely="every bucket is a message: close it when it holds the limit, and not before",
    )


@check
def check_05_2(report: Report, average_during_backward: Callable[[Tensor, list[list[Tensor]]], None]) -> None:
    """All-reduces that leave while backward goes on."""
    for ranks, limit, crossed in ((2, 700, False), (3, 1200, False), (2, 864, True)):
        results = _on_ranks(overlap, ranks, (average_during_backward, limit, crossed))
        first = results[0]
        orders = " in different orders" if crossed else ""
        report.case(f"{ranks} ranks{orders}, {first['buckets']} buckets")
        for step in range(2):
            when = "averages in the next step" if step else "averaged gradients"
            for rank in results:
                found = rank["steps"][step]
                mistakes = {
                    "not divided by the number of ranks?": found["averages"] * ranks,
                    "this is the rank's own gradient: wait for each work, and copy the average back": found[
                        "own"
                    ],
                }
                likely = "a bucket left before one that comes earlier, so ranks added up different buckets"
                if not crossed:
                    likely = "is a bucket sent before its last gradient is there?"
                if not torch.allclose(found["gradients"], found["averages"], rtol=1e-4, atol=1e-5):
                    fact = f"{when} on rank {rank['rank']}"
                    report.close(
                        fact, found["gradients"], found["averages"], mistakes=mistakes, likely=likely
                    )
            report.ok(f"{when} are those of all ranks")
            likely = "one message per parameter: copy a bucket's gradients into one buffer"
            _within(report, "messages", first["steps"][step]["messages"], first["buckets"], likely=likely)
            likely = "in every step more hooks would fire: keep their handles, and remove them"
            _within(report, "hooks left behind", first["steps"][step]["hooks left"], 0, likely=likely)
        if crossed:
            continue
        step = first["steps"][0]
        report.true(
            step["to_come"] > 0,
            "the first bucket leaves while gradients are still to come",
            "the first bucket leaves only when every gradient is there",
            "start the all-reduce in the hook that sees the bucket's last gradient, not after backward",
        )
        report.true(
            all(step["async"]),
            "backward goes on meanwhile",
            "backward stands still while a bucket travels",
            "pass async_op=True, keep the work, and wait for it after backward",
        )


@check
def check_05_3(report: Report, whole_batch_gradients: Callable[[nn.Module, Tensor, Tensor], None]) -> None:
    """Slices of unequal size, and a tensor with two names."""
    for sizes in ((4, 4), (5, 2), (1, 6, 3)):
        results = _on_ranks(weighted, len(sizes), (whole_batch_gradients, sizes))
        report.case(f"{len(sizes)} ranks with {', '.join(map(str, sizes))} samples")
        for name in ("middle.weight", "middle.bias", "embedding.weight"):
            for rank, result in enumerate(results):
                got, want, ranks = result["gradients"][name], result["whole"][name], len(sizes)
                if got is not None and torch.allclose(got, want, rtol=1e-4, atol=1e-6):
                    continue
                mistakes = {
                    "slices of different sizes count the same: weigh each rank's loss by its share": result[
                        "plain"
                    ][name],
                    "the ranks' gradients are added up and nothing else: weigh each by its share of the samples": (
                        result["plain"][name] * ranks
                    ),
                    "the loss is weighed, and then the sum is divided again: the shares already add up to 1": want
                    / ranks,
                    "this is the rank's own gradient: the all-reduce is missing": result["own"][name],
                }
                likely = None
                if name == "embedding.weight":
                    mistakes = {
                        "reduced once under each of its two names: walk model.parameters(), where it stands once": (
                            want * ranks
                        ),
                        **mistakes,
                    }
                    likely = "the tensor has two names: reduce it once"
                report.close(
                    f"gradient of {name} on rank {rank}", got, want, mistakes=mistakes, likely=likely
                )
            report.ok(f"gradient of {name}{', tied,' if name[0] == 'e' else ''} is the whole batch's")
        _within(
            report,
            "messages",
            max(result["messages"] for result in results),
            results[0]["tensors"] + 1,
            likely="one per tensor, and one to learn how many samples there are in all",
        )


@check
def check_05_4(report: Report, accumulate: Callable[[DDP, list[tuple[Tensor, Tensor]]], None]) -> None:
    """Several microbatches, one synchronisation."""
    for ranks, microbatches in ((2, 4), (3, 2), (2, 1)):
        results = _on_ranks(accumulated, ranks, (accumulate, microbatches))
        noun = "microbatch" if microbatches == 1 else "microbatches"
        report.case(f"{ranks} ranks, {microbatches} {noun}")
        for rank, result in enumerate(results):
            want = result["whole"]
            mistakes = {
                "gradients add up over the microbatches: each loss is divided by their number": want
                * microbatches,
                "only one microbatch is left: nothing may clear the gradients in between": result["last"],
                "one microbatch, divided by their number: were the gradients cleared in between?": result[
                    "last"
                ]
                / microbatches,
                "these are the rank's own: the last microbatch must be outside of no_sync()": result["own"],
            }
            if not torch.allclose(result["gradient"], want, rtol=1e-4, atol=1e-6):
                likely = "average over microbatches and over ranks"
                report.close(
                    f"gradient on rank {rank}", result["gradient"], want, mistakes=mistakes, likely=likely
                )
        report.ok("gradient of all microbatches of all ranks")
        once = ddp_traffic(results[0]["sizes"], ranks)
        likely = "one synchronisation a step: all microbatches but the last inside model.no_sync(), forward included"
        _within(report, "all-reduces", results[0]["traffic"].calls, once.calls, likely=likely)
        report.equal(
            "bytes sent by a rank, as predicted", results[0]["traffic"].sent, once.sent, likely=likely
        )


@check
def check_05_5(report: Report, batch_statistics: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
    """Mean and variance of a batch that nobody has whole."""
    for sizes, offset in (((4, 4), 0.0), ((5, 2, 1), 0.0), ((3, 6), 1000.0)):
        results = _on_ranks(statistics, len(sizes), (batch_statistics, sizes, offset))
        far = ", values around 1,000" if offset else ""
        report.case(f"{len(sizes)} ranks with {', '.join(map(str, sizes))} images{far}")
        first = results[0]
        for rank, result in enumerate(results):
            mean, variance = result["answer"]
            mistakes = {
                "the mean of the ranks' means: larger slices must weigh more": first["mean of means"],
                "the ranks' sums are added, and then divided by one rank's count": result["own count"],
                "these are the rank's own: nothing was exchanged": result["own"][0],
            }
            if not _near(mean, first["mean"], 1e-5):
                report.close(f"mean on rank {rank}", mean, first["mean"], mistakes=mistakes)
            mistakes = {
                "the mean of the ranks' variances forgets how far their means lie apart": first[
                    "mean of variances"
                ],
                "divided by n - 1: BatchNorm normalises by the variance with n": first["unbiased"],
                "these are the rank's own: centre with the mean of all ranks, and add up again": result[
                    "own"
                ][1],
            }
            if not _near(variance, first["variance"], 1e-3):
                likely = (
                    "E[x²] - E[x]² subtracts two numbers of a million to get 1: centre first"
                    if offset
                    else None
                )
                name = f"variance on rank {rank}"
                report.close(
                    name, variance, first["variance"], tolerance=1e-3, mistakes=mistakes, likely=likely
                )
        report.ok("mean and variance of all images, on every rank")
        _within(
            report,
            "messages",
            first["messages"],
            2,
            likely="the count travels with the sums, in the same tensor",
        )
        _within(
            report,
            "bytes sent by a rank",
            round(first["sent"]),
            16 * (len(sizes) - 1) * (CHANNELS + 1),
            likely="statistics travel, not images: a few numbers for each channel",
        )


def _near(got: Any, want: Tensor, tolerance: float) -> bool:
    return (
        isinstance(got, Tensor)
        and got.shape == want.shape
        and torch.allclose(got.double(), want.double(), rtol=tolerance, atol=tolerance)
    )
