"""The ring all-reduce that the learner of chapter 04 writes: judged by what it returns, and its slips."""

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


def pass_right(chunks, i):
    p, me = dist.get_world_size(), dist.get_rank()
    return exchange(chunks[i], (me + 1) % p, chunks[(i - 1) % p], (me - 1) % p)


def ring_of_the_chapter(slip, elements=8):
    answer = [
        ("i = ...", "i = (me - 1) % p"),
        ("i = ...", "i = (i - 1) % p"),
        ("= ...", "= chunks[i] + came"),
        ("i = ...", "i = (i - 1) % p"),
        ("= ...", "= came"),
    ]
    source = listing("ring_all_reduce")
    names = {"dist": dist, "torch": torch, "pass_right": pass_right, "try_ring": id}
    for old, new in [*answer, *slip]:
        assert old in source
        source = source.replace(old, new, 1)
    exec(source, names)
    t = torch.arange(float(elements)) + dist.get_rank()
    with record_traffic() as log:
        total = names["ring_all_reduce"](t)
    return total.equal(4 * torch.arange(float(elements)) + 6), log.traffic.sent


@pytest.mark.parametrize(
    ("slip", "right", "sent"),
    [
        ([], True, 48),
        ([("range(p - 1):  # the all", "range(p):  # the all")], True, 56),  # one chunk more
        ([("= came\n", "= chunks[i] + came\n")], False, 48),
    ],
)
def test_the_slips_move_what_the_chapter_says(slip, right, sent):
    found = launch(ring_of_the_chapter, 4, args=(slip,))
    assert [each[1] for each in found] == [sent] * 4
    assert all(each[0] for each in found) == right


@pytest.mark.parametrize("elements", [1, 6])
def test_the_chapters_ring_sums_a_loss_and_chunks_of_unequal_sizes(elements):
    assert all(right for right, _ in launch(ring_of_the_chapter, 4, args=([], elements)))


def ring(first=lambda me, p: (me - 1) % p, extra=0, always=False):
    def all_reduce(t):
        p, me = dist.get_world_size(), dist.get_rank()
        chunks, now = list(t.chunk(p)), first(me, p)
        for turn in range(2 * (p - 1) + extra):
            came = exchange(chunks[now], (me + 1) % p, chunks[now], (me - 1) % p)
            now = (now - 1) % p
            chunks[now] = chunks[now] + came if always or turn < p - 1 else came
        return torch.cat(chunks)

    return all_reduce


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ring(), "Right: each rank returns the whole sum, and sends 6 chunks."),
        (ring(extra=2), "The sums are right, but a rank sends 8 chunks where 6 are enough."),
        (ring(extra=-1), "Not yet: what rank 0 returns is not the whole sum."),
        (ring(lambda me, p: me), "Right"),  # every rank is then responsible for another chunk
        (ring(always=True), "Not yet: what a rank sends in round 5 is no sum of one chunk."),
        (ring(lambda me, p: 0), "Not yet: what a rank sends in round 2 is no sum of one chunk."),
        (ring(lambda me, p: p), "IndexError"),
    ],
)
def test_a_ring_is_judged_by_what_it_returns(answer, words):
    shown = try_ring(answer)
    assert words in shown.text.splitlines()[0]
    assert shown.html.count("<img") == ("IndexError" not in words)


def test_a_ring_that_is_not_written_yet():
    def all_reduce(t):
        now = ...
        return t[now]

    assert try_ring(all_reduce).text == "Not written yet: put your expressions in place of the dots."
