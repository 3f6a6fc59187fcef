"""Four ways to all-reduce: what is counted is what ranks send, and the learner's ring is judged by what it returns."""

from collections import defaultdict

import pytest
import torch.distributed as dist

from course_lib.chapters.busiest_rank import busiest_sent
from course_lib.chapters.busy_cards import plot_busy_cards
from course_lib.chapters.four_ways import WAYS, messages, price_ways, sent, through_cards
from course_lib.chapters.ring_trial import try_ring
from course_lib.observe.ledgers.messages import trace_collective
from course_lib.runtime import collectives
from course_lib.runtime.collectives import exchange
from simulator.inputs.known_devices import find_device
from simulator.plots.picture import smallest_text


def all_reduce(way):
    def run(t):
        if way != "direct":
            return collectives.all_reduce(t, algorithm=way)
        mine = collectives.all_to_all(t).sum(0, keepdim=True)
        return collectives.all_to_all(mine.repeat(dist.get_world_size()))

    return run


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ranks", [3, 4])
def test_messages_are_those_of_a_real_run(way, ranks):
    found, told = defaultdict[tuple[int, int], float](float), defaultdict[tuple[int, int], float](float)
    for message in trace_collective(all_reduce(way), ranks).messages:
        found[message.sender, message.receiver] += message.size / (8 * ranks)
    for sender, receiver, part in messages(way, ranks):
        told[sender, receiver] += part
    assert found == pytest.approx(told)


@pytest.mark.parametrize("ranks", [5, 16])
def test_the_sums(ranks):
    for way in WAYS:
        shares = sent(way, ranks)
        assert shares.together == pytest.approx(2 * (ranks - 1))
        assert shares.rank == pytest.approx(busiest_sent("ring" if way == "direct" else way, ranks, 1))


def test_what_leaves_a_machine_through_each_card():
    leaves = 2 * 15 / 16  # around a ring of 16, a rank's tensors
    assert through_cards("ring", 16, 4) == pytest.approx([0, 0, 0, leaves])
    assert through_cards("ring", 16, 4, rings=4) == pytest.approx([leaves / 4] * 4)
    assert through_cards("direct", 16, 4) == pytest.approx([2 * 12 / 16] * 4)
    assert through_cards("naive", 4, 4) == [0] * 4
    with pytest.raises(ValueError, match="10 ranks do not fill machines of 4"):
        through_cards("ring", 10, 4)


def test_what_chapter_04_says():
    h100 = find_device("h100")
    picture = plot_busy_cards(1000, 8, 1e9, h100.network)
    assert sent("naive", 1000).rank == 999
    assert {round(sent(way, 1000).together) for way in WAYS} == {1998}
    assert [row.split()[-3:] for row in price_ways(1000, 4, 1e9, h100).text.splitlines()[2:]] == [
        ["20", "0.12", "63"],
        ["1,998", "12", "62"],
        ["1,998", "12", "18"],
    ]
    assert "direct: 15.9 GB leave the machine, the busiest card takes 50 ms" in picture.alt
    assert "one ring: 2 GB leave the machine, the busiest card takes 50 ms" in picture.alt
    assert "8 rings: 2 GB leave the machine, the busiest card takes 6 ms" in picture.alt
    assert smallest_text(picture.svg) >= 11


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
