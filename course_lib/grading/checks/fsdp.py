"""The check of 07.1 on real ranks: a unit that is unsharded and resharded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.checks import fsdp_ranks
from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check

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
