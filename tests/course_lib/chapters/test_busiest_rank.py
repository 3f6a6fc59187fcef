"""The picture of chapter 04, and the slip in its ring that only the bytes show."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib.chapters.busiest_rank import busiest_sent, plot_busiest_rank
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import collectives, launch
from simulator.plots.picture import smallest_text
from simulator.predict.collective_time import ALGORITHMS

CHAPTER = Path(__file__).parents[3] / "notebooks" / "04_collectives.ipynb"


def sent_by_all_reduce(algorithm):
    with record_traffic() as log:
        collectives.all_reduce(torch.ones(12), algorithm=algorithm)
    return log.traffic.sent


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", [3, 4])
def test_the_busiest_rank_sends_what_is_drawn(algorithm, ranks):
    sent = launch(sent_by_all_reduce, ranks, args=(algorithm,))
    assert max(sent) == busiest_sent(algorithm, ranks, 48)


def test_the_picture_says_what_it_draws():
    picture = plot_busiest_rank(["naive", "tree", "ring"])
    assert "naive 999 GB, tree 10 GB, ring 2 GB" in repr(picture)
    assert smallest_text(picture.svg) >= 11
    assert "the least 2 GB" in repr(plot_busiest_rank(["ring"], names={"ring": "the least"}))


def listing(name):
    cells = json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]
    return next("".join(c["source"]) for c in cells if f"def {name}(" in "".join(c["source"]))


def ring_of_the_chapter(slip):
    answer = [
        ("now = ...", "now = left"),
        ("now = ...", "now = (now - 1) % p"),
        ("= ...", "= chunks[now] + came"),
    ]
    source = listing("ring_reduce_scatter")
    names = {"dist": dist, "exchange": collectives.exchange, "try_ring": id}
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
