import pytest
import torch

from course_lib.models.masks import causal_mask
from course_lib.text.objectives import (
    MASK,
    NOTHING,
    START,
    blanks_of_glm,
    causal,
    masked,
    spans_of_t5,
    whole_text_of_bart,
)

WORDS = ["the", "cat", "sat", "on", "the", "warm", "keyboard"]
SPANS = [(1, 2), (4, 7)]


def test_every_target_of_a_decoder_is_the_next_input():
    for seen in (causal(WORDS), spans_of_t5(WORDS, SPANS), whole_text_of_bart(WORDS, SPANS)):
        assert seen.inputs[1:] == [t for t in seen.targets if t != NOTHING][: len(seen.inputs) - 1]
        assert torch.equal(seen.mask, causal_mask(len(seen.inputs)))


def test_each_objective_asks_for_what_it_should():
    assert causal(WORDS).asked == 6
    assert masked(WORDS, SPANS).asked == 4
    assert masked(WORDS, SPANS).inputs == f"the {MASK} sat on {MASK} {MASK} {MASK}".split()
    t5 = spans_of_t5(WORDS, SPANS)
    assert t5.source == ["the", "<0>", "sat", "on", "<1>"]
    assert t5.targets == ["<0>", "cat", "<1>", "the", "warm", "keyboard", "[E]"]
    bart = whole_text_of_bart(WORDS, SPANS)
    assert bart.source == f"the {MASK} sat on {MASK}".split()
    assert bart.targets == [*WORDS, "[E]"]


def test_barts_source_filled_in_is_the_text():
    removed = iter([WORDS[slice(*span)] for span in SPANS])
    source = whole_text_of_bart(WORDS, SPANS).source
    assert [word for token in source for word in (next(removed) if token == MASK else [token])] == WORDS


def test_glm_fills_its_blanks_at_two_positions():
    glm = blanks_of_glm(WORDS, SPANS, order=[1, 0])
    assert glm.inputs == f"the {MASK} sat on {MASK} {START} the warm keyboard {START} cat".split()
    assert glm.targets == [NOTHING] * 5 + ["the", "warm", "keyboard", "[E]", "cat", "[E]"]
    assert glm.positions == [*((i, 0) for i in range(5)), *((4, j) for j in range(1, 5)), (1, 1), (1, 2)]
    assert len(set(glm.positions)) == len(glm.inputs), "no two tokens stand in the same place"
    assert glm.mask[:5, :5].all()
    assert not glm.mask[:5, 5:].any()
    assert torch.equal(glm.mask[5:, 5:], causal_mask(6))


def test_spans_that_are_not_in_order_are_refused():
    with pytest.raises(ValueError, match="in order"):
        masked(WORDS, [(4, 7), (1, 2)])
