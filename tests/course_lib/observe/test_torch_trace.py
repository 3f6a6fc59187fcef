"""What is read from traces of PyTorch's profiler is what the course's own marks say of the same steps."""

import time
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
import torch.distributed._functional_collectives as functional
from click.testing import CliRunner
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import Work
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from course_lib.data_parallel.ddp import DDP
from course_lib.observe.ledgers.timeline import gather_timeline, record_timeline, trace_modules
from course_lib.observe.torch_trace import record_torch_trace
from course_lib.runtime import launch, trace
from course_lib.train.cli import main
from simulator.trace.files.flight_recorder import read_dump
from simulator.trace.files.intervals import difference, length, union
from simulator.trace.files.rank import read_rank
from simulator.trace.measured import measure

LATE = 0.15  # seconds that rank 1 sleeps in every block: the waits are long beside what a busy machine adds to them
STEPS, TRACED = 6, 3


class Late(nn.Module):
    def forward(self, x):
        time.sleep(LATE * dist.get_rank())
        return x


def block():
    return nn.Sequential(nn.Linear(64, 128), Late(), nn.ReLU(), nn.Linear(128, 64))


def model():
    return nn.Sequential(block(), block())


def training(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        module(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()

    return step


def fsdp(mesh: DeviceMesh):
    whole = model()
    for each in whole:
        fully_shard(each, mesh=mesh)
    return training(fully_shard(whole, mesh=mesh))


def tensor_parallel(mesh: DeviceMesh):
    styles = {"0": ColwiseParallel(), "3": RowwiseParallel()}
    return training(
        parallelize_module(
            model(), mesh, {f"{i}.{name}": style for i in range(2) for name, style in styles.items()}
        )
    )


def pipeline(mesh: DeviceMesh):
    rank = dist.get_rank()
    stage = PipelineStage(block(), rank, 2, torch.device("cpu"), group=mesh.get_group())
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda output, target: (output - target).square().mean())
    x = torch.randn(16, 64)
    return lambda: schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == 1 else {}))


@contextmanager
def marked_waits():
    """PyTorch's own code marks its waits for messages as the course's does."""

    def marked(wait):
        def waiting(*args, **kwargs):
            with trace.waiting():
                return wait(*args, **kwargs)

        return waiting

    with (
        mock.patch.object(Work, "wait", marked(Work.wait)),
        mock.patch.object(functional, "wait_tensor", marked(functional.wait_tensor)),
    ):
        yield


def waited(mesh, make, folder):
    """Seconds a step that this rank waited for messages, by the marks."""
    step, marks = make(mesh), []
    with marked_waits(), record_torch_trace(folder, STEPS) as done:
        for number in range(STEPS):
            traced = STEPS - 1 - TRACED <= number < STEPS - 1
            before = trace.listen((lambda *mark: marks.append(mark)) if traced else None)
            step()
            trace.listen(before)
            done()
    return sum(end - start for lane, _, start, end in marks if lane == trace.WAITING) / TRACED


def read(folder, ranks):
    return [
        read_rank(folder / f"rank{r}.json.gz", r, read_dump(folder / f"rank{r}.flight.json", r).issued())
        for r in range(ranks)
    ]


@pytest.mark.parametrize(
    ("make", "axis"), [(fsdp, "dp"), (tensor_parallel, "tp"), (pipeline, "pp")], ids=["fsdp", "tp", "pp"]
)
def test_pytorch_waits_as_long_as_its_trace_says(tmp_path, make, axis):
    for attempt in range(3):  # a busy machine stops a rank between a mark and what it marks
        folder = tmp_path / str(attempt)
        marked = launch(waited, mesh={axis: 2}, args=(make, folder), quiet=True)
        found = measure(read(folder, 2), {axis: 2})
        if found.ranks[0].exposed[axis] == pytest.approx(marked[0], rel=0.05):
            break
    assert found.steps == TRACED
    assert found.axes == [axis]
    assert found.ranks[0].exposed[axis] == pytest.approx(marked[0], rel=0.05)
    assert marked[0] > LATE
    if axis != "pp":
        assert found.ranks[0].late[axis] > 0.8 * marked[0]
        assert found.ranks[1].blamed[axis][1] > 0.8 * marked[0]


def exposed_by_spans(mesh, folder):
    """Of the course's own DDP: when a bucket was on its way, and no module of the model at work."""
    module = DDP(model(), group=mesh.get_group())
    step = training(module)
    with record_torch_trace(folder, STEPS) as done:
        for number in range(STEPS):
            if number == STEPS - 1 - TRACED:
                recording = record_timeline()
                log = recording.__enter__()
                modules = trace_modules(module, log, {"": "model"})
                modules.__enter__()
            step()
            done()
            if number == STEPS - 2:
                modules.__exit__(None, None, None)
                recording.__exit__(None, None, None)
    timeline = gather_timeline(log)
    busy = {
        lane: union((s.start, s.end) for s in timeline.of(dist.get_rank(), lane))
        for lane in ("communication", "compute")
    }
    return length(difference(busy["communication"], busy["compute"])) / TRACED


def test_the_courses_ddp_is_exposed_as_long_as_its_spans_say(tmp_path):
    for attempt in range(3):  # as above
        folder = tmp_path / str(attempt)
        spans = launch(exposed_by_spans, mesh={"dp": 2}, args=(folder,), quiet=True)
        found = measure(read(folder, 2), {"dp": 2})
        if found.ranks[0].exposed["dp"] == pytest.approx(spans[0], rel=0.05):
            break
    assert found.ranks[0].exposed["dp"] == pytest.approx(spans[0], rel=0.05)
    assert spans[0] > LATE


def test_a_run_of_course_lib_train_is_compared(tmp_path):
    plan = "dp=2,tp=2"
    line = f"--layers 1 --hidden 16 --heads 2 --sequence 8 --steps 4 --plan {plan} --profile {tmp_path}"
    assert CliRunner().invoke(main, line.split()).exit_code == 0
    found = measure(read(tmp_path, 4), {"pp": 1, "dp": 2, "tp": 2})
    assert found.steps == 1
    assert {"dp", "tp"} <= set(found.axes)
    assert all(rank.updating > 0 for rank in found.ranks)
    for rank in found.ranks:
        parts = rank.computing + rank.copying + rank.idle + sum(rank.exposed.values())
        assert parts == pytest.approx(rank.seconds)


def test_too_few_steps_for_a_trace(tmp_path):
    result = CliRunner().invoke(main, f"--steps 3 --profile {tmp_path}".split())
    assert result.exit_code == 2
    assert "--profile needs at least 4 --steps, not 3" in result.output
