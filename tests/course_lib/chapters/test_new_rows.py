"""Chapter 25's new rows: still alike, and caught up."""

import pytest
import torch

from course_lib.chapters.new_rows import alike, plot_catching_up, reaches
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.text.extend import with_new_rows
from simulator.plots.picture import smallest_text


def test_rows_at_one_mean_are_alike_until_one_changes():
    model = with_new_rows(Llama(LlamaConfig.tiny(num_hidden_layers=1)), ["猫", "咖", "啡"], "mean of all")
    assert alike(model, 256) == 3
    with torch.no_grad():
        model.lm_head.weight[257] += 0.01
    assert alike(model, 256) == 2


def test_a_loss_is_reached_between_two_steps():
    assert reaches([9, 7, 6], 6.5, every=10) == 15
    with pytest.raises(ValueError, match=r"never reaches 5\.00"):
        reaches([9, 7, 6], 5, every=10)


def test_the_picture_says_where_the_lines_meet():
    picture = plot_catching_up({"old": [7.0, 6.8, 6.4, 6.0], "new": [9.0, 6.5, 5.5, 5.0]}, every=100)
    assert picture.alt.endswith("new: from 9.0 to 5.0. 6.0 after 300 steps, and after 150.")
    assert smallest_text(picture.svg) >= 11
    with pytest.raises(ValueError, match="2 or 3 curves"):
        plot_catching_up({"old": [7.0, 6.0]}, every=100)
