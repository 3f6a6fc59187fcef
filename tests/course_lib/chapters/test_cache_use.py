"""The bars of chapter 16's cache: every part with its share, and what was measured."""

import pytest

from course_lib.chapters.cache_use import NO_ROOM, plot_answers, plot_cache_use

WAYS = {
    "regions": {"hold tokens": 20.0, "never filled": 70.0, "free": 10.0},
    "blocks": {"hold tokens": 97.0, "never filled": 2.0, "free": 1.0},
}


def test_each_bar_says_its_shares():
    picture = plot_cache_use(WAYS)
    assert picture.alt == (
        "regions: 20 % hold tokens, 70 % never filled, 10 % free; "
        "blocks: 97 % hold tokens, 2 % never filled, 1 % free."
    )
    assert ">70 %<" in picture.svg
    assert ">2 %<" not in picture.svg  # no room


def test_measured_shares_have_a_line_and_a_key():
    picture = plot_cache_use(WAYS, {"regions": 21.0, "blocks": 96.0})
    assert "measured: 96 % hold tokens" in picture.alt
    assert "tokens, measured" in picture.svg


@pytest.mark.parametrize("ways", [{}, {"a": {}}, {"a": {"b": 1.0}, "c": {"d": 1.0}}])
def test_parts_that_differ_are_refused(ways):
    with pytest.raises(ValueError, match="each with the same parts"):
        plot_cache_use(ways)


def test_answers_fill_regions_or_blocks_and_those_without_room_are_red():
    regions, blocks = (plot_answers([16, 40, 7], room=100, region=region, wide=60) for region in (48, 0))
    assert regions.alt == (
        "2 of 3 answers fit, in regions of 48 slots; of the cache's 100 slots 63 are for tokens."
    )
    assert (
        blocks.alt
        == "3 of 3 answers fit, in 5 blocks of 16 slots; of the cache's 100 slots 63 are for tokens."
    )
    assert NO_ROOM in regions.svg
    assert NO_ROOM not in blocks.svg


@pytest.mark.parametrize(("lengths", "region"), [([], 8), ([9, 3], 8)])
def test_an_answer_longer_than_its_region_is_refused(lengths, region):
    with pytest.raises(ValueError, match="at most 8 tokens"):
        plot_answers(lengths, 100, region)
