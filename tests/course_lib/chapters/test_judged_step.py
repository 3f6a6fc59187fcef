"""A rank judges the step that the reader of chapter 00 mends."""

import pytest
import torch
import torch.distributed as dist

from course_lib.chapters.judged_step import judge, verdict
from course_lib.runtime import launch
from course_lib.runtime.errors import RankError

LOG, WRONG, RIGHT = "log, layer 1: [10, 11, 12, 13]", "layer 2: [10, 21, 22, 23]", "layer 2: [20, 21, 22, 23]"


@pytest.mark.parametrize(
    ("rank", "lines", "told"),
    [
        (0, [LOG, RIGHT], "mended"),
        (3, [RIGHT], "mended"),
        (3, [WRONG], "wrong: layer 2"),
        (3, [LOG, RIGHT], "wrong: only rank 0"),
        (0, [RIGHT], "wrong: the log lacks"),
        (0, ["log, layer 1: [10, 21, 22, 23]", RIGHT], "wrong: the log lacks"),
        (0, [LOG], "wrong: layer 2"),
    ],
)
def test_the_first_condition_that_fails_is_named(rank, lines, told):
    assert verdict(rank, lines).startswith(told)


def whole(first):
    slices = [torch.empty(1, dtype=torch.int64) for _ in range(4)]
    dist.all_gather(slices, torch.tensor([first + dist.get_rank()]))
    return torch.cat(slices).tolist()


def mended():
    layer_1 = whole(10)
    if dist.get_rank() == 0:
        print("log, layer 1:", layer_1)
    print("layer 2:", whole(20))


def broken():
    if dist.get_rank() == 0:
        print("log, layer 1:", whole(10))
    print("layer 2:", whole(20))


def judge_mended():
    judge(mended)


def judge_broken():
    judge(broken)


def test_the_mended_step_is_told_on_each_rank(capfd):
    launch(judge_mended, ranks=4, timeout=100)
    told = capfd.readouterr().out
    assert told.count("] mended") == 4
    assert "log, layer 1: [10, 11, 12, 13]" in told


def test_what_a_rank_printed_before_it_hangs_is_seen(capfd):
    with pytest.raises(RankError, match="hang"):
        launch(judge_broken, ranks=4, timeout=100)
    told = capfd.readouterr().out
    assert "log, layer 1: [10, 21, 22, 23]" in told
    assert told.count("wrong: layer 2") == 3
