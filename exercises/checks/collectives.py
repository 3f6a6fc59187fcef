"""Chapter 04: an answer on real ranks, every message recorded; it may use messages only, and leaves its input alone."""

from collections.abc import Callable, Sequence
from typing import NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.grading.judge import Fact
from course_lib.observe.ledgers.messages import record_messages
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import collectives
from course_lib.runtime.kept import launch
from simulator.predict.message_rounds import Event

SENT_BY = "Every message is sent by `send` or `exchange`; no other collective may be called"
BASE = {
    "others": Fact("the collectives", SENT_BY),
    "kept": Fact("`t`", "`t` keeps its values"),
    "dtype": Fact("the dtype", "of the dtype of `t`"),
}
FINISHED = ["broadcast", "scatter", "gather", "reduce",
            "all_gather", "reduce_scatter", "all_reduce", "all_to_all"]  # fmt: skip
VIEWS = "every second column of a tensor, large numbers"


class Run(NamedTuple):
    """What an answer did: ``said`` is what is wrong already, ``logs`` are each rank's sends and receives."""

    said: dict[str, str]
    results: list
    logs: list[list[Event]]

    @property
    def sends(self) -> list[tuple[int, Event]]:
        return [(r, event) for r, log in enumerate(self.logs) for event in log if event.kind == "send"]

    @property
    def messages(self) -> list[int]:
        return [sum(event.kind == "send" for event in log) for log in self.logs]

    def bytes_beyond(self, limits: Sequence[int]) -> int:
        sent = [sum(event.size for event in log if event.kind == "send") for log in self.logs]
        return max(0, *(s - limit for s, limit in zip(sent, limits, strict=True)))


def whole_numbers(seed: int, *shapes: Sequence[int], views: bool = False) -> list[Tensor]:
    """A tensor of each shape, int64: sums are the same in every order.

    With ``views`` each is a view of another tensor, with numbers that float32 does not hold.
    """
    draw = torch.Generator().manual_seed(seed)
    if not views:
        return [torch.randint(1, 10_000, tuple(shape), generator=draw) for shape in shapes]
    return [torch.randint(1, 2**50, (rows, 2 * n), generator=draw)[:, ::2] for rows, n in shapes]


def run(answer: Callable, inputs: Sequence[Tensor], *more) -> Run:
    ranks = launch(on_rank, len(inputs), args=(answer, list(inputs), more), timeout=60.0, backend="gloo")
    results, kept, logs, others = map(list, zip(*ranks, strict=True))
    said = dict.fromkeys(BASE, "")
    if any(others):
        said["others"] = f"the answer calls {', '.join(max(others))}"
    if not all(kept):
        said["kept"] = f"on rank {kept.index(False)} `t` has other values than before"
    for rank, result in enumerate(results):
        if isinstance(result, Tensor) and result.dtype != inputs[0].dtype and not said["dtype"]:
            got, own = (str(t.dtype).removeprefix("torch.") for t in (result, inputs[0]))
            said["dtype"] = f"rank {rank} returned {got}, and `t` is {own}"
    return Run(said, results, logs)


def on_rank(answer: Callable, inputs: Sequence[Tensor], more: tuple) -> tuple:
    mine, called = inputs[dist.get_rank()], set()
    before, noting = mine.clone(), {name: noted(name, called) for name in FINISHED}
    patched = mock.patch.multiple(collectives, **noting)
    zeros = mock.patch.object(Tensor, "new_empty", Tensor.new_zeros)  # unwritten, it is the same in every run
    with patched, zeros, record_traffic() as log, record_messages() as events:
        result = answer(mine, *more)
    others = {row.collective for row in log.traffic.rows} - {"send"}
    torchs = {f"{name} of torch.distributed" for name in others}
    result = result.detach().clone() if isinstance(result, Tensor) else result
    return result, torch.equal(mine, before), events, sorted(torchs | called)


def noted(name: str, called: set[str]) -> Callable:
    """The course's own collective, which notes that it was called."""
    original = getattr(collectives, name)

    def noting(*args, **named):
        called.add(f"the course's own {name}")
        return original(*args, **named)

    return noting
