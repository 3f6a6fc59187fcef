"""The picture of what autograd keeps of a token."""

import pytest

from course_lib.chapters.kept_for_backward import plot_kept
from simulator.plots.picture import smallest_text


def test_the_sentence_says_every_part_even_one_too_thin_to_be_seen():
    picture = plot_kept({"LoRA": {"input of GELU": 1536, "what A gives": 16}})
    assert "LoRA: input of GELU 1,536, what A gives 16, 1,552 in all" in picture.alt


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="at least one row"):
        plot_kept({})


def test_what_a_row_does_not_keep_stands_there_as_an_empty_box():
    picture = plot_kept(
        {"trained": {"input of W": 400, "input of GELU": 800}, "frozen": {"input of GELU": 800}}
    )
    assert picture.svg.count("stroke-dasharray") == 1
    assert smallest_text(picture.svg) >= 11
