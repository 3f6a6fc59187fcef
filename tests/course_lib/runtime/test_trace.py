"""Spans end when the work is done: on the CPU by the clock, on a GPU by its events. The GPU here is pretended."""

import time

import pytest
import torch

from course_lib.observe.ledgers.timeline import record_timeline
from course_lib.runtime import trace


class Gpu:
    """Streams whose work takes time that the host does not spend, and events that note when they are reached.

    The host's clock is pretended, too, so that a machine with much to do changes nothing: reading it takes a
    microsecond, waiting for the GPU moves it on.
    """

    def __init__(self):
        self.host = 0.0  # seconds
        self.done_at = {"default": 0.0, "of NCCL": 0.0}
        self.current = "default"
        self.waits = {}  # seconds for which the process gets no processor, by the number of the event that it records
        self.recorded = 0

    def monotonic(self):
        self.host += 1e-6
        return self.host

    def launch(self, seconds):
        self.done_at[self.current] = max(self.done_at[self.current], self.host) + seconds

    def event(self, enable_timing):
        return Event(self)

    def synchronize(self):
        self.host = max(self.host, *self.done_at.values())


class Event:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self):
        gpu = self.gpu
        self.reached = max(gpu.done_at[gpu.current], gpu.host)
        gpu.host += gpu.waits.get(gpu.recorded, 0)
        gpu.recorded += 1

    def synchronize(self):
        self.gpu.synchronize()

    def elapsed_time(self, other):
        return 1000 * (other.reached - self.reached)


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    for name, pretended in {
        "is_initialized": lambda: True,
        "Event": gpu.event,
        "synchronize": gpu.synchronize,
        "current_stream": lambda: gpu.current,
        "default_stream": lambda: "default",
    }.items():
        monkeypatch.setattr(torch.cuda, name, pretended)
    monkeypatch.setattr(trace, "time", gpu)
    return gpu


def durations(log):
    return {mark.name: mark.end - mark.start for mark in log.marks}


def test_a_span_on_a_gpu_lasts_as_long_as_its_kernels(gpu):
    with record_timeline() as log:
        for name, seconds in (("first", 0.3), ("second", 0.2)):
            with trace.span("compute", name):
                gpu.launch(seconds)  # returns at once
    assert durations(log) == pytest.approx({"first": 0.3, "second": 0.2}, abs=1e-4)
    first, second = log.marks
    assert second.start == pytest.approx(first.end, abs=1e-4), "its kernel waits for the one before"


def test_a_collective_of_nccl_ends_with_its_kernel(gpu):
    with record_timeline() as log:
        end = trace.begin("communication", "bucket 0")
        gpu.current = "of NCCL"
        gpu.launch(0.4)
        end("the future")  # NCCL calls back at once, on a stream that waits for the kernel
        gpu.current = "default"
    assert durations(log)["bucket 0"] == pytest.approx(0.4, abs=1e-4)


def test_a_collective_of_gloo_ends_when_its_thread_says_so(gpu):
    with record_timeline() as log:
        end = trace.begin("communication", "bucket 0")
        gpu.launch(0.5)  # backward goes on in the meantime
        end("the future")
    assert durations(log)["bucket 0"] < 1e-4, "not the end of the kernels that were launched since"


def test_no_span_is_lost_when_the_process_waits_for_a_processor(gpu):
    gpu.waits = {1: 0.2, 2: 0.3}  # while it looks how the GPU's clock and its own belong together
    with record_timeline() as log:
        end = trace.begin("communication", "bucket 0")  # the event 0
        end("the future")
    (mark,) = log.marks
    assert mark.name == "bucket 0"
    assert mark.start == pytest.approx(0, abs=1e-4), "of several looks the quickest counts"
    assert 0 <= mark.end - mark.start < 1e-4


def test_without_a_gpu_it_is_the_clock():
    with record_timeline() as log, trace.span("compute", "sleep"):
        time.sleep(0.02)
    assert durations(log)["sleep"] >= 0.02
    assert all(isinstance(mark.start, float) for mark in log.marks)
    assert trace.begin("compute", "unheard")() is None
