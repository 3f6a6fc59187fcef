"""The pictures of chapter 15: backward in one tile, and how much of a time is explained."""

import pytest

from course_lib.chapters.flash_pictures import (
    BOXES,
    FLASH,
    NUMBER_BY_NUMBER,
    PRODUCTS,
    REST,
    plot_backward_tile,
    plot_explained,
)
from simulator.plots.picture import smallest_text

COUNTED = {"standard": {"bytes": 26.0, "products": 3.0}, "FlashAttention": {"bytes": 2.0, "products": 3.0}}
MEASURED = {"standard": 42.0, "FlashAttention": 7.0}


def test_backward_of_a_tile_has_five_products_one_of_them_flash_attentions_own():
    picture = plot_backward_tile()
    assert len(PRODUCTS) == 5
    assert {name for one, other, _ in PRODUCTS + NUMBER_BY_NUMBER for name in (one, other)} == {*BOXES}
    own = [t.get_text() for t in picture._figure.axes[0].texts if t.get_color() == FLASH]
    assert own == ["Q Kᵀ", "only FlashAttention"]
    assert smallest_text(picture.svg) >= 11


def test_the_rest_of_a_measured_time_is_grey():
    picture = plot_explained(COUNTED, MEASURED)
    assert "standard, measured 42, of which 16 not counted ms" in picture.alt
    assert "FlashAttention, measured 7, of which 4 not counted ms" in picture.alt
    from matplotlib.colors import to_rgba

    bars = [
        p for p in picture._figure.axes[0].patches if p.get_facecolor() == to_rgba(REST) and p.get_width()
    ]
    assert [bar.get_width() for bar in bars] == [16, 4]


@pytest.mark.parametrize(
    ("measured", "words"),
    [({"standard": 42.0}, "two methods"), (MEASURED | {"standard": 20.0}, "longer than")],
)
def test_what_cannot_be_explained_is_refused(measured, words):
    with pytest.raises(ValueError, match=words):
        plot_explained(COUNTED, measured)
