"""Changed lines of the by-hand files of chapters 15 and 16: what each of them moves; and their bars."""

import re
from functools import reduce

import pytest
import torch

from course_lib.by_hand import flash_attention as by_hand
from course_lib.by_hand import paged_attention
from course_lib.by_hand.flash_attention import attend, merge
from course_lib.chapters.bars import plot_bars
from course_lib.chapters.flash_changes import Kernels, changed, fault_of_tiles, using, wrong_by
from course_lib.models.gpt import GPT, GPTConfig
from simulator.predict.attention_io import standard_forward, total_bytes


def all_at_once(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def in_tiles_of_16(q, k, v):
    outputs = []
    for Q in q.split(16):
        parts = [attend(Q @ K.mT, V) for K, V in zip(k.split(16), v.split(16), strict=True)]
        outputs.append(reduce(merge, parts).output())
    return torch.cat(outputs)


@pytest.mark.parametrize(
    ("old", "new", "found_with"),
    [
        ("x * a.l + y * b.l", "a.l + y * b.l", {(32, 1), (48, 1), (33, 28), (34, 28), (48, 100)}),
        (
            "return Part(m, x * a.l",
            "return Part(a.m, x * a.l",
            {(48, 1), (34, 28), (48, 100)},
        ),  # m is read by a third tile
        ("m = S.amax(-1)", "m = 0 * S[..., 0]", {(16, 100), (33, 28), (34, 28), (48, 100)}),
    ],
)
def test_each_bug_needs_its_own_test(old, new, found_with):
    file = changed(by_hand, old, new)
    wrong = using(in_tiles_of_16, attend=file.attend, merge=file.merge, reduce=reduce)
    for test in [(16, 1), (32, 1), (48, 1), (16, 100), (33, 28), (34, 28), (48, 100)]:
        assert wrong_by(in_tiles_of_16, all_at_once, *test) < 1e-4
        error = wrong_by(wrong, all_at_once, *test)
        assert (error > 0.01 or error != error) == (test in found_with), test


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (lambda S, L: torch.exp(S - L), ""),
        (lambda S, L: S.softmax(-1) * torch.exp(S.logsumexp(-1, keepdim=True) - L), ""),
        (lambda S, L: torch.exp(S) / torch.exp(L), "add 100 to all scores, and P sums to nan"),
        (lambda S, L: S.softmax(-1), "4 tiles of a row P sums to 4.00"),
        (lambda S, L: S.softmax(-1) / 4, "P sums to 1.00, but the weights are not"),
        (lambda S, L: torch.exp(S - L[..., None]), r"yours: \(64, 64, 16\)"),
        (lambda S, L: None, "yours: NoneType"),
        (lambda S, L: S - L.T, r"stopped, with S \(64, 16\) and L \(64, 1\)"),
    ],
)
def test_what_is_said_of_weights_computed_again(line, words):
    q, k, _ = torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(0))
    q = q / 8
    said = fault_of_tiles(line, q, k, (q @ k.mT).logsumexp(-1, keepdim=True))
    assert re.search(words, said) if words else not said, said


def test_kernels_move_what_standard_attention_is_counted_to_move():
    q, k, v = torch.randn(3, 96, 64).bfloat16()
    with Kernels() as standard:
        all_at_once(q, k, v)
    assert standard.names == ["mm", "_softmax", "mm"]
    assert standard.bytes == total_bytes(standard_forward(96, 64))
    with Kernels() as tiles:
        in_tiles_of_16(q, k, v)
    assert tiles.bytes > 3 * standard.bytes


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


def test_a_bar_may_show_the_range_of_its_runs():
    picture = plot_bars({"right, %": {"a": 24, "b": 63}}, ranges={"right, %": {"a": (5, 39), "b": (33, 87)}})
    assert picture.alt.endswith("right, %, lowest and highest: a 5 and 39, b 33 and 87.")
