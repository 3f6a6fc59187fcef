"""The time ledger, measured: what each rank did when, on one clock.

Techniques mark their own work with ``course_lib.runtime.trace``; here is the recorder that listens, and marks
for what cannot mark itself: any model's modules, an optimizer, the buckets of torch's own DDP.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from course_lib.one_device.nested_tensors import tensors_in
from course_lib.runtime import current_device, trace
from simulator.ledgers.timeline import Span, Timeline


class Mark(NamedTuple):
    """A span on this rank, in seconds of its own ``time.monotonic`` (on a GPU, events until recording ends)."""

    lane: str
    name: str
    start: trace.Moment
    end: trace.Moment
    thread: int = 0


class TimelineLog:
    """What one rank did since recording began, in the order in which it ended."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []

    def add(self, lane: str, name: str, start: trace.Moment, end: trace.Moment) -> None:
        self.marks.append(Mark(lane, name, start, end, threading.get_ident()))

    def settle(self) -> None:
        """Turn events of the GPU into seconds (waits for the GPU if there are any), and cut out what was waiting."""
        times = iter(trace.in_seconds([moment for mark in self.marks for moment in (mark.start, mark.end)]))
        # A start by the GPU's clock may lie some microseconds after an end by the processor's: then the start counts.
        self.marks = without_waiting(
            [m._replace(start=(s := next(times)), end=max(s, next(times))) for m in self.marks]
        )

    def __repr__(self) -> str:
        return f"TimelineLog({len(self.marks)} spans)"


def without_waiting(marks: Iterable[Mark], shortest: float = 1e-4) -> list[Mark]:
    """Cut the waits for messages out of the computing around them, and drop the marks of the waits.

    A span of computing becomes two, before and after the wait. A piece of less than a tenth of the longest one is left
    out: it is what hooks do before or after the wait. Two threads of a rank may compute (a pipeline's pair of actions):
    a wait is cut out of its own thread's computing. If that thread marks none around it, as autograd's own on a GPU, it
    is cut out of all.

    Args:
        shortest: seconds; a wait that is not longer is not cut out.
    """
    marks = list(marks)
    waits = sorted(
        (m.start, m.end, m.thread) for m in marks if m.lane == trace.WAITING and m.end - m.start > shortest
    )
    computing = [mark for mark in marks if mark.lane == "compute"]
    its_own = {
        w: any(m.thread == w[2] and m.start <= w[0] and w[1] <= m.end for m in computing) for w in waits
    }
    kept = []
    for mark in marks:
        pieces = [mark] if mark.lane != trace.WAITING else []
        for wait in waits if mark.lane == "compute" else []:
            (start, end, thread), last = wait, pieces[-1]
            if last.start <= start and end <= last.end and (thread == mark.thread or not its_own[wait]):
                pieces[-1:] = [last._replace(end=start), last._replace(start=end)]
        longest = max((piece.end - piece.start for piece in pieces), default=0)
        kept += [piece for piece in pieces if piece.end - piece.start >= longest / 10]
    return kept


@contextmanager
def record_timeline() -> Iterator[TimelineLog]:
    """Keep every span that is marked on this rank, by any thread, inside the ``with``.

    On a GPU a span says when the GPU did the work, not when the work was given to it.
    """
    log = TimelineLog()

    def listener(*mark: Any) -> None:
        log.add(*mark)
        if before is not None:
            before(*mark)

    before = trace.listen(listener)
    try:
        yield log
    finally:
        trace.listen(before)
        log.settle()


def gather_timeline(log: TimelineLog, group: dist.ProcessGroup | None = None) -> Timeline:
    """The marks of every rank on one clock, the earliest start at 0 seconds. Every rank calls it and gets it.

    Without a process group, the timeline of this process alone.
    """
    log.settle()
    if not dist.is_initialized():
        everyone, offsets = [log.marks], [0.0]
    else:
        everyone = [[] for _ in range(dist.get_world_size(group))]
        dist.all_gather_object(everyone, log.marks, group)
        offsets = clock_offsets(group)
    zero = min(
        (m.start - offset for marks, offset in zip(everyone, offsets, strict=True) for m in marks), default=0
    )
    return Timeline(
        Span(rank, mark.lane, mark.name, mark.start - offset - zero, mark.end - offset - zero)
        for rank, (marks, offset) in enumerate(zip(everyone, offsets, strict=True))
        for mark in marks
    )


