"""The checks of chapter 07: units that come and go, hybrid sharding, precision, on real ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.checks import fsdp_ranks
from course_lib.grading.compare import difference
from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check
from simulator.predict.collective_traffic import sent_bytes

TIME_LIMIT = 20.0  # seconds for the ranks of one case


@check
def check_07_1(report: Report, flat_unit: Callable[[list[Tensor]], Any]) -> None:
    originals = [p.detach() for p in fsdp_ranks.odd_parameters()]
    flat = torch.cat([p.flatten() for p in originals])
    twins = fsdp_ranks.odd_parameters()
    fsdp_ranks.output(twins).backward()
    for ranks in (2, 3, 4):
        report.case(f"{ranks} ranks, {flat.numel()} numbers")
        part = -(-flat.numel() // ranks)
        seen = launch(
            fsdp_ranks.comes_and_goes, ranks, args=(flat_unit, part), timeout=TIME_LIMIT, quiet=True
        )
        report.equal(
            "every shard has the same length",
            [one["shard"] for one in seen],
            [(part,)] * ranks,
            likely="pad the buffer with zeros to a multiple of the number of ranks; keep your part as `shard`.",
        )
        if any(one["dangling"] for one in seen):
            report.fail(
                "the shard's memory went with the buffer",
                "a slice is a view: `clone` the shard before you free what it was cut from.",
            )
        report.close(
            "the shards, end to end, are the parameters",
            torch.cat([one["shard values"] for one in seen])[: flat.numel()],
            flat,
            likely="rank r keeps elements r * part up to (r + 1) * part.",
        )
        only = (
            "after reshard nothing but the shard stays: resize the buffer's storage to 0, keep no other copy."
        )
        report.at_most("bytes held at first", seen[0]["held before"], 4 * part, likely=only)
        for rank, one in enumerate(seen):
            for got, want in zip(one["whole"], originals, strict=True):
                if problem := difference(got, want, 0.0):
                    report.fail(
                        f"after unshard a parameter of rank {rank} {problem}",
                        "make every parameter a view into the buffer: `p.data = view.view(p.shape)`.",
                    )
        report.ok("unshard brings every parameter back")
        report.at_most(
            "collectives of an unshard",
            max(one["collectives"] for one in seen),
            1,
            likely="one all-gather for the whole unit: that is what the flat buffer is for.",
        )
        report.at_most("bytes held between uses", seen[0]["held between"], 4 * part, likely=only)
        report.at_most(
            "bytes that autograd keeps of it",
            seen[0]["in the graph"],
            0,
            likely="the graph holds the buffer of the forward: free and refill that one, do not make a new one.",
        )
        for got, want in zip(seen[-1]["gradients"], twins, strict=True):
            if problem := difference(got, want.grad, 1e-5):
                report.fail(
                    f"a gradient {problem}", "backward must find the very buffer that forward has used."
                )
        report.ok("gradients after reshard and unshard are those of one device")
        updated = torch.cat([p.flatten() for p in seen[0]["updated"]])
        report.close(
            "an update of the shards reaches the parameters",
            updated,
            flat + 1,
            likely="unshard gathers `self.shard` as it is then.",
        )


@check
def check_07_3(
    report: Report,
    average_gradient: Callable[..., Tensor],
    predicted_bytes: Callable[[int, int, int], tuple[float, float]],
) -> None:
    for copies, factor, elements in [(2, 3, 12), (3, 2, 20), (1, 4, 8)]:
        ranks = copies * factor
        report.case(f"{ranks} ranks, F = {factor}")
        mesh = {"copies": copies, "shards": factor}
        args = (average_gradient, elements)
        seen = launch(fsdp_ranks.hybrid, mesh=mesh, args=args, timeout=TIME_LIMIT, quiet=True)
        own = [fsdp_ranks.own_gradient(rank, elements) for rank in range(ranks)]
        parts = [sum(own).div(ranks).split(elements // factor)[one["place"]] for one in seen]
        groups = [sum(own[c * factor : (c + 1) * factor]) / factor for c in range(copies)]
        groups = [groups[one["copy"]].split(elements // factor)[one["place"]] for one in seen]
        bad = next((r for r, w in enumerate(parts) if difference(seen[r]["result"], w, 1e-5)), 0)
        report.close(
            f"rank {bad}: its part of the mean over all ranks",
            seen[bad]["result"],
            parts[bad],
            mistakes={
                "this is the sum: divide by the number of all ranks.": parts[bad] * ranks,
                "divided by the ranks of one group only: the copies count too.": parts[bad] * copies,
                "this is the mean of one copy's ranks: the copies must agree, or they part ways.": groups[
                    bad
                ],
                "divided by the copies only.": parts[bad] * factor,
            },
        )
        inside = sent_bytes("reduce-scatter", 4 * elements, factor)
        across = sent_bytes("all-reduce", 4 * elements / factor, copies)
        sent = seen[0]["sent"]
        whole = "add up inside the group first: then only a shard has to travel across."
        report.at_most("bytes sent across", round(sent.get(copies, 0)), round(across), likely=whole)
        report.at_most(
            "bytes sent inside",
            round(sent[factor]),
            round(inside),
            likely="a rank needs the sum of its own part only: reduce-scatter.",
        )
        report.close(
            "the prediction equals what was sent, inside and across",
            list(predicted_bytes(elements, factor, copies)),
            [inside, across],
            mistakes={
                "inside and across are swapped.": [across, inside],
                "what travels across is a shard, n/F.": [inside, across * factor],
                "an element has 4 bytes.": [inside / 4, across / 4],
                "across runs an all-reduce: a reduce-scatter and an all-gather.": [inside, across / 2],
            }
            if copies > 1
            else {},
        )


@check
def check_07_4(report: Report, mixed_step: Callable[..., None]) -> None:
    lr = 1e-3
    for ranks, elements in [(2, 6), (4, 5)]:
        report.case(f"{ranks} ranks, shards of {elements}")
        total = ranks * elements
        args = (mixed_step, elements, lr)
        seen = launch(fsdp_ranks.mixed, ranks, args=args, timeout=TIME_LIMIT, quiet=True)
        report.equal(
            "forward and backward get all parameters in bfloat16",
            [(str(dtype).removeprefix("torch."), *shape) for dtype, shape in seen[0]["given"]],
            [("bfloat16", total)],
            likely="compute once, with the whole buffer in bfloat16.",
        )
        before = torch.cat([fsdp_ranks.first_shard(rank, elements) for rank in range(ranks)])
        own = [before.bfloat16() + fsdp_ranks.slopes(rank, total) for rank in range(ranks)]
        mean = sum(gradient.float() for gradient in own) / ranks
        after = torch.cat([one["shard"] for one in seen])
        error = ((before - after) / lr - mean).abs().max() / mean.abs().max()
        reduced = sum(row.payload for row in seen[0]["rows"] if row.collective != "all-gather")
        likely = None
        if torch.equal(after, before):
            likely = "update `shard` in place."
        elif torch.equal(after, after.bfloat16().float()):
            likely = "the shard has kept only bfloat16's digits: subtract from the fp32 shard itself."
        elif difference((before - after) / lr, mean * ranks, 0.02) is None:
            likely = "this is the sum of the gradients: divide by the number of ranks."
        elif reduced < 4 * total:
            likely = "gradients that nearly cancel were added up in bfloat16: make them fp32 before the sum."
        report.true(
            error < 1e-3,
            "the update is the mean gradient to a thousandth",
            f"the update differs from the mean gradient by {error:.2g} of it",
            likely,
        )
        gathered = sum(row.payload for row in seen[0]["rows"] if row.collective == "all-gather")
        report.at_most(
            "bytes gathered", gathered, 2 * total, likely="cast the shard before it travels, not after."
        )
        report.at_most(
            "bytes reduced", reduced, 4 * total, likely="a rank needs its own part of the sum only."
        )
