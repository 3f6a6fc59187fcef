"""The reduce-scatter that the learner of chapter 04 writes: judged by what it returns, and its slips."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib.chapters.ring_trial import try_ring
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import launch
from course_lib.runtime.collectives import exchange

CHAPTER = Path(__file__).parents[3] / "notebooks" / "04_collectives.ipynb"


def listing(name):
    cells = json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]
    return next("".join(c["source"]) for c in cells if f"def {name}(" in "".join(c["source"]))


def pass_right(chunk):
    p, me = dist.get_world_size(), dist.get_rank()
    return exchange(chunk, (me + 1) % p, chunk, (me - 1) % p)


def ring_of_the_chapter(slip):
    answer = [
        ("now = ...", "now = (me - 1) % p"),
        ("now = ...", "now = (now - 1) % p"),
        ("= ...", "= chunks[now] + came"),
    ]
    source = listing("ring_reduce_scatter")
    names = {"dist": dist, "pass_right": pass_right, "try_ring": id}
    for old, new in [*answer, *slip]:
        assert old in source
        source = source.replace(old, new, 1)
    exec(source, names)
    t = torch.arange(8.0) * (dist.get_rank() + 1)
    with record_traffic() as log:
        chunk = names["ring_reduce_scatter"](t)
    return chunk.equal((torch.arange(8.0) * 10).chunk(4)[dist.get_rank()]), log.traffic.sent


@pytest.mark.parametrize(
    ("slip", "right", "sent"),
    [
        ([], True, 24),
        ([("range(p - 1)", "range(p)")], True, 32),  # one chunk more
        ([("chunks[now] +", "")], False, 24),
    ],
)
def test_the_slips_move_what_the_chapter_says(slip, right, sent):
    found = launch(ring_of_the_chapter, 4, args=(slip,))
    assert [each[1] for each in found] == [sent] * 4
    assert all(each[0] for each in found) == right


def ring(first, extra=0):
    def reduce_scatter(t):
        p, me = dist.get_world_size(), dist.get_rank()
        chunks, now = list(t.chunk(p)), first(me, p)
        for _ in range(p - 1 + extra):
            came = exchange(chunks[now], (me + 1) % p, chunks[now], (me - 1) % p)
            now = (now - 1) % p
            chunks[now] = chunks[now] + came
        return chunks[me]

    return reduce_scatter


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (lambda me, p: (me - 1) % p, "Right"),
        (lambda me, p: me, "Not yet"),
        (lambda me, p: 0, "no whole chunk, or added one chunk to another"),
        (lambda me, p: p, "IndexError"),
    ],
)
def test_a_ring_is_judged_by_what_it_returns(first, words):
    assert words in try_ring(ring(first)).text.splitlines()[0]


def test_a_ring_that_is_not_written_yet():
    def reduce_scatter(t):
        now = ...
        return t[now]

    assert (
        try_ring(reduce_scatter).text == "Not written yet: put your expressions in place of the three dots."
    )


def test_a_ring_shows_what_was_sent():
    longer = try_ring(ring(lambda me, p: (me - 1) % p, extra=1))
    assert longer.text.startswith("The sums are right, but a rank sends 4 chunks where 3 are enough.")
    shown = try_ring(ring(lambda me, p: (me - 1) % p))
    assert all([line.split()[-1] == "3" for line in shown.text.splitlines()[-4:]])
    assert shown.html.count("<img") == 1
