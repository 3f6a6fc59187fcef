"""Serving, worked out by hand in small cases; and the vLLM paper's figures at its own size."""

import pytest

from simulator.ledgers.cache import CacheHistory, Piece
from simulator.plots.cache import plot_cache
from simulator.predict.serving import (
    Arrival,
    blocks_for,
    conversation_lengths,
    power_of_two,
    serve_contiguous,
    serve_in_blocks,
)


def test_rounding_up():
    assert [blocks_for(n, 4) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5, 64, 65)] == [1, 2, 4, 4, 8, 64, 128]


def test_a_request_alone_in_blocks():
    """A prompt of 3 and 3 new tokens: 3, 4 and 5 tokens in the cache, in blocks of 2."""
    history = serve_in_blocks([Arrival(3, 3)], blocks=4, block_size=2)
    assert history.tokens == [3, 4, 5]
    assert history.reserved == [4, 4, 6]
    assert history.steps[2] == (Piece(0, 2, 2, (0,)), Piece(2, 2, 2, (0,)), Piece(4, 2, 1, (0,)))
    use = history.use(range(3))
    assert use == (4, 1 / 3, 1 / 3, 10 / 3)  # of block 1 one slot is filled later; of block 2 one never is
    assert use.slots == 8


def test_the_newest_leaves_when_blocks_run_out():
    """Two requests that fill 3 blocks each, and 4 blocks: the second begins again when the first has ended."""
    history = serve_in_blocks([Arrival(3, 4), Arrival(3, 4)], blocks=4, block_size=2)
    holders = [sorted({n for piece in step for n in piece.holders}) for step in history.steps]
    assert holders == [[0, 1], [0, 1], [0], [0], [1], [1]]
    assert history.tokens == [6, 8, 5, 6, 5, 6]
    assert history.waiting == (0, 0, 1, 1, 0, 0)


def test_regions_wait_for_neighbouring_slots():
    """Slots 0 to 3 and 6 to 7 are free, but a region of 8 needs neighbours: it waits for the last of the small ones."""
    arrivals = [Arrival(2, 1), Arrival(2, 1), Arrival(2, 4), Arrival(5, 2, step=1)]
    history = serve_contiguous(arrivals, 8, lambda arrival: power_of_two(arrival.cached))
    assert [[piece.holders[0] for piece in step] for step in history.steps][:2] == [[0, 1], [2]]
    assert history.waiting[1] == 1
    assert history.steps[-1][0].holders == (3,)


@pytest.mark.parametrize("every", [1, 5])
def test_nothing_is_lost_and_nothing_overlaps(every):
    arrivals = conversation_lengths(40, 12, 20, 120, seed=3)
    for history in (
        serve_contiguous(arrivals, 300, lambda arrival: 120, every),
        serve_contiguous(arrivals, 300, lambda arrival: power_of_two(arrival.cached), every),
        serve_in_blocks(arrivals, 20, 15, every),
    ):
        assert {n for step in history.steps for piece in step for n in piece.holders} <= set(range(40))
        for step in history.steps:
            slots = [slot for piece in step for slot in range(piece.start, piece.start + piece.slots)]
            assert len(slots) == len(set(slots))
            assert not slots or max(slots) < 300
            assert all(0 < piece.tokens <= piece.slots for piece in step)
        if every == 1:
            done = sum(arrival.prompt + arrival.new_tokens - 1 for arrival in arrivals)
            last = {n: piece.tokens for step in history.steps for piece in step for n in piece.holders}
            assert set(last) == set(range(40))
            assert sum(history.tokens) >= done
        assert sum(history.use()) == pytest.approx(300)


def test_the_paper_s_figures():
    """arXiv:2309.06180, figure 2: 20.4 % (maximum) to 38.2 % (true length, rounded up) hold tokens; then over 96 %."""
    arrivals, slots = conversation_lengths(300, 161, 338, 2048), 15_728  # 12 GiB of 819,200 bytes a token
    shares = []
    for history in (
        serve_contiguous(arrivals, slots, lambda arrival: 2048, every=32),
        serve_contiguous(arrivals, slots, lambda arrival: power_of_two(arrival.cached), every=32),
        serve_in_blocks(arrivals, slots // 16, 16, every=32),
    ):
        shares.append(history.use([step for step in history.crowded if step >= 10]).tokens / slots)
    maximum, rounded, blocks = shares
    assert maximum == pytest.approx(0.204, abs=0.03)
    assert rounded == pytest.approx(0.382, abs=0.03)
    assert blocks > 0.96


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: serve_contiguous([Arrival(5, 4)], 16, lambda a: 7),
            "request 0 fills 8 slots and has a region of 7",
        ),
        (lambda: serve_in_blocks([Arrival(5, 5)], 2, 4), "request 0 fills 3 blocks, more than the 2"),
        (lambda: serve_in_blocks([Arrival(5, 1)], 2, 4).use(), "at none does a request wait: name the steps"),
        (lambda: CacheHistory(4, ((),), ()), "waiting must be one number for each of 1 steps"),
        (lambda: plot_cache(), "there is nothing to draw"),
    ],
)
def test_nonsense_is_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_drawing_shows_requests_and_what_they_share():
    history = CacheHistory(8, ((Piece(0, 4, 4, (0, 1)), Piece(4, 4, 2, (1,))),) * 4, (0,) * 4)
    picture = plot_cache(history, titles=["Two requests"])
    assert ">shared</text>" in picture.svg
    assert ">2×</text>" in picture.svg
    assert picture.alt == "Two requests: 4 steps, 75% of the slots hold tokens on average."
