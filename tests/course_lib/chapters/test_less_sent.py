"""Chapter 19's runs: what they send is what was predicted, and the residual's rule is the only thing that changes."""

from math import inf

import pytest
import torch

from course_lib.by_hand.compress import TopK
from course_lib.chapters.less_sent import (
    Everything,
    InBf16,
    learn,
    plot_seconds,
    plot_sent_over_ranks,
    plot_steps_to,
    plot_thin,
    sent_on,
    steps_to,
)
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


def test_steps_are_counted_to_a_loss():
    assert steps_to([2, 0.5, 0.4]) == 2
    assert steps_to([2, 1]) == inf


def test_a_run_is_drawn_over_the_seconds_of_its_steps():
    found = {"all numbers": ([2, 0.5], 8.0, [1.0]), "1 %": ([2, 1, 0.4], 1.0, [1.0])}
    said = plot_seconds(found, {"all numbers": (500, 0, 500), "1 %": (500, 490, 10)}).alt
    assert said == "Loss over seconds; seconds to 0.5: all numbers 2.00, 1 % 3.00."


def test_steps_are_drawn_over_bytes():
    took = {
        "whole gradients": {"whole gradients": (3e5, 68)},
        "bf16": {"bf16": (1.5e5, 68)},
        "top-k": {"1 %": (7e3, 73), "0.1 %": (7e2, 119)},
        "PowerSGD": {"r = 4": (2e4, 69)},
    }
    assert plot_steps_to(took).alt.endswith("bf16 68; 1 % 73; 0.1 % 119; r = 4 69.")


def test_a_step_of_power_sgd_is_drawn_with_the_row_that_both_ranks_get():
    G = torch.tensor([[[2.0, 4, 6], [1, 2, 3], [2, 4, 6]], [[6.0, 4, 2], [3, 2, 1], [6, 4, 2]]])
    column = torch.tensor([2.0, 1, 2]) / 3
    rows = column @ G
    assert "row [6.0, 6.0, 6.0]" in plot_thin(G, G[:, :, 0], column, rows, rows.mean(0).round()).alt
