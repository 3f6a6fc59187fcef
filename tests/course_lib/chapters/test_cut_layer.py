"""Chapter 09's picture of a cut GPT: which sums it draws, and where."""

import pytest

from course_lib.chapters.cut_layer import BORDER, plot_cut_layer


@pytest.mark.parametrize("f", [False, True])
def test_every_cut_part_leaves_through_g_and_enters_through_f(f):
    axis = plot_cut_layer(f)._figure.axes[0]
    written = [text.get_text() for text in axis.texts]
    assert (written.count("g"), written.count("f"), written.count("+")) == (4, 3 * f, 2)
    assert {t.get_position()[1] for t in axis.texts if t.get_text() in ("f", "g")} == {BORDER - 0.01}
    assert {"embedding", "attention", "MLP", "head", "loss"} < set(written)


def test_f_is_told_only_where_it_is_drawn():
    assert "pass f on the way down" in plot_cut_layer(f=True).alt
    assert "pass f" not in plot_cut_layer().alt
