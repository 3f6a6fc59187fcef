"""Chapter 19's runs: what they send is what was predicted, and the residual's rule is the only thing that changes."""

from math import inf

import pytest
import torch

from course_lib.by_hand.compress import TopK
from course_lib.chapters.less_sent import (
    Everything,
    InBf16,
    learn,
    plot_links,
    plot_sent_over_ranks,
    plot_thin,
    plot_tries,
    sent_on,
    steps_to,
    top_k,
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
        "bf16": (InBf16, {}),
        "top-k": (TopK, {"density": 0.01}),
        "forgets": (Forgets, {}),
    }
    return learn(methods, steps=4)


def test_residuals_change_what_is_learned_and_all_send_what_was_predicted():
    found = launch(some_steps, 2)[0]
    assert found["forgets"][0] != found["top-k"][0]
    assert found["forgets"][1] == found["top-k"][1]
    assert found["forgets"][2][-1] < 0.1 < 0.7 < found["all numbers"][2][-1]  # of the weights changed
    assert found["forgets"][2] == sorted(found["forgets"][2])
    assert len(found["forgets"][2]) == 4
    assert found["bf16"][0] != found["all numbers"][0]
    assert found["bf16"][0] == pytest.approx(found["all numbers"][0], rel=1e-2)
    assert found["bf16"][1] == found["all numbers"][1] / 2
    predicted = sent_on(2)
    for run, name in (("all numbers", "all numbers"), ("top-k", "top-k, 1 %")):
        assert found[run][1] == pytest.approx(predicted[name])


def test_top_k_grows_with_the_ranks_and_passes_the_others():
    assert sent_on(128)["top-k, 1 %"] > sent_on(128)["all numbers"]
    assert sent_on(64)["PowerSGD, r = 2"] < 1.05 * sent_on(8)["PowerSGD, r = 2"] * (63 / 64) / (7 / 8)
    assert "64 ranks" in plot_sent_over_ranks().alt


def test_a_race_counts_steps_to_a_loss_and_draws_those_that_get_there():
    assert steps_to([2, 0.5, 0.4]) == 2
    assert steps_to([2, 1]) == inf
    said = plot_tries({0.01: 0.79, 0.001: 0.56, 1e-4: inf}, goal=0.6).alt
    assert said == "Seconds to the loss: goal 0.6; 0.1 % 0.56; 1 % 0.79."


def test_the_first_on_each_link_is_named():
    took = {
        "whole gradients": {"whole gradients": (3e5, [20.0, 0.2])},
        "bf16": {"bf16": (1.5e5, [10.0, 0.1])},
        "top-k": {"1 %": (7e3, [0.8, 0.3]), "0.1 %": (7e2, [0.6, 0.5])},
        "PowerSGD": {"r = 4": (2e4, [1.4, inf])},
    }
    said = plot_links(took, ["slow", "fast"]).alt
    assert said.endswith("First on slow: 0.1 %, 0.60 s; fast: bf16, 0.10 s.")


@pytest.mark.parametrize("density", [0, 2])
def test_a_density_that_cannot_be_is_refused_in_one_line(density):
    assert top_k(0.01) == (TopK, {"density": 0.01})
    with pytest.raises(Refused, match="density"):
        top_k(density)


def test_a_step_of_power_sgd_is_drawn_with_the_row_that_both_ranks_get():
    G = torch.tensor([[[2.0, 4, 6], [1, 2, 3], [2, 4, 6]], [[6.0, 4, 2], [3, 2, 1], [6, 4, 2]]])
    column = torch.tensor([2.0, 1, 2]) / 3
    rows = column @ G
    assert "row [6.0, 6.0, 6.0]" in plot_thin(G, G[:, :, 0], column, rows, rows.mean(0).round()).alt
