"""The ring all-reduce that the learner of chapter 04 writes: judged by what it returns, and its slips."""

import json
import re
from base64 import b64decode
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib.chapters.ring_trial import pass_right, try_ring
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import launch

CHAPTER = Path(__file__).parents[3] / "notebooks" / "04_collectives.ipynb"


def listing(name):
    cells = json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]
    return next("".join(c["source"]) for c in cells if f"def {name}(" in "".join(c["source"]))


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
            came = pass_right(chunks, now)
            now = (now - 1) % p
            chunks[now] = chunks[now] + came if always or turn < p - 1 else came
        return torch.cat(chunks)

    return all_reduce


def no_ring():
    def all_reduce(t):
        dist.all_reduce(t)
        return t

    return all_reduce


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ring(), "Right: each rank returns the whole sum, and sends 6 chunks."),
        (ring(extra=2), "The sums are right, but a rank sends 8 chunks where 6 are enough."),
        (ring(extra=-1), "Not yet: what rank 0 returns is not the whole sum."),
        (no_ring(), "The sums are right, but not from your ring: `pass_right` sent 0 of 6 chunks."),
        (ring(lambda me, p: me), "Right"),  # every rank is then responsible for another chunk
        (
            ring(always=True),
            "Not yet: after round 4 chunk d of rank 0 holds the values of rank 0 more than once.",
        ),
        (ring(lambda me, p: 0), "Not yet: after round 1 chunk d of rank 0 holds values of chunk a."),
        (ring(lambda me, p: p), "`% p` counts on around the ring."),
    ],
)
def test_a_ring_is_judged_by_what_it_returns(answer, words):
    shown = try_ring(answer)
    assert words in shown.text.splitlines()[0]
    assert shown.html.count("<img") == ("% p" not in words and "0 of 6" not in words)


RIGHT = ["(me - 1) % p", "(i - 1) % p", "chunks[i] + came", "(i - 1) % p", "came"]


@pytest.mark.parametrize(
    ("answers", "words", "rounds"),
    [
        ([], "Not written yet", 0),
        (RIGHT, "Right", 6),
        (RIGHT[:3], "The reduce-scatter is right", 3),
        (["me", "(i + 1) % p", RIGHT[2]], "after round 1 chunk b of rank 0 holds values of chunk d.", 1),
        ([*RIGHT[:2], "came"], "after round 1 chunk c of rank 0 has lost the rank's own values.", 1),
        ([*RIGHT[:3], "i", "came"], "after round 4 chunk a of rank 0 holds values of chunk d.", 4),
    ],
)
def test_halves_are_tried_alone_and_drawn_up_to_the_first_slip(answers, words, rounds):
    source = listing("ring_all_reduce")
    for answer in answers:
        source = source.replace("= ...", f"= {answer}", 1)
    names = {"dist": dist, "torch": torch, "pass_right": pass_right, "try_ring": id}
    exec(source, names)
    shown = try_ring(names["ring_all_reduce"])
    assert words in shown.text.splitlines()[0]
    drawn = "".join(b64decode(svg).decode() for svg in re.findall('base64,([^"]+)', shown.html))
    assert len(re.findall("round [0-9]", drawn)) == rounds
