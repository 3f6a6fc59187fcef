"""Spans of every rank come together on one clock, and hooks mark a model without changing what it computes."""

import time
from itertools import pairwise
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.observe.ledgers import timeline
from course_lib.observe.ledgers.timeline import (
    Mark,
    gather_timeline,
    record_timeline,
    trace_modules,
)
from course_lib.runtime import launch, trace


def takes_turns():
    """Rank 1 works after rank 0 has finished: a barrier stands between them."""
    rank = dist.get_rank()
    with record_timeline() as log:
        if rank == 1:
            dist.barrier()
        with trace.span("compute", f"work {rank}"):
            time.sleep(0.02)
        if rank == 0:
            dist.barrier()
    with trace.span("compute", "not recorded"):
        pass
    return gather_timeline(log)


def test_one_clock_for_all_ranks():
    first, second = launch(takes_turns, ranks=2)
    assert first == second
    work_0, work_1 = first.of(lane="compute")
    assert (work_0.rank, work_0.name, work_1.rank, work_1.name) == (0, "work 0", 1, "work 1")
    assert work_0.start == 0
    assert work_0.duration >= 0.02
    assert work_1.start >= work_0.end


def on_another_machine():
    """Rank 1's clock is 1000 seconds ahead and it claims to stand elsewhere."""
    if dist.get_rank() == 0:
        return timeline.clock_offsets()
    clock = time.monotonic
    ahead = mock.patch.object(time, "monotonic", side_effect=lambda: clock() + 1000)
    with ahead, mock.patch.object(timeline, "_machine", return_value="elsewhere"):
        return timeline.clock_offsets()


def test_another_machines_clock_is_measured():
    first, second = launch(on_another_machine, ranks=2)
    assert first == second
    assert first[0] == 0
    assert first[1] == pytest.approx(1000, abs=0.05)


def test_without_ranks_and_nested():
    with record_timeline() as outer:
        with trace.span("copy", "a"), record_timeline() as inner, trace.span("compute", "b"):
            pass
        with trace.span("compute", "c"):
            pass
    assert [mark.name for mark in inner.marks] == ["b"]
    assert [mark.name for mark in outer.marks] == ["b", "a", "c"]
    assert gather_timeline(inner).of(0)[0].start == 0
    assert trace._listener is None
    assert gather_timeline(timeline.TimelineLog()).spans == ()


def test_waits_are_cut_out_of_computing():
    with record_timeline() as log, trace.span("compute", "work"):
        time.sleep(0.01)
        with trace.waiting():
            time.sleep(0.02)
        time.sleep(0.01)
    first, second = gather_timeline(log).of(0)
    assert first.name == second.name == "work"
    assert min(first.duration, second.duration) >= 0.01
    assert second.start - first.end >= 0.02


def test_only_computing_around_a_wait_is_cut():
    marks = [
        Mark("compute", "around", 0.0, 5.0),
        Mark(trace.WAITING, "for a message", 1.0, 3.0),
        Mark(trace.WAITING, "for a message", 4.0, 4.00001),  # too short to be seen
        Mark("compute", "before", -1.0, 1.0),
        Mark("compute", "waits at its end", 0.7, 3.01),
        Mark("communication", "all-gather", 0.5, 3.0),
    ]
    assert timeline.without_waiting(marks) == [
        Mark("compute", "around", 0.0, 1.0),
        Mark("compute", "around", 3.0, 5.0),
        Mark("compute", "before", -1.0, 1.0),
        Mark("compute", "waits at its end", 0.7, 1.0),
        Mark("communication", "all-gather", 0.5, 3.0),
    ]


def test_a_wait_is_cut_out_of_its_own_threads_computing():
    wait = Mark(trace.WAITING, "for a message", 1.0, 3.0, thread=1)
    one, other = Mark("compute", "F", 0.0, 5.0, thread=1), Mark("compute", "B", 0.0, 5.0, thread=2)
    cut = [(0.0, 1.0), (3.0, 5.0)]
    spans = [(m.name, m.start, m.end) for m in timeline.without_waiting([one, other, wait])]
    assert spans == [("F", *cut[0]), ("F", *cut[1]), ("B", 0.0, 5.0)]
    spans = [(m.name, m.start, m.end) for m in timeline.without_waiting([other, wait])]
    assert spans == [("B", *cut[0]), ("B", *cut[1])], "autograd's thread has no span of its own"


class Sleepy(torch.autograd.Function):
    """The identity; its forward takes 10 ms, its backward 20 ms."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(0.01)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.02)
        return grad


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, scale=1):
        return Sleepy.apply(self.linear(x)) * scale


def slow_model():
    torch.manual_seed(0)
    return nn.Sequential(Slow(), nn.ReLU(inplace=True), Slow())


def test_modules_are_marked_and_not_changed():
    model, x = slow_model(), torch.randn(2, 3)
    with record_timeline() as log, trace_modules(model, log, {"0": "first", "2": "second"}):
        model(x).sum().backward()
    names = ["F first", "F second", "B second", "B first"]
    spans = gather_timeline(log).of(0, "compute")
    assert [span.name for span in spans] == names
    for span, least in zip(spans, [0.01, 0.01, 0.02, 0.02], strict=True):
        assert least <= span.duration < least + 0.1
    for before, after in pairwise(spans):
        assert before.end <= after.start + 1e-3

    untraced = slow_model()
    untraced(x).sum().backward()
    for traced, plain in zip(model.parameters(), untraced.parameters(), strict=True):
        assert torch.equal(traced.grad, plain.grad)
    model(x).sum().backward()
    assert len(log.marks) == 4  # the hooks went with the with


def test_frozen_modules_microbatches_and_inference():
    model, x = slow_model(), torch.randn(2, 3)
    model[0].requires_grad_(False)
    with record_timeline() as log, trace_modules(model, log):
        losses = [model(x).sum(), model(x).sum()]
        for loss in losses:
            loss.backward()
        with torch.no_grad():
            model(x)
    counts = {name: sum(mark.name == name for mark in log.marks) for name in ("F 0", "B 0", "F 2", "B 2")}
    assert counts == {"F 0": 3, "B 0": 0, "F 2": 3, "B 2": 2}


def test_an_unknown_module_is_named():
    traced = trace_modules(slow_model(), timeline.TimelineLog(), ["encoder"])
    with pytest.raises(ValueError, match=r"no submodule 'encoder'; it has .*0.linear"), traced:
        pass
