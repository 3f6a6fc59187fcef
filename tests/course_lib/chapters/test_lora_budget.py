"""The pictures of LoRA under a budget of memory."""

import pytest

from course_lib.chapters.lora_budget import Line, Tried, plot_tokens_that_fit, plot_tried
from simulator.plots.picture import smallest_text

FULL, LORA = Line(400e6, 100e3), Line(80e6, 100e3)


def test_a_line_ends_where_the_gpu_is_full():
    picture = plot_tokens_that_fit({"full": FULL, "LoRA": LORA}, 8e9, 100_000)
    assert FULL.fit(8e9) == 76_000
    assert FULL.at(76_000) == 8e9
    assert picture.alt.endswith("up to 8 GB. full: 76,000 tokens fit; LoRA: 79,200 tokens fit.")
    assert smallest_text(picture.svg) >= 11


def test_every_choice_is_said_with_its_memory_and_its_answers():
    picture = plot_tried({"all": [Tried(6, 2e9, 0.6), Tried(1, 9e9, None)]}, 8e9)
    assert picture.alt.endswith("all from layer 1: 9 GB, not trained; all from layer 6: 2 GB, 60%.")
    assert smallest_text(picture.svg) >= 11


@pytest.mark.parametrize(
    ("lines", "words"), [({}, "1 to 3 lines"), ({"full": Line(9e9, 1)}, "full before the first token")]
)
def test_lines_that_cannot_be_drawn_are_refused(lines, words):
    with pytest.raises(ValueError, match=words):
        plot_tokens_that_fit(lines, 8e9, 10)


def test_nothing_tried_is_refused():
    with pytest.raises(ValueError, match="with a point"):
        plot_tried({"all": []}, 8e9)
