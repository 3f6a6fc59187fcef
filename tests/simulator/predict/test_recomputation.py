import pytest

from course_lib.chapters.checkpoints import Chain, plot_checkpoints
from simulator.predict.recomputation import (
    Segment,
    equal_layers,
    peak_bytes,
    step_history,
)


def repeated_part(segments):
    """Work done twice, as a part of one step's forward and backward."""
    return sum(s.repeated for s in segments) / sum(3 * s.forward for s in segments)


def test_what_is_alive_step_by_step():
    history = step_history([Segment(2, 10, 3, 3), Segment(5, 1, 2, 0)])
    assert [held.activations for held in history.held] == [0, 2, 7, 8, 12, 0]
    assert history.times == (0, 0, 3, 5, 9, 18)
    assert history.peak == (12, 9, "backward 0")


def test_parts_come_back_one_by_one():
    history = step_history([Segment(2, 10, forward=3, repeated=3, parts=(3, 8, 1))])
    assert [held.activations for held in history.held] == [0, 2, 3, 11, 12, 12, 11, 3, 0]
    assert history.times == (0, 0, 3, 4, 5, 6, 8, 10, 12)
    assert history.actions[2:8] == ("recompute 0",) * 3 + ("backward 0",) * 3
    with pytest.raises(ValueError, match="add up to kept \\+ again, 12 here"):
        Segment(2, 10, parts=(3, 8))


@pytest.mark.parametrize("saved", [1, 4])
def test_equal_layers_have_their_least_peak_near_the_root(saved):
    peaks = {k: peak_bytes(equal_layers(64, k, saved, 1)) for k in (1, 2, 4, 8, 16, 32, 64)}
    assert min(peaks, key=peaks.get) == 8 * saved**0.5  # the root of layers · saved / kept
    assert peaks[8] == 8 + 8 * saved


def test_seven_layers_in_three_segments():
    assert [s.repeated for s in equal_layers(7, 3, 1, 1)] == [3, 2, 2]
    with pytest.raises(ValueError, match="7 layers can be cut into 1 to 7 segments, not 8"):
        equal_layers(7, 8, 1, 1)
    with pytest.raises(ValueError, match="at least one segment"):
        step_history([])


def test_the_picture_says_where_the_least_is():
    peaks = {k: peak_bytes(equal_layers(16, k, 1e6, 1e6)) for k in range(1, 17)}
    picture = plot_checkpoints(Chain("16 layers", peaks, {4: 8.2e6}), Chain("same", {1: 3e6, 2: 2e6}))
    assert "least at 4, 8 MB" in picture.alt
    assert "falls all the way; least at 2" in picture.alt
    assert "least at 4: 8 MB" in picture.svg
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_checkpoints()
