"""The checks of chapter 07 on real ranks: a unit that is unsharded and resharded, hybrid sharding, precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.checks import fsdp_ranks
from course_lib.grading.checks.fsdp_mistakes import (
    HYBRID,
    LOSS_DIVIDED,
    MIXED,
    PREDICTED,
    SUMMED_IN_BFLOAT16,
)
from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check
from simulator.predict.collective_traffic import sent_bytes

ON_CPU: dict[str, Any] = {"timeout": 60.0, "quiet": True, "backend": "gloo"}  # seconds for one case

# ranks, sizes of the parameters, dtype, and the name of the case
UNITS = [
    (2, (5, 4, 3), torch.float32, "41 numbers"),
    (3, (5, 4, 3), torch.float32, "41 numbers"),
    (4, (5, 4, 2), torch.float32, "36 numbers"),
    (3, (1, 1, 1), torch.float32, "4 numbers"),
    (2, (5, 4, 3), torch.float64, "41 numbers in float64"),
]


@check
def check_07_1(report: Report, flat_unit: Callable[[list[Tensor]], Any]) -> None:
    for ranks, dims, dtype, numbers in UNITS:
        with report.case(f"{ranks} ranks, {numbers}"):
            seed = report.seed()
            originals = [p.detach() for p in fsdp_ranks.parameters_of(dims, dtype, seed)]
            flat = torch.cat([p.flatten() for p in originals])
            part = -(-flat.numel() // ranks)
            args = (flat_unit, dims, dtype, seed, part)
            _judge_unit(report, launch(fsdp_ranks.comes_and_goes, ranks, args=args, **ON_CPU), args, flat)


def _judge_unit(report: Report, seen: list[dict[str, Any]], args: tuple, flat: Tensor) -> None:
    _, dims, dtype, seed, part = args
    ranks, size = len(seen), flat.element_size()
    report.equal(
        "the shape of `shard` on each rank",
        [str(one["shard"]) for one in seen],
        [f"({part},)"] * ranks,
        mistakes={
            "when the remainder goes to the first ranks, and nothing is padded": [
                f"({len(piece)},)" for piece in flat.tensor_split(ranks)
            ],
            "when the length is rounded down": [f"({flat.numel() // ranks},)"] * ranks,
            "when 1 is added to the quotient even without a remainder": [f"({len(flat) // ranks + 1},)"]
            * ranks,
            "when every rank keeps all parameters": [f"({flat.numel()},)"] * ranks,
        },
        task="the number of elements divided by the number of ranks p and rounded up",
    )
    memory = [one["memory"] for one in seen]
    report.true(
        memory == [part] * ranks,
        "the shards have a memory of their own",
        f"the memory of `shard` has room for {memory} numbers on the ranks, and `shard` has {part}",
        got=memory,
        mistakes={
            "when `shard` is a view of the buffer that was freed": [0] * ranks,
            "when `shard` is a view into the whole buffer, all of which then stays": [ranks * part] * ranks,
        },
        task="`self.shard` has a memory of its own",
    )
    kinds = [str(d).removeprefix("torch.") for one in seen for d in one["dtypes"]]
    report.equal(
        "the dtype of parameters and shard",
        ", ".join(sorted(set(kinds))),
        str(dtype).removeprefix("torch."),
        mistakes={"when the buffer is in fp32, whatever the parameters are": "float32"},
        task="of one dtype (any floating-point dtype)",
    )
    report.close(
        "the shards, end to end, are the parameters",
        torch.cat([one["shard values"] for one in seen])[: flat.numel()],
        flat,
        mistakes={"when every rank keeps the first part": flat[:part].repeat(ranks)[: len(flat)]},
        task="rank r keeps the r-th of them",
    )
    own, full, values = size * part, size * ranks * part, size * len(flat)
    kept = {
        "when the memory of the buffer is not freed": [own + full] * ranks,
        "when a second tensor as long as the shard is kept": [2 * own] * ranks,
        "when the parameters keep the memory that they had": [own + values] * ranks,
    }
    bytes_task = "Between uses the unit and its parameters hold the memory of `self.shard` and no other"
    for fact, key in (
        ("bytes held at first are those of the shard", "held before"),
        ("bytes held between uses are those of the shard", "held between"),
    ):
        held = [one[key] for one in seen]
        wrong = f"{fact.split(' are')[0]}: {max(held)}, and the shard has {own}"
        report.true(max(held) <= own, fact, wrong, got=held, mistakes=kept, task=bytes_task)
    report.on_every_rank(
        "unshard brings every parameter back",
        [_flat(one["whole"]) for one in seen],
        [flat] * ranks,
        task="Afterwards every parameter has its shape and its values",
    )
    saved = [one["in the graph"] for one in seen]
    report.true(
        not any(saved),
        "no memory is kept for autograd",
        f"autograd keeps {saved[0]} bytes of the buffer that forward has used",
        got=saved,
        mistakes={
            "when `unshard` makes a new buffer each time, and autograd keeps the old one": [full] * ranks,
            "when `unshard` makes new tensors each time, and autograd keeps the old ones": [values] * ranks,
        },
        task="The buffer is the same tensor all the time",
    )
    twins = fsdp_ranks.parameters_of(dims, dtype, seed)
    fsdp_ranks.output(twins).backward()
    report.on_every_rank(
        "gradients after reshard and unshard are those of one device",
        [_flat(one["gradients"]) for one in seen],
        [_flat([p.grad for p in twins])] * ranks,
        task="backward finds the values that forward has used",
    )
    report.equal(
        "hooks on the parameters are called",
        [one["hooks"] for one in seen],
        [len(twins)] * ranks,
        task="The parameters stay the same objects, with their hooks.",
    )
    report.on_every_rank(
        "an update of the shards reaches the parameters",
        [_flat(one["updated"]) for one in seen],
        [flat + 3] * ranks,
        mistakes={
            "when `unshard` gathers what the shards were at first": [flat] * ranks,
            "when `reshard` overwrites what an optimizer has written into `shard`": [flat + 2] * ranks,
        },
        task="with the values that `self.shard` has on each rank at that moment",
    )
    report.at_most(
        "collectives of an unshard",
        max(one["collectives"] for one in seen),
        1,
        mistakes={
            "when there is one collective for each rank": ranks,
            "when there is one collective for each parameter": len(twins),
        },
        task="one collective for an unshard",
    )


def _flat(tensors: list[Tensor | None]) -> Tensor | None:
    return None if any(t is None for t in tensors) else torch.cat([t.flatten() for t in tensors])


@check
def check_07_3(
    report: Report,
    average_gradient: Callable[..., Tensor],
    predicted_bytes: Callable[[int, int, int], tuple[float, float]],
) -> None:
    for copies, factor, elements in [(2, 3, 12), (3, 2, 20), (1, 3, 9), (3, 1, 5)]:
        ranks = copies * factor
        with report.case(f"{ranks} ranks, F = {factor}"):
            seed = report.seed()
            mesh = {"copies": copies, "shards": factor}
            seen = launch(fsdp_ranks.hybrid, mesh=mesh, args=(average_gradient, elements, seed), **ON_CPU)
            own = [fsdp_ranks.own_gradient(rank, elements, seed) for rank in range(ranks)]
            report.on_every_rank(
                "every rank has its part of the mean over all ranks",
                [one["result"] for one in seen],
                [sum(own).div(ranks).split(elements // factor)[rank % factor] for rank in range(ranks)],
                mistakes=HYBRID,
                given=(own, copies, factor),
                task="Return this rank's part of the mean over all W ranks",
            )
            inside = sent_bytes("reduce-scatter", 4 * elements, factor) if factor > 1 else 0.0
            between = sent_bytes("all-reduce", 4 * elements / factor, copies) if copies > 1 else 0.0
            sent = seen[0]["sent"]
            report.close(
                "the prediction (inside, between)",
                list(map(float, predicted_bytes(elements, factor, copies))),
                [inside, between],
                mistakes=PREDICTED,
                given=(elements, factor, copies),
                task="the bytes that a rank sends",
            )
            target = "no more bytes than these in either group"
            whole = {size: round(sent_bytes("all-reduce", 4 * elements, size)) for size in (copies, factor)}
            report.at_most(
                "bytes sent between copies",
                round(sent.get(copies, 0)),
                round(between),
                mistakes={
                    "when the whole gradient is all-reduced between copies, and not a shard": whole[copies]
                },
                task=target,
            )
            report.at_most(
                "bytes sent inside",
                round(sent.get(factor, 0)),
                round(inside),
                mistakes={"when the gradient is all-reduced inside, and not reduce-scattered": whole[factor]},
                task=target,
            )


# what cancels between the ranks, by rank (all unlike on 3 and 4), and the length of a shard. A division by 2 or 4
# is exact in bfloat16, and one by 3 is not.
MIXTURES = [((-100, 100), 6), ((-100, 70, -30, 60), 5), ((-100, 30, 70), 1), ((-100, 30, 70), 7)]


@check
def check_07_4(report: Report, mixed_step: Callable[..., None]) -> None:
    lr = 1e-3
    for weights, elements in MIXTURES:
        ranks = len(weights)
        with report.case(f"{ranks} ranks, shards of {elements}"):
            seed, total = report.seed(), ranks * elements
            seen = launch(fsdp_ranks.mixed, ranks, args=(mixed_step, weights, elements, lr, seed), **ON_CPU)
            report.equal(
                "the loss is computed once, from all parameters in bfloat16",
                [(str(dtype).removeprefix("torch."), *shape) for dtype, shape in seen[0]["given"]],
                [("bfloat16", total)],
                mistakes={
                    "when the parameters are in fp32": [("float32", total)],
                    "when a rank computes with its own shard only": [("bfloat16", elements)],
                },
                task="Call it once, with the parameters of the whole unit in bfloat16",
            )
            before = torch.cat([fsdp_ranks.first_shard(rank, elements, seed) for rank in range(ranks)])
            slopes = [fsdp_ranks.slopes(weight, total, seed) for weight in weights]
            own = [before.bfloat16() + slope for slope in slopes]
            mean = sum(gradient.double() for gradient in own) / ranks
            scale = mean.abs().max()
            after = torch.cat([one["shard"] for one in seen])
            rows = seen[0]["rows"]
            gathered = sum(row.payload for row in rows if row.collective == "all-gather")
            reduced = sum(row.payload for row in rows) - gathered
            sent = sum(row.sent for row in rows if row.collective != "all-gather")
            got = (before.double() - after) / lr / scale
            # A sum of bfloat16 depends on the order of the ranks. What was sent tells that it was made.
            # Each of its roundings errs by at most 2^-9 of the largest partial sum.
            rounding = sum(gradient.double().abs() for gradient in own) / scale / 256 + 1e-3
            in_bfloat16 = reduced == 2 * total and bool(((got - mean / scale).abs() <= rounding).all())
            divided = sum(fsdp_ranks.gradient(before.bfloat16(), slope, ranks).double() for slope in slopes)
            likely = {LOSS_DIVIDED: divided / scale} | ({SUMMED_IN_BFLOAT16: got} if in_bfloat16 else {})
            report.close(
                "the update, divided by `lr` and by the largest element of the mean gradient,",
                got,
                mean / scale,
                tolerance=1e-3,
                mistakes=MIXED | likely,
                given=(before, own, lr, scale),
                task="The mean gradient may be wrong by at most a thousandth of its largest element",
            )
            report.at_most(
                "bytes of the parameters that are gathered",
                gathered,
                2 * total,
                mistakes={"when the shards are gathered in fp32": 4 * total},
                task="2 bytes for each parameter that is gathered",
            )
            whole = (
                "when the gradients are all-reduced: every rank then gets the whole mean, and not its part"
            )
            all_reduced = any(row.collective == "all-reduce" for row in rows)
            report.at_most(
                "bytes that a rank sends of the gradients",
                round(sent),
                round(sent_bytes("reduce-scatter", 4 * total, ranks)),
                mistakes={whole: round(sent)} if all_reduced else {},
                task="of the gradients a rank sends no more than a reduce-scatter in fp32 sends",
            )
