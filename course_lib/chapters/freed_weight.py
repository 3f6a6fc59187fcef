"""A weight that is freed after forward and gathered before backward, by lines that the learner writes (chapter 07)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.by_hand import fsdp
from course_lib.chapters.refused import Refused
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import RankError, launch

SIDE, RANKS = 1000, 4
BYTES = 4 * SIDE * SIDE
OTHERS = 0x7F  # in each byte of memory that has been freed, as if its next user had written there


class Seen(NamedTuple):
    """Of one rank: bytes of the memory that autograd points at, after forward and in backward, and the bytes sent.

    Args:
        moved: the tensor has another memory than the one that autograd points at.
        right: backward gives the right gradient.
    """

    after: int
    before: int
    sent: float
    moved: bool
    right: bool


def all_gather(output: Tensor, input: Tensor) -> None:
    """The all-gather of FSDP by hand; Gloo dies of a wrong size, and of a tensor without memory."""
    out, into = output.numel(), input.numel()
    if out != RANKS * into:
        swapped = ": swap them" if into == RANKS * out else ""
        wanted = f"an output of {RANKS} times as many numbers as its input"
        raise Refused(
            f"all_gather(output, input) takes {wanted}; here they have {out:,} and {into:,}{swapped}."
        )
    for name, tensor in {"output": output, "input": input}.items():
        if (there := tensor.untyped_storage().nbytes()) < tensor.nbytes:
            raise Refused(
                f"all_gather's {name} needs {tensor.nbytes:,} bytes, and its storage has {there:,}."
            )
    fsdp.all_gather(output, input)


def step_on_rank(after_forward: Callable[..., object], before_backward: Callable[..., object]) -> Seen:
    """Forward, the learner's lines, backward. Every rank calls it."""
    torch.manual_seed(0)
    values, x = torch.randn(SIDE * SIDE), torch.randn(8, SIDE, requires_grad=True)
    whole, shard = values.clone(), values.chunk(RANKS)[dist.get_rank()].clone()
    memory, block = whole.untyped_storage(), nn.Linear(SIDE, SIDE, bias=False)
    block.weight.data = whole.view(SIDE, SIDE)
    y = block(x)
    memory.fill_(OTHERS)
    after_forward(whole)
    left = torch.tensor(memory, dtype=torch.uint8) if (after := memory.nbytes()) == BYTES else None
    if left is not None and left.eq(OTHERS).all():  # not freed, so nobody else has written there
        memory.copy_(values.untyped_storage())
    with record_traffic() as log:
        before_backward(whole, shard)
    moved, before = whole.untyped_storage()._cdata != memory._cdata, memory.nbytes()
    if before < BYTES:
        return Seen(after, before, log.traffic.sent, moved, False)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    right = torch.allclose(gradient, values.view(SIDE, SIDE).sum(0).expand_as(x), atol=1e-3)
    return Seen(after, before, log.traffic.sent, moved, right)


def try_lines(after_forward: Callable[..., object], before_backward: Callable[..., object]) -> None:
    """Print what the learner's lines did with a weight on four ranks, and what is wrong with it.

    Args:
        after_forward: called with (whole); should free its memory.
        before_backward: called with (whole, shard); should make the weight whole again.

    Raises:
        Refused: a line cannot run.
    """
    try:
        seen = launch(step_on_rank, RANKS, args=(after_forward, before_backward))
    except RankError as error:
        if "signal 11" in str(error):
            raise Refused("A line read or wrote memory that is not there (signal 11).") from None
        if (cause := error.__cause__) is None:
            raise
        stopped = "" if isinstance(cause, Refused) else f"A line stopped: {type(cause).__name__}: "
        raise Refused(f"{stopped}{cause}") from None
    print(verdict(seen))


def verdict(seen: list[Seen]) -> str:
    """Of all ranks what they held and sent, and the first thing that is wrong."""
    worst = max(seen, key=lambda one: (not one.right, one.sent))
    right, sent = sum(one.right for one in seen), BYTES * (RANKS - 1) / RANKS
    rows = {
        "autograd's weight after forward": (worst.after, 0),
        "sent by a rank to gather": (worst.sent, sent),
        "autograd's weight in backward": (worst.before, BYTES),
    }
    lines = [
        f"{name + ':':33}{found / 1e6:.2f} MB, wanted {want / 1e6:g}" for name, (found, want) in rows.items()
    ]
    lines.append(f"{'right gradient:':33}on {right} of {RANKS} ranks")
    moved = " `whole` has another storage now." if worst.moved else ""
    if worst.after:
        fault = f"Autograd points at a storage that still has {worst.after:,} bytes.{moved}"
    elif worst.before < BYTES:
        fault = f"Backward cannot run: autograd points at a storage of {worst.before:,} bytes.{moved}"
    elif right < RANKS:
        why = "nothing was sent to fill it" if not worst.sent else "what was sent did not make it whole"
        fault = f"The storage is there again, without the weight: {why}.{moved}"
    elif worst.before > BYTES:
        fault = "The storage is larger than the weight."
    elif worst.sent != sent:
        fault = f"An all-gather of the shards sends {sent / 1e6:g} MB."
    else:
        fault = "Right: the memory is free in between, and autograd's weight is valid again."
    return "\n".join([*lines, fault])
