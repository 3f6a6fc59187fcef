"""A rank judges the step that the reader of chapter 00 mends."""

import pytest
import torch
import torch.distributed as dist

from course_lib.chapters.judged_step import LAYER_1, LAYER_2, judge, verdict
from course_lib.runtime import launch
from course_lib.runtime.errors import RankError

MIXED = [10, 21, 22, 23]
WANTED = "wanted: layer 2 [20, 21, 22, 23], log"


@pytest.mark.parametrize(
    ("rank", "returned", "told"),
    [
        (0, (LAYER_1, LAYER_2), "right"),
        (3, (None, LAYER_2), "right"),
        (3, (LAYER_1, LAYER_2), "right"),
        (3, (None, MIXED), f"wrong: layer 2 is [10, 21, 22, 23]; {WANTED} None"),
        (0, (None, LAYER_2), f"wrong: the log is None; {WANTED} [10, 11, 12, 13]"),
        (0, (MIXED, LAYER_2), f"wrong: the log is [10, 21, 22, 23]; {WANTED} [10, 11, 12, 13]"),
        (0, None, "wrong: step returns the log and layer 2"),
    ],
)
def test_the_first_condition_that_fails_is_named(rank, returned, told):
    assert verdict(rank, returned) == told


def whole(first):
    slices = [torch.empty(1, dtype=torch.int64) for _ in range(4)]
    dist.all_gather(slices, torch.tensor([first + dist.get_rank()]))
    return torch.cat(slices).tolist()


def mended():
    layer_1 = whole(10)
    return layer_1 if dist.get_rank() == 0 else None, whole(20)


def broken():
    log = whole(10) if dist.get_rank() == 0 else None
    return log, whole(20)


def swapped():
    layer_2 = whole(20)
    return whole(10) if dist.get_rank() == 0 else None, layer_2


def judge_mended():
    judge(mended)


def judge_broken():
    judge(broken)


def judge_swapped():
    judge(swapped)


def test_the_mended_step_is_right_on_each_rank(capfd):
    launch(judge_mended, ranks=4, timeout=100)
    assert capfd.readouterr().out.count("] right") == 4


@pytest.mark.parametrize(
    ("judged", "told"), [(judge_broken, "] wrong: layer 2 is [10, 21, 22, 23]"), (judge_swapped, "] right")]
)
def test_a_rank_that_hangs_says_nothing_and_the_others_are_judged(capfd, judged, told):
    with pytest.raises(RankError, match="hang"):
        launch(judged, ranks=4, timeout=100)
    assert capfd.readouterr().out.count(told) == 3
