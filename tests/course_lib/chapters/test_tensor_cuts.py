"""What else ranks share: heads of keys and values, and the loss of a vocabulary that is cut."""

import pytest
import torch
import torch.nn.functional as F

from course_lib.chapters.tensor_cuts import plot_cut_loss, plot_shared_heads

LOGITS = [1000.0, 1002.0, 1001.0, 1003.0, 1000.0]


def words(picture):
    return [text.get_text() for text in picture._figure.axes[0].texts]


def test_ranks_with_the_same_head_share_a_bracket():
    shown = words(plot_shared_heads([((0, 1), 0), ((2, 3), 0), ((4, 5), 1)]))
    assert [text for text in shown if text.startswith("KV")] == ["KV0", "KV0", "KV1", "KV1"]
    assert [text for text in shown if "adds up" in text] == ["an f adds up the gradient of KV0"]


def test_the_sums_of_the_ranks_give_the_loss():
    picture = plot_cut_loss(LOGITS, 1, [2, 1, 1, 1])
    loss = F.cross_entropy(torch.tensor([LOGITS]), torch.tensor([1]))
    assert picture.alt.endswith(f" = {loss:.3g}.")
    assert "0 on all but rank 0" in picture.alt
    shown = words(picture)
    assert shown[-4:] == ["1003", "1.6", "−1", "−9"]
    assert shown.count("1002") == 2  # the target's logit, and the largest of rank 0


@pytest.mark.parametrize(
    ("target", "sizes", "message"),
    [
        (5, [2, 1, 1, 1], "5 words on ranks and target 5 do not fit 5 logits"),
        (1, [2, 1, 1], "4 words on ranks"),
        (1, [1] * 5, "1 to 4 ranks, not 5"),
    ],
)
def test_what_does_not_fit_is_refused(target, sizes, message):
    with pytest.raises(ValueError, match=message):
        plot_cut_loss(LOGITS, target, sizes)


def test_without_ranks_there_is_nothing_to_draw():
    with pytest.raises(ValueError, match="1 to 4 ranks, not 0"):
        plot_shared_heads([])
