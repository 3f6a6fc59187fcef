"""Memory over time, for every schedule, against counts that were made differently."""

import pytest

from simulator.ledgers.memory import MemoryBreakdown
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import SCHEDULES, make_schedule
from simulator.predict.memory_over_time import replay


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (3, 2), (4, 8)])
def test_equal_bytes_and_nothing_kept_for_w_count_the_microbatches_in_flight(name, ranks, microbatches):
    execution = simulate(make_schedule(name, ranks, microbatches), 1, 1.5, 0.5, transfer=0.25)
    histories = replay(execution, saved=10, kept=0)
    assert [history.peak.bytes for history in histories] == [10 * n for n in execution.peak_in_flight]
    assert [history.held[-1].total for history in histories] == [0] * ranks


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_peak_is_what_a_count_at_every_moment_finds(name):
    schedule = make_schedule(name, 3, 7)
    saved = [5 + 3 * stage for stage in range(schedule.stages)]
    kept = [2 + stage for stage in range(schedule.stages)]
    execution = simulate(schedule, 1, 1.25, 0.75, transfer=0.5)
    for rank, history in enumerate(replay(execution, saved, kept)):
        rows = list(zip(schedule.actions[rank], execution.starts[rank], execution.ends[rank], strict=True))
        totals = []
        for moment in execution.starts[rank]:
            total = 0
            for (kind, stage, _), start, end in rows:
                if kind == "F" and start <= moment:
                    total += saved[stage]
                elif end <= moment:
                    total -= {"F": 0, "BW": saved[stage], "B": saved[stage] - kept[stage], "W": kept[stage]}[
                        kind
                    ]
            totals.append(total)
        assert history.peak.bytes == max(totals)
        at = history.times.index(history.peak.time)
        assert history.peak.action.startswith("F")
        assert history.peak.time in execution.starts[rank]
        assert history.at(history.peak.time).total == pytest.approx(max(totals)), at


def test_zero_bubble_memory_is_the_papers():
    """arXiv:2401.10241, table 2: worker i (from 1) holds (p-i+1) M_B + (i-1) M_W, with H2 (2p-2i+1) and (2i-2)."""
    p, M_B, M_W = 4, 100, 30
    one, two = (
        [history.peak.bytes for history in replay(simulate(make_schedule(name, p, 16)), M_B, M_W)]
        for name in ("zb-h1", "zb-h2")
    )
    assert one == [(p - i + 1) * M_B + (i - 1) * M_W for i in range(1, p + 1)]
    assert two == [(2 * p - 2 * i + 1) * M_B + (2 * i - 2) * M_W for i in range(1, p + 1)]


def test_states_are_there_all_the_time():
    states = [MemoryBreakdown(parameters=1, gradients=2, optimizer_states=3, activations=4, buffers=5)] * 2
    history = replay(simulate(make_schedule("1f1b", 2, 2)), 10, states=states)[1]
    assert history.held[0] == states[1]
    assert history.peak[:] == (25, 1, "F0")
    assert history.at(1.5) == MemoryBreakdown(1, 2, 3, 14, 5)
    assert history.at(100) == states[1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"saved": [1, 2, 3]}, "saved must be one number of bytes, or one for each of 2 stages"),
        ({"saved": -1}, "saved must be a number of at least 0, not -1"),
        ({"saved": 1, "kept": 2}, "kept bytes are part of the saved ones, so 2 is too many"),
        ({"saved": 1, "states": [MemoryBreakdown()]}, "states must be one for each of 2 ranks, not 1"),
    ],
)
def test_refuses_in_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        replay(simulate(make_schedule("1f1b", 2, 2)), **options)
