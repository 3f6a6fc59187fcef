"""Changed lines of the by-hand files of chapters 15 and 16: what each of them moves; and their bars."""

import pytest

from course_lib.by_hand import flash_attention as by_hand
from course_lib.by_hand import paged_attention
from course_lib.by_hand.flash_attention import all_scores, in_tiles
from course_lib.chapters.bars import plot_bars
from course_lib.chapters.flash_changes import changed, wrong_by
from course_lib.models.gpt import GPT, GPTConfig


def test_a_sum_that_is_not_rescaled_is_wrong_from_the_second_tile_on():
    errors = wrong_by(changed(by_hand, "x * a.l + y * b.l", "a.l + y * b.l").in_tiles, all_scores, tokens=40)
    assert max(errors[:16]) < 1e-5 < 1e-2 < min(max(errors[16:32]), max(errors[32:]))
    assert max(wrong_by(in_tiles, all_scores, tokens=40)) < 1e-5


def test_without_copy_on_write_a_prompt_with_three_answers_has_fewer_blocks():
    model = GPT(GPTConfig.tiny(num_layers=1))
    forgotten = changed(paged_attention, "if self.users[last] > 1:", "if False:")
    for file, blocks in ((paged_attention, 14), (forgotten, 12)):
        _, cache = file.generate(model, [list(range(20))], samples=3, new_tokens=24)
        assert cache.most == blocks


@pytest.mark.parametrize("old", ["not there", "Tensor"])
def test_a_line_to_change_stands_once(old):
    with pytest.raises(ValueError, match="must stand once"):
        changed(by_hand, old, "")


def test_bars_say_their_amounts_and_refuse_other_names():
    picture = plot_bars({"time, ms": {"a": 2, "b": 0.5}, "sent, MB": {"a": 1, "b": 3210}})
    assert picture.alt == "Bars. time, ms: a 2, b 0.5; sent, MB: a 1, b 3,210."
    for wrong in ({}, {"time": {"a": 1}, "sent": {"b": 1}}, {"time": {"a": -1}}):
        with pytest.raises(ValueError, match=r"same names|at least 0"):
            plot_bars(wrong)
