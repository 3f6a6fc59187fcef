"""The picture of what autograd keeps of a token."""

import pytest

from course_lib.chapters.kept_for_backward import plot_kept


def test_the_sentence_says_every_part_even_one_too_thin_to_be_seen():
    picture = plot_kept({"LoRA": {"input of GELU": 1536, "what A gives": 16}})
    assert "LoRA: input of GELU 1,536, what A gives 16, 1,552 in all" in picture.alt


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="at least one row"):
        plot_kept({})
