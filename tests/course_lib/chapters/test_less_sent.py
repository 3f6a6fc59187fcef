"""Chapter 19's runs: what they send is what was predicted, and the residual's rule is the only thing that changes."""

import pytest
import torch

from course_lib.by_hand.compress import DiLoCo, TopK
from course_lib.chapters.less_sent import (
    Everything,
    learn,
    method_by_hand,
    plot_changed,
    plot_sent_over_ranks,
    sent_on,
)
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
    predicted = sent_on(2)
    for run, name in (("all numbers", "all numbers"), ("top-k", "top-k, 1 %")):
        assert found[run][1] == pytest.approx(predicted[name])


def test_top_k_grows_with_the_ranks_and_passes_the_others():
    assert sent_on(128)["top-k, 1 %"] > sent_on(128)["all numbers"]
    assert sent_on(64)["PowerSGD, r = 2"] < 1.05 * sent_on(8)["PowerSGD, r = 2"] * (63 / 64) / (7 / 8)
    assert "64 ranks" in plot_sent_over_ranks().alt


def test_a_method_by_hand_sends_the_share_that_was_asked_for():
    assert method_by_hand("top-k", 0.08) == (TopK, {"density": 0.01})
    assert method_by_hand("PowerSGD", sent_on(8)["PowerSGD, r = 2"] / sent_on(8)["all numbers"])[1] == {
        "r": 2
    }
    assert method_by_hand("PowerSGD", 0.031)[1] == {"r": 2}  # 3 would send more
    assert method_by_hand("PowerSGD", 1e-6)[1] == {"r": 1}
    assert method_by_hand("whole gradients", 1.0) == (Everything, {})
    assert method_by_hand("whole gradients", 1.0, every=28) == (
        DiLoCo,
        {"H": 28, "lr": 1.0, "momentum": 0.0},
    )
