"""The drawing of where each method of prompt tuning puts its trained vectors."""

import pytest

from course_lib.chapters.trained_vectors import FROM_TRAINED, TRAINED, Places, plot_trained_vectors
from simulator.plots.picture import smallest_text


def test_each_method_has_its_trained_rows():
    picture = plot_trained_vectors()
    assert "prompt tuning: trained vectors in the embeddings;" in picture.alt
    assert "P-tuning v1: the encoder is trained; prefix tuning: the network is trained;" in picture.alt
    assert "LLaMA-Adapter: trained vectors in layer 2, layer 3, each with a gate." in picture.alt
    # prompt tuning 2, two networks, P-tuning v2 3 x 2, LLaMA-Adapter 2 wide ones, the legend 1
    assert picture.svg.count(f"fill: {TRAINED}") == 2 + 2 + 6 + 2 + 1
    assert picture.svg == plot_trained_vectors().svg
    assert smallest_text(picture.svg) >= 11


@pytest.mark.parametrize("methods", [{}, {"two layers": Places(TRAINED, (FROM_TRAINED,) * 2)}])
def test_nothing_to_draw(methods):
    with pytest.raises(ValueError, match="each with 3 layers"):
        plot_trained_vectors(methods)