def clock_offsets(group: dist.ProcessGroup | None = None, rounds: int = 20) -> list[float]:
    """How many seconds each rank's ``time.monotonic`` is ahead of that of the group's rank 0.

    On one machine all processes read the same clock: 0. The first rank of every other machine answers rank 0
    with the time, which lies half-way between question and answer; of some rounds the fastest is right within
    half its own duration (Cristian's algorithm, 1989).
    """
    machines: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(machines, _machine(), group)
    me, box = dist.get_rank(group), torch.zeros(1, dtype=torch.float64, device=current_device())
    found = {machines[0]: 0.0}
    for other, machine in enumerate(machines):
        if machine in found:
            continue
        found[machine] = 0.0  # rank 0 measures it, the others hear of it below
        best = float("inf")
        for _ in range(rounds):
            if me == 0:
                asked = time.monotonic()
                dist.send(box, group=group, group_dst=other)
                dist.recv(box, group=group, group_src=other)
                answered = time.monotonic()
                if answered - asked < best:
                    best = answered - asked
                    found[machine] = box.item() - (asked + answered) / 2
            elif me == other:
                dist.recv(box, group=group, group_src=0)
                box.fill_(time.monotonic())
                dist.send(box, group=group, group_dst=0)
    word = [[found[machine] for machine in machines]]
    dist.broadcast_object_list(word, group=group, group_src=0)
    return word[0]


def _machine() -> str:
    return platform.node()


@contextmanager
def trace_modules(
    model: nn.Module, log: TimelineLog, names: Iterable[str] | Mapping[str, str] | None = None
) -> Iterator[None]:
    """Mark ``F name`` and ``B name`` on the compute lane for the forward and backward of a model's modules.

    The backward of a module runs from the gradient of its output to the gradient of its input, or of its last
    parameter. The model and its results stay as they are; the hooks go with the ``with``.

    Args:
        model: any module.
        log: where the marks go, from ``record_timeline``.
        names: dotted names of submodules, or a mapping from those to shorter ones; by default the model's
            direct children.

    Raises:
        ValueError: the model has no submodule of that name.
    """
    modules = dict(model.named_modules())
    if names is None:
        names = [name for name, _ in model.named_children()]
    labels = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    with ExitStack() as hooks:
        for name, label in labels.items():
            if name not in modules:
                raise ValueError(
                    f"{type(model).__name__} has no submodule {name!r}; it has {', '.join(modules)}"
                )
            for handle in _ModuleTrace(modules[name], label, log).handles:
                hooks.callback(handle.remove)
        yield


class _ModuleTrace:
    """The hooks on one module. Autograd's own module hooks are not used: they forbid in-place operations."""

    def __init__(self, module: nn.Module, label: str, log: TimelineLog) -> None:
        self.label, self.log = label, log
        self.forwards: list[trace.Moment] = []  # starts of the forwards under way
        self.backwards: list[list[trace.Moment]] = []  # times seen in each backward, its start first
        self.handles = [
            module.register_forward_pre_hook(self.before_forward, with_kwargs=True),
            module.register_forward_hook(self.after_forward, with_kwargs=True),
            *(
                p.register_post_accumulate_grad_hook(self.seen)
                for p in module.parameters()
                if p.requires_grad
            ),
        ]

    def before_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self.forwards.append(trace.now())

    def after_forward(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        self.log.add("compute", f"F {self.label}", self.forwards.pop(), trace.now())
        seen: list[trace.Moment] = []
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda _: self.start_backward(seen))
        for tensor in tensors_in((args, kwargs)):
            if tensor.requires_grad:
                tensor.register_hook(lambda _: seen.append(trace.now()))

    def start_backward(self, seen: list[trace.Moment]) -> None:
        seen.append(trace.now())
        if len(seen) == 1:
            self.backwards.append(seen)
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self.end_backward(seen))

    def seen(self, parameter: nn.Parameter) -> None:
        if self.backwards:
            self.backwards[-1].append(trace.now())

    def end_backward(self, seen: list[trace.Moment]) -> None:
        self.log.add("compute", f"B {self.label}", seen[0], seen[-1])
        self.backwards.remove(seen)
        seen.clear()
