"""The check of 07.5: PyTorch's own ``fully_shard`` on a GPT, under a budget for what is unsharded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.training.loop import cross_entropy
from simulator.predict.collective_traffic import sent_bytes

TIME_LIMIT = 60.0  # seconds for the ranks of one case
BYTES = 2  # of a parameter in bfloat16

# ranks, blocks, blocks that the budget has room for, bytes beside them, blocks at the end that are frozen.
# 25,406 bytes are one parameter less than another block needs.
CASES = [(2, 5, 3, 5000, 0), (3, 4, 2, 25_406, 0), (2, 4, 1, 0, 2), (2, 3, 3, 0, 0)]


def make(blocks: int, frozen: int) -> GPT:
    torch.manual_seed(blocks)
    model = GPT(GPTConfig.tiny(vocab_size=64, max_length=16, num_layers=blocks, hidden_size=32))
    for block in model.blocks[blocks - frozen :]:
        block.requires_grad_(False)
    return model


def sizes(model: GPT) -> tuple[int, int]:
    """Elements of a block, and of the root."""
    block = sum(p.numel() for p in model.blocks[0].parameters())
    return block, sum(p.numel() for p in model.parameters()) - block * len(model.blocks)


def unsharded_bytes(model: nn.Module) -> int:
    return sum(p.nbytes for p in model.parameters() if not isinstance(p, DTensor))


def sharded_step(
    mesh: DeviceMesh, answer: Callable[..., Any], blocks: int, frozen: int, budget: int, seed: int
) -> dict[str, Any]:
    """A step of the model as the answer has sharded it: what was unsharded when, what was sent, what came out."""
    warnings.simplefilter("ignore", FutureWarning)
    model = make(blocks, frozen)
    try:
        answer(model, mesh, budget)
    except RuntimeError:
        if not isinstance(model, FSDPModule) or all(isinstance(block, FSDPModule) for block in model.blocks):
            raise
        return {"root first": True}
    seen: dict[str, Any] = {"whole": [n for n, p in model.named_parameters() if not isinstance(p, DTensor)]}
    if seen["whole"]:
        return seen
    seen["dtypes"] = ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()}))
    held: list[int] = []
    computed_in: dict[str, str] = {}  # the dtypes that the root and the blocks have when a block begins

    def look(*_: Any) -> None:
        held.append(unsharded_bytes(model))
        for name, p in model.named_parameters():
            if not isinstance(p, DTensor):
                computed_in[name.split(".")[0]] = str(p.dtype).removeprefix("torch.")

    for block in model.blocks:
        block.register_forward_pre_hook(look)
    data = torch.randint(64, (2, 2 * mesh.size(), 16), generator=torch.Generator().manual_seed(seed))
    tokens, targets = (part.chunk(mesh.size())[dist.get_rank()] for part in data)
    with record_traffic() as log:
        try:
            cross_entropy(model(tokens).float(), targets).backward()
        except RuntimeError as error:  # on every rank
            if "dtype" not in str(error):
                raise
            of_root = ", ".join({dtype for part, dtype in computed_in.items() if part != "blocks"})
            return seen | {"clash": str(error).splitlines()[0], "in": (of_root, computed_in.get("blocks"))}
    seen |= {"held": held, "left": [n for n, p in model.named_parameters() if not isinstance(p, DTensor)]}
    seen["gathered"] = sum(row.sent for row in log.traffic.rows if row.collective == "all-gather")
    seen["reduced"] = sum(row.payload for row in log.traffic.rows if row.collective == "reduce-scatter")
    seen["trained"] = [p.requires_grad for p in model.parameters()]
    norms = [p.grad.full_tensor().float().norm() for p in model.parameters() if p.grad is not None]
    seen["norm"] = float(torch.stack(norms).norm())
    return seen


@check
def check_07_5(report: Report, shard_model: Callable[..., Any]) -> None:
    ruled_out: set[str] = set()  # mistakes that would have shown in an earlier case
    for ranks, blocks, room, spare, frozen in CASES:
        model = make(blocks, frozen)
        block, root = sizes(model)
        budget = BYTES * (root + room * block) + spare
        name = f"{ranks} ranks, {blocks} blocks, room for the root and {room}"
        with report.case(name + (f", {frozen} frozen" if frozen else "")):
            seed = report.seed()
            args = (shard_model, blocks, frozen, budget, seed)
            seen = launch(
                sharded_step, mesh={"dp": ranks}, args=args, timeout=TIME_LIMIT, quiet=True, backend="gloo"
            )[0]
            report.true(
                not seen.get("root first"),
                "blocks are sharded before the model",
                "`fully_shard` has been called on `model` while some of its blocks were not yet sharded",
                task="call `fully_shard` on every block of `model.blocks`, and then on `model`",
            )
            report.true(
                not seen["whole"],
                "every parameter is sharded",
                f"{len(seen['whole'])} parameters are not sharded, such as {', '.join(seen['whole'][:1])}",
                task="call `fully_shard` on every block of `model.blocks`, and then on `model`",
            )
            report.equal("the dtype of the shards", seen["dtypes"], "float32", task="The shards stay in fp32")
            report.true(
                "clash" not in seen,
                "what a unit computes fits the next one",
                f"what a unit computes has another dtype than the next one: {seen.get('clash')}",
                got=seen.get("in"),
                mistakes={
                    "when `model` itself is sharded without `mp_policy`": ("float32", "bfloat16"),
                    "when the blocks are sharded without `mp_policy`": ("bfloat16", "float32"),
                },
                task="Units are gathered and compute in bfloat16",
            )
            peaks = _peaks(block, root, blocks, room, frozen)
            report.true(
                max(seen["held"]) <= budget,
                "bytes unsharded while a block computes are within the budget",
                f"{max(seen['held']):,} bytes are unsharded while block {seen['held'].index(max(seen['held']))} "
                f"computes, and the budget is {budget:,}",
                got=seen["held"],
                mistakes=peaks,
                task="At no moment may unsharded parameters take more than `budget` bytes",
            )
            trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
            report.true(
                seen["reduced"] >= 4 * trained,
                "gradients are summed in fp32",
                f"{seen['reduced']:,} bytes of gradients are reduced, and {trained:,} parameters have "
                f"{4 * trained:,} bytes in fp32",
                got=seen["reduced"] < 3 * trained,
                mistakes={"when `reduce_dtype` is not given: it is then that of `param_dtype`": True},
                task="gradients are summed over the ranks in fp32",
            )
            report.true(
                not seen["left"],
                "after the step no parameter is unsharded",
                f"after the step {len(seen['left'])} parameters are unsharded, such as "
                f"{', '.join(seen['left'][:1])}",
                task="After backward every parameter is sharded again.",
            )
            want = _norm_on_one_device(blocks, frozen, ranks, seed)
            report.close(
                "the norm of the gradient is that of one device",
                seen["norm"],
                want,
                tolerance=0.05,
                task="The gradients are those of one device, up to the rounding of bfloat16",
            )
            # Rows that do not divide by the ranks are padded, which is little and less than half a block here.
            gathers = round((seen["gathered"] / sent_bytes("all-gather", BYTES, ranks) - root) / block)
            guesses = _kept_too_few(model, budget, room)
            ruled_out |= {text for text, kept in guesses.items() if kept != 2 * blocks - gathers}
            report.at_most(
                "gathers of blocks in a step",
                gathers,
                2 * blocks - room,
                mistakes={text: gathers for text in guesses if text not in ruled_out},
                task="a step gathers as few bytes as the budget allows",
            )


def _kept_too_few(model: GPT, budget: int, room: int) -> dict[str, int]:
    """How many blocks are kept between forward and backward, by what an answer may have done wrong."""
    block, root = sizes(model)
    tied = model.head.weight.numel()
    return {
        "when every block is freed after its forward": 0,
        "when one block fewer is kept than there is room for": room - 1,
        "when a parameter is counted with 4 bytes": max(budget // 2 - 2 * root, 0) // (2 * block),
        "when the tied weight is counted twice": min(max(budget // 2 - root - tied, 0) // block, room),
    }


def _peaks(block: int, root: int, blocks: int, room: int, frozen: int) -> dict[str, list[int]]:
    """What is unsharded when each block begins, by what an answer may have done wrong."""

    def history(kept: set[int], size: int = BYTES) -> list[int]:
        return [size * (root + block * (sum(k < i for k in kept) + 1)) for i in range(blocks)]

    everything = BYTES * (root + blocks * block)
    return {
        "when the first blocks are kept: the last one to run is then unsharded beside them": history(
            set(range(room))
        ),
        "when no block is resharded after forward": history(set(range(blocks))),
        "when one block too many is kept": history(set(range(blocks - room - 1, blocks))),
        "when frozen parameters are not counted": history(set(range(blocks - room - frozen, blocks))),
        "when units are gathered in fp32": history(set(range(blocks - room, blocks)), 4),
        "when blocks are gathered in fp32 and none is kept": history(set(), 4),
        "when the whole model is one unit": [everything] * blocks,
    }


def _norm_on_one_device(blocks: int, frozen: int, ranks: int, seed: int) -> float:
    model = make(blocks, frozen)
    data = torch.randint(64, (2, 2 * ranks, 16), generator=torch.Generator().manual_seed(seed))
    cross_entropy(model(data[0]), data[1]).backward()
    return float(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm())
