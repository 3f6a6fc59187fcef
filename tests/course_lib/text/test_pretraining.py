"""Every objective hides the same tokens, and the kept losses are what the chapter reads."""

import random
from itertools import pairwise

import pytest
import torch

from course_lib.text import pretraining
from course_lib.text.pretraining import HIDDEN, LENGTH, OBJECTIVES, SPANS, batch_of, draw_spans

TEXT = torch.arange(1, 2 * LENGTH + 1).view(2, LENGTH)


@pytest.mark.parametrize("seed", range(20))
def test_spans_hide_so_many_tokens_and_lie_apart(seed):
    spans = draw_spans(random.Random(seed))
    assert len(spans) == SPANS
    assert sum(end - start for start, end in spans) == HIDDEN
    edges = [0, *(edge for span in spans for edge in span), LENGTH]
    assert all(a < b for a, b in pairwise(edges)), edges


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_batch_asks_for_the_hidden_tokens_of_each_text(objective):
    spans = [(2, 4), (10, 16), (40, 41)]
    batch = batch_of(objective, TEXT, spans)
    hidden = [i for start, end in spans for i in range(start, end)]
    assert torch.equal(batch.targets[:, batch.hidden], TEXT[:, hidden])
    assert batch.inputs.shape == batch.targets.shape == (2, batch.mask.shape[1])
    if objective != "causal, GPT":
        glm = batch.inputs[:, : LENGTH - HIDDEN + SPANS]
        read = glm if "GLM" in objective else batch.source if batch.source.shape[1] else batch.inputs
        assert not torch.isin(read, TEXT[:, hidden]).any(), "what is hidden must not be read"


def test_kept_losses_are_those_of_every_objective():
    kept = pretraining.kept()
    assert list(kept) == list(OBJECTIVES)
    assert all(len(losses) == 1 + pretraining.STEPS // pretraining.EVERY for losses in kept.values())
    assert all(losses[-1] < losses[0] for losses in kept.values())


def test_an_unknown_objective_is_refused():
    with pytest.raises(ValueError, match="choose one of causal"):
        pretraining.pretrain("ELECTRA")
