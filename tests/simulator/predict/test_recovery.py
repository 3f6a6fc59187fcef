"""The four phases of a recovery, predicted: worked out by hand."""

import pytest

from simulator.predict.recovery import PHASES, predict_recovery


def test_a_recovery():
    timeline = predict_recovery(
        3,
        detect=0.05,
        poll=0.02,
        last_call=0.0,
        connect=0.08,
        state_bytes=1e6,
        bandwidth=1e7,
        step_seconds=0.2,
        steps_lost=2,
    )
    for rank in range(3):
        assert [span.name for span in timeline.of(rank)] == list(PHASES)
        assert [round(span.duration, 6) for span in timeline.of(rank)] == [0.05, 0.1, 0.1, 0.6]
    assert timeline.makespan == pytest.approx(0.85)
