"""The solutions of chapter 08, which say what is right, against independent answers."""

import pytest
import torch

from course_lib.grading.material import material


def least_peak(kept, saved):
    """Of the best cuts. best[i]: layers i to the end, given that a segment begins at i."""
    n = len(saved)
    best = [0.0] * (n + 1)
    for i in reversed(range(n)):
        best[i] = kept[i] + min(max(sum(saved[i:k]), best[k]) for k in range(i + 1, n + 1))
    return best[0]


def test_the_cuts_have_the_least_peak_of_all():
    given = material("08.3")
    for case in given.cases(0):
        assert given.observe(given.solution, case)["peak"] == least_peak(case.kept, case.saved)


def autograd_through_the_whole_chain(layers, x, gradient, every):
    leaf = x.clone().requires_grad_()
    y = leaf
    for layer in layers:
        y = layer(y)
    y.backward(gradient)
    return leaf.grad


class SumOfChunks:
    @staticmethod
    def apply(function, size, x, targets):
        return torch.stack(
            [function(*chunk) for chunk in zip(x.split(size), targets.split(size), strict=True)]
        ).sum()


def run_without_checkpoint(block, x, products, budget):
    return block(x)


@pytest.mark.parametrize(
    ("exercise", "plain", "facts"),
    [
        ("08.1", autograd_through_the_whole_chain, ["x", "weights"]),
        ("08.2", SumOfChunks, ["sum", "x", "weights", "drawn"]),
        ("08.4", run_without_checkpoint, ["result", "gradients"]),
    ],
)
def test_the_solution_gives_what_plain_autograd_gives(exercise, plain, facts):
    given = material(exercise)
    for case in given.cases(1):
        if not (getattr(case, "changed", "") or getattr(case, "again", False)):
            got, want = (given.observe(answer, case) for answer in (given.solution, plain))
            assert [given.facts[key].wrong(got[key], want[key]) for key in facts] == [[]] * len(facts)
