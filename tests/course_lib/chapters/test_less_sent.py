"""Chapter 19's runs: what they send is what was predicted, and the residual's rule is the only thing that changes."""

from math import inf

import pytest
import torch

from course_lib.by_hand.compress import TopK
from course_lib.chapters.less_sent import (
    Everything,
    InBf16,
    learn,
    plot_runs,
    plot_sent_over_ranks,
    plot_steps_to,
    plot_thin,
    sent_on,
    steps_to,
    two_weights,
)
from course_lib.runtime import launch


class Forgets(TopK):
    def after_backward(self):
        super().after_backward()
        self.residuals = [torch.zeros_like(w) for w in self.parameters]


def some_steps():
    methods = {
        "whole gradients": (Everything, {}),
        "bf16": (InBf16, {}),
        "top-k": (TopK, {"density": 0.01}),
        "forgets": (Forgets, {}),
    }
    return learn(methods, steps=4)


def test_residuals_change_what_is_learned_and_all_send_what_was_predicted():
    found = launch(some_steps, 2)[0]
    assert found["forgets"][0] != found["top-k"][0]
    assert found["forgets"][1] == found["top-k"][1]
    assert found["bf16"][0] != found["whole gradients"][0]
    assert found["bf16"][0] == pytest.approx(found["whole gradients"][0], rel=1e-2)
    assert found["bf16"][1] == found["whole gradients"][1] / 2
    predicted = sent_on(2)
    for run, name in (("whole gradients", "whole gradients"), ("top-k", "top-k, 1 %")):
        assert found[run][1] == pytest.approx(predicted[name])


def test_top_k_grows_with_the_ranks_and_passes_the_others():
    assert sent_on(128)["top-k, 1 %"] > sent_on(128)["whole gradients"]
    assert sent_on(64)["PowerSGD, r = 2"] < 1.05 * sent_on(8)["PowerSGD, r = 2"] * (63 / 64) / (7 / 8)
    assert "64 ranks" in plot_sent_over_ranks().alt


def test_steps_are_counted_to_a_loss():
    assert steps_to([2, 0.5, 0.4]) == 2
    assert steps_to([2, 1]) == inf


def test_a_run_is_drawn_over_its_steps_or_their_seconds():
    found = {"whole gradients": ([2, 0.5], 8e3), "1 %": ([2, 5e32, 0.4], 1e3)}
    said = plot_runs(found, {"whole gradients": (500, 0, 500), "1 %": (500, 490, 10)}).alt
    assert said == "Loss over seconds; seconds to 0.5: whole gradients 2.000, 1 % 3.000."
    assert plot_runs(found).alt == "Loss over steps: whole gradients 8 kB a step, 1 % 1 kB a step."


def test_steps_of_several_runs_are_drawn_with_their_mean():
    said = plot_steps_to({"whole gradients": [68, 71], "0.1 %": [119, 122]}).alt
    assert said == "Mean steps to the loss 0.5: whole gradients 70, 0.1 % 120."


class Mine(TopK):
    line: str

    def after_backward(self):
        for i, w in enumerate(self.parameters):
            assert w.grad is not None
            wanted = w.grad + self.residuals[i]
            w.grad, sent = self.exchange(i, wanted)
            exec(self.line, {"torch": torch}, locals() | {"self": self})


LINES = {
    "wanted - sent": "Nothing is lost: all is sent or kept.",
    "wanted.masked_fill(sent != 0, 0)": "Nothing is lost: all is sent or kept.",
    "torch.zeros_like(sent)": "In step 1, 0.3 of B's gradient is neither sent nor kept.",
    "wanted": "In step 1, 1.0 of A's gradient is kept, though it was sent or kept already.",
    "wanted - w.grad": "In step 1, 0.5 of A's gradient is kept, though it was sent or kept already. "
    "The mean also holds what the other rank has sent.",
    "w.grad - sent": "In step 1, 0.5 of A's gradient is neither sent nor kept. "
    "Since the line above, w.grad is the mean.",
    "wanted - send": "In step 1 your line fails: name 'send' is not defined.",
    "None": "In step 1 your line fails: a residual must be a tensor with the gradient's shape.",
}


def all_lines():
    methods = [type("Line", (Mine,), {"line": f"self.residuals[i] = {line}"}) for line in LINES]
    return [two_weights(method)[0] for method in methods]


def test_a_line_of_the_learner_is_told_what_it_loses():
    assert launch(all_lines, 2)[0] == list(LINES.values())


def test_a_step_of_power_sgd_is_drawn_with_the_row_that_both_ranks_get():
    G = torch.tensor([[[2.0, 4, 6], [1, 2, 3], [2, 4, 6]], [[6.0, 4, 2], [3, 2, 1], [6, 4, 2]]])
    column = torch.tensor([2.0, 1, 2]) / 3
    rows = column @ G
    assert "row [6.0, 6.0, 6.0]" in plot_thin(G, G[:, :, 0], column, rows, rows.mean(0).round()).alt
