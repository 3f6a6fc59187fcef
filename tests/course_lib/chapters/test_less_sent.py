"""Chapter 19's runs: what they send is what was predicted, and the residual's rule is the only thing that changes."""

import pytest
import torch

from course_lib.by_hand.compress import DiLoCo, PowerSGD, TopK
from course_lib.chapters.less_sent import (
    Everything,
    Half,
    choices,
    learn,
    plot_changed,
    plot_choices,
    plot_sent_over_ranks,
    plot_thin,
    sent_on,
)
from course_lib.chapters.refused import Refused
from course_lib.runtime import launch


class Forgets(TopK):
    def after_backward(self):
        super().after_backward()
        self.residuals = [torch.zeros_like(w) for w in self.parameters]


def some_steps():
    methods = {
        "all numbers": (Everything, {}),
        "top-k": (TopK, {"density": 0.01}),
        "forgets": (Forgets, {}),
        "bf16": (Half, {}),
    }
    return learn(methods, steps=4)


def test_residuals_change_what_is_learned_and_all_send_what_was_predicted():
    found = launch(some_steps, 2)[0]
    assert found["forgets"][0] != found["top-k"][0]
    assert found["forgets"][1] == found["top-k"][1]
    assert found["forgets"][2][-1] < 0.1 < 0.7 < found["all numbers"][2][-1]  # of the weights changed
    assert found["forgets"][2] == sorted(found["forgets"][2])
    assert len(found["forgets"][2]) == 4
    assert "forgets" in plot_changed(found).alt
    assert found["bf16"][1] == found["all numbers"][1] / 2
    assert found["bf16"][0] == pytest.approx(found["all numbers"][0], rel=1e-3)
    predicted = sent_on(2)
    for run, name in (("all numbers", "all numbers"), ("top-k", "top-k, 1 %")):
        assert found[run][1] == pytest.approx(predicted[name])


def test_top_k_grows_with_the_ranks_and_passes_the_others():
    assert sent_on(128)["top-k, 1 %"] > sent_on(128)["all numbers"]
    assert sent_on(64)["PowerSGD, r = 2"] < 1.05 * sent_on(8)["PowerSGD, r = 2"] * (63 / 64) / (7 / 8)
    assert "64 ranks" in plot_sent_over_ranks().alt


def test_choices_send_the_share_that_is_said():
    top_k, power_sgd, rarely = choices(density=0.01, r=2, H=28, thin=0.0045).values()
    assert top_k == (TopK, {"density": 0.01}, 0.08)
    assert power_sgd == (PowerSGD, {"r": 2}, 0.0045)
    assert rarely == (DiLoCo, {"H": 28, "lr": 1.0, "momentum": 0.0}, 1 / 28)
    assert "bf16 368 ms, loss 0.25" in plot_choices({"bf16": (368, 0.25)}, one=122).alt
    for wrong in ({"density": 0}, {"density": 2}, {"r": 0}, {"H": 0}):
        with pytest.raises(Refused, match=next(iter(wrong))):
            choices(**{"density": 0.01, "r": 2, "H": 28, "thin": 0.0045} | wrong)


def test_a_step_of_power_sgd_is_drawn_with_the_row_that_both_ranks_get():
    G = torch.tensor([[[2.0, 4, 6], [1, 2, 3], [2, 4, 6]], [[6.0, 4, 2], [3, 2, 1], [6, 4, 2]]])
    column = torch.tensor([2.0, 1, 2]) / 3
    rows = column @ G
    assert "row [6.0, 6.0, 6.0]" in plot_thin(G, G[:, :, 0], column, rows, rows.mean(0).round()).alt
