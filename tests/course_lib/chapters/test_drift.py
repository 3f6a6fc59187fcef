"""Chapter 09's curves of a run whose copies drift, and its picture of two nodes."""

import pytest

from course_lib.chapters.drift import plot_drift
from course_lib.chapters.two_nodes import plot_two_nodes
from simulator.inputs.known_devices import GPUS

RUNS = {"one device": [6.0, 3.0], "rank 0": [3.0, 3.0]}


def test_two_pictures_have_the_same_axis_of_distances():
    def top(apart):
        return plot_drift(RUNS, apart, farthest=0.3)._figure.axes[1].get_ylim()[1]

    right, wrong = {name: [0.0, 0.0] for name in RUNS}, {"one device": [0.0, 0.0], "rank 0": [0.1, 0.3]}
    assert top(right) == top(wrong) == pytest.approx(0.33)
    assert "rank 0 0.30" in plot_drift(RUNS, wrong, farthest=0.3).alt


@pytest.mark.parametrize("apart", [{}, {"one device": [0.0]}])
def test_other_runs_on_the_right_are_refused(apart):
    with pytest.raises(ValueError, match="same 1 to"):
        plot_drift(RUNS, apart, farthest=0.3)


def test_all_cards_of_a_node_carry_a_part_of_a_message():
    picture = plot_two_nodes(GPUS["a100-80gb"], message=256e6)
    written = [text.get_text() for text in picture._figure.axes[0].texts]
    # 15/16 of 256 MB, twice, are 480: in each of eight rings a GPU passes on 60, in one of them through its card
    assert written.count("card") == 16
    assert {"GPU 0", "piece 8", "← 60 MB", "→ 60 MB", "NVLink, 252 GB/s, for all 8 rings"} < set(written)
    assert "Of each piece a GPU sends 60 MB" in picture.alt
