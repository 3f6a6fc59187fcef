"""One step of ZeRO over numbers: the right lines, what stands there at first, and the long way."""

import torch.distributed as dist

from course_lib.by_hand.zero import all_gather, reduce_scatter
from course_lib.chapters.zero_by_numbers import plot_step


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
    assert told("all-reduce").startswith("right weights on 4 of 4 ranks; a rank sends 9 numbers")


def test_without_line_b_no_rank_has_the_right_weights():
    assert told("nothing", gathers=False).startswith("right weights on 0 of 4 ranks; a rank sends 0 numbers")
    assert told("reduce-scatter", gathers=False).startswith("right weights on 0 of 4 ranks; a rank sends 3")


def test_lines_that_know_the_result_miss_other_gradients():
    assert told("constants").startswith(
        "right weights on 4 of 4 ranks, with other gradients on 0; a rank sends 3"
    )
