"""One step of ZeRO over numbers: the right lines, what stands there at first, and the long way."""

import pytest
import torch.distributed as dist

from course_lib.chapters.refused import Refused
from course_lib.chapters.zero_by_numbers import all_gather, plot_step, reduce_scatter


def told(mean_of, gathers=True):
    """What the picture says of a line A and a line B: local functions, which ranks get by value."""

    def before_update(mean, gradient, rank):
        if mean_of == "reduce-scatter":
            reduce_scatter(mean, gradient / 4)
            return
        if mean_of == "constants":
            mean.fill_([6, 12, 18, 24][rank])
            return
        if mean_of == "all-reduce":
            dist.all_reduce(gradient)
        mean.copy_(gradient[rank] / 4)

    def after_update(weights, shard):
        if gathers:
            all_gather(weights, shard)

    return plot_step(before_update, after_update).alt


def test_the_two_halves_send_as_much_as_an_all_reduce():
    said = told("reduce-scatter")
    assert said.startswith("right weights on 4 of 4 ranks; a rank sends 6 numbers, with DDP 6")
    assert "weights 4 20 30 40, 10 8 30 40, 10 20 12 40, 10 20 30 16" in said  # after the update


def test_an_all_reduce_in_line_a_is_right_and_sends_half_as_much_again():
    assert told("all-reduce").startswith(
        "right weights on 4 of 4 ranks; a rank sends 9 numbers, with DDP 6, 3 too many."
    )


def test_without_line_b_no_rank_has_the_right_weights():
    assert told("nothing", gathers=False).startswith("right weights on 0 of 4 ranks; a rank sends 0 numbers")
    assert told("reduce-scatter", gathers=False).startswith("right weights on 0 of 4 ranks; a rank sends 3")


def test_lines_that_know_the_result_miss_other_gradients():
    assert told("constants").startswith(
        "right weights on 4 of 4 ranks, with other gradients on 0; a rank sends 3"
    )


@pytest.mark.parametrize(
    ("line_a", "line_b", "said"),
    [
        (
            "(gradient, mean)",
            "(weights, shard)",
            "1 number and an input of 4; here they have 4 and 1: swap them.",
        ),
        ("(mean, mean)", "(weights, shard)", "1 number and an input of 4; here they have 1 and 1."),
        (
            "(mean, gradient)",
            "(shard, weights)",
            "4 numbers and an input of 1; here they have 1 and 4: swap them.",
        ),
        ("(mean, gradient)", "(weights, weights)", "4 numbers and an input of 1; here they have 4 and 4."),
    ],
)
def test_a_wrong_size_is_told_before_gloo_dies_of_it(line_a, line_b, said):
    names = {"reduce_scatter": reduce_scatter, "all_gather": all_gather}
    first = eval(f"lambda mean, gradient, rank: reduce_scatter{line_a}", names)
    second = eval(f"lambda weights, shard: all_gather{line_b}", names)
    with pytest.raises(Refused, match=r"takes an output of ") as refused:
        plot_step(first, second)
    assert str(refused.value).endswith(said)
