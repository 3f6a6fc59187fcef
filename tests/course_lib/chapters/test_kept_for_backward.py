"""The picture of what autograd keeps of a token."""

import pytest

from course_lib.chapters.kept_for_backward import plot_kept


def test_a_part_too_thin_for_its_name_stands_at_the_end_of_its_bar():
    svg = plot_kept({"LoRA": {"input of GELU": 1536, "what A gives": 16}})._repr_html_()
    assert "LoRA: input of GELU 1,536, what A gives 16, 1,552 in all" in svg


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="at least one row"):
        plot_kept({})
