"""The picture of a text cut into tokens."""

import pytest

from course_lib.chapters.cut_text import draw_added, draw_pieces, draw_rows, draw_text, draw_two_rows
from simulator.plots.picture import smallest_text


def test_tokens_are_counted_and_named_by_kind():
    cut = ["▁", ["猫", "<0xE5>", "<0x92>", "<0xAA>"], "<0xE5>", "<0x92>", "<0x96>", "[UNK]"]
    picture = draw_pieces({"ours": cut})
    said = "ours: 6 tokens, 3 of them bytes, 1 of them added, 1 of them unknown: "
    assert picture.alt == f"{said}▁ | 猫咪 | E5 | 92 | 96 | [UNK]."
    assert picture.svg.count("<rect") == 6
    assert ">咖</text>" in picture.svg  # below its bytes
    assert smallest_text(picture.svg) >= 11


def test_a_piece_of_two_bytes_stands_on_the_third_and_markup_is_text():
    picture = draw_pieces({"Tekken": ["<E5><92>", "<96>", "<b>", "\n"]})
    assert picture.alt == "Tekken: 4 tokens, 2 of them bytes: E5 92 | 96 | <b> | ⏎."
    assert ">咖</text>" in picture.svg
    assert "<b>" not in picture.svg


def test_a_long_text_takes_more_rows():
    def height(n):
        return float(draw_pieces({"a": ["word"] * n}).svg.split('height="')[1].split('"')[0])

    assert height(2) == height(10) < height(40)


def test_nothing_cannot_be_drawn():
    with pytest.raises(ValueError, match="at least one tokenizer"):
        draw_pieces({})


def test_words_stand_in_english_below_their_boxes():
    picture = draw_pieces(
        {"ours": ["我", "猫", "<0xE5>", "<0x92>", "<0xAA>", "的"]}, {"猫": "a", "猫咪": "cat"}
    )
    assert ">cat</text>" in picture.svg
    assert ">a</text>" not in picture.svg
    assert smallest_text(picture.svg) >= 11


def test_a_text_that_nobody_has_cut_stands_in_characters():
    picture = draw_text("hers", "猫咪", {"猫咪": "cat"})
    assert picture.alt == "hers: 猫 | 咪."
    assert ">cat</text>" in picture.svg


def test_each_piece_has_a_row_to_read_it_and_one_to_guess_it():
    picture = draw_two_rows(["家", "E5"], "猫咪", "4,096 numbers", "32 layers")
    assert picture.alt.endswith("New in both: the rows of 猫咪.")
    assert picture.svg.count(">4,096 numbers</text>") == 2 * 2
    assert picture.svg.count("─▶") == 1 + 3
    assert smallest_text(picture.svg) >= 11
    with pytest.raises(ValueError, match="at least one piece"):
        draw_two_rows([], "猫咪", "", "")


def test_added_words_have_a_row_in_both_matrices():
    picture = draw_added("4 messages", "2 layers", ["猫咪", "我的"], "69% right", "16% right")
    assert (
        picture.alt
        == "A model trained on 4 messages: 69% right. With rows for 猫咪, 我的 in both matrices: 16% right."
    )
    assert picture.svg.count(">猫咪</text>") == 2
    assert smallest_text(picture.svg) >= 11
    with pytest.raises(ValueError, match="at least one word"):
        draw_added("", "", [], "", "")


def test_equal_rows_have_equal_strips():
    picture = draw_rows(
        {"equal": {"a": [0.5, -0.5], "b": [0.5, -0.5]}, "different": {"a": [1, 0], "b": [-1, 0]}}
    )
    assert picture.alt == "Rows of new words. equal: 1 different of 2; different: 2 different of 2."
    assert picture.svg.count("<rect") == 8
    assert picture.svg.count("#cc6a24") == picture.svg.count("#1b64aa") == 1  # 1 and -1; ±0.5 are lighter
    with pytest.raises(ValueError, match="not all 0"):
        draw_rows({})
