"""The picture of a text cut into tokens."""

import pytest

from course_lib.chapters.cut_text import draw_pieces, draw_rows
from simulator.plots.picture import smallest_text


def test_tokens_are_counted_and_named_by_kind():
    cut = ["▁", ["猫", "<0xE5>", "<0x92>", "<0xAA>"], "<0xE5>", "<0x92>", "<0x96>", "[UNK]"]
    picture = draw_pieces({"ours": cut})
    said = "ours: 6 tokens, 3 of them bytes, 1 of them added, 1 of them unknown: "
    assert picture.alt == f"{said}▁ | 猫咪 | E5 | 92 | 96 | [UNK]."
    assert picture.svg.count("<rect") == 6
    assert ">咖<" in picture.svg  # below its bytes
    assert smallest_text(picture.svg) >= 11


def test_a_piece_of_two_bytes_stands_on_the_third_and_markup_is_text():
    picture = draw_pieces({"Tekken": ["<E5><92>", "<96>", "<b>", "\n"]})
    assert picture.alt == "Tekken: 4 tokens, 2 of them bytes: E5 92 | 96 | <b> | ⏎."
    assert ">咖<" in picture.svg
    assert "<b>" not in picture.svg


def test_a_long_text_takes_more_rows():
    def height(n):
        return float(draw_pieces({"a": ["word"] * n}).svg.split('height="')[1].split('"')[0])

    assert height(2) == height(10) < height(40)


def test_nothing_cannot_be_drawn():
    with pytest.raises(ValueError, match="at least one tokenizer"):
        draw_pieces({})


def test_a_piece_has_a_row_in_both_matrices():
    picture = draw_rows({"ours": 300, "more": 100}, 64, "猫")
    said = "each with 300 rows of ours, 100 rows of more, 64 numbers wide; 猫 has a row in both."
    assert picture.alt == f"Embedding and output matrix, {said}"
    assert picture.svg.count("<rect") == 6
    assert smallest_text(picture.svg) >= 11
    with pytest.raises(ValueError, match="at least one row"):
        draw_rows({}, 64, "猫")
