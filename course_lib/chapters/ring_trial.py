"""A ring all-reduce that the learner writes, on four ranks: what each rank holds after every round."""

from __future__ import annotations

import dis
from itertools import pairwise
from types import FunctionType

import torch
import torch.distributed as dist

from course_lib.observe.show.collectives import Holding, Round, draw_rounds
from course_lib.observe.show.shown import Shown, headed
from course_lib.runtime import RankError, launch
from course_lib.runtime.collectives import exchange

RANKS = 4
HALF = RANKS - 1  # rounds


def pass_right(chunks: list[torch.Tensor], i: int) -> torch.Tensor:
    """Send chunk ``i`` to the right neighbour; returns the chunk that comes from the left, ``i - 1``."""
    p, me = dist.get_world_size(), dist.get_rank()
    return exchange(chunks[i], to=(me + 1) % p, like=chunks[(i - 1) % p], source=(me - 1) % p)


def try_ring(all_reduce: FunctionType) -> Shown:
    """Run it on four ranks; every rank should return the whole sum. The first half is also judged alone.

    A sentence says what is wrong first; the rounds are drawn up to there, with what the ranks hold in truth.
    """
    dots = sum(step.argval is ... for step in dis.get_instructions(all_reduce))
    unwritten = headed(
        "Not written yet: put your expressions in place of the dots, at least those of the first half."
    )
    if dots > 2:
        return unwritten
    try:
        ranks = launch(_run, RANKS, args=(all_reduce, dots), quiet=True, backend="gloo")
    except RankError as error:
        number = ". Chunks have numbers 0 to 3; `% p` counts on around the ring." * (
            "IndexError" in str(error)
        )
        return headed(str(error).splitlines()[0] + number)
    sent = [rows for _, rows, _ in ranks]
    held = [list(after) for after in zip(*(states for states, _, _ in ranks), strict=False)]
    if dots and len(held) <= HALF:
        return unwritten
    wrong = ((turn, _slip(now)) for turn, now in enumerate(held) if _slip(now))
    turn, slip = next(wrong, (len(held) - 1, ""))
    drawn = [draw_rounds(_rounds(held[: turn + 1], sent), RANKS, "What the ranks hold after each round.")]
    lacks = [rank for rank, (_, _, whole) in enumerate(ranks) if not whole]
    if slip:
        verdict = f"Not yet: after round {turn} {slip}"
    elif dots:
        verdict = "The reduce-scatter is right: each rank has the sum of one chunk. Now the all-gather."
    elif lacks:
        verdict = f"Not yet: what rank {lacks[0]} returns is not the whole sum."
    elif len(sent[0]) > 2 * HALF:
        verdict = f"The sums are right, but a rank sends {len(sent[0])} chunks where {2 * HALF} are enough."
    elif len(sent[0]) < 2 * HALF:
        verdict = f"The sums are right, but not from your ring: `pass_right` sent {len(sent[0])} of {2 * HALF} chunks."
    else:
        verdict = f"Right: each rank returns the whole sum, and sends {len(sent[0])} chunks."
    return headed(verdict, *(drawn if turn else []))


def _run(all_reduce: FunctionType, dots: int) -> tuple[list[dict], list[int], bool]:
    """On a rank: what it holds before every round and after the last, which chunks it sends, whether the sum is whole.

    A chunk counts how often the values of each chunk of each rank are in it, so none can hide in a sum.
    """
    me, sent, states, chunks = dist.get_rank(), [], [], []

    def keep() -> None:
        counts = [chunk.tolist() for chunk in chunks]
        states.append(
            {
                row: [divmod(at, RANKS) for at, n in enumerate(parts) for _ in range(n)]
                for row, parts in enumerate(counts)
            }
        )

    def pass_and_keep(now: list, i: int) -> torch.Tensor:
        chunks[:] = now
        keep()
        sent.append(i % RANKS)
        return pass_right(now, i)

    all_reduce.__globals__["pass_right"] = pass_and_keep  # of this process
    own = torch.eye(RANKS * RANKS, dtype=torch.int64)
    t = own[me::RANKS].flatten()
    whole = own.view(RANKS, RANKS, -1).sum(1).flatten()
    try:
        result = all_reduce(t)
    except (TypeError, AttributeError):
        if not dots:  # else all ranks stop here, at the dots
            raise
        return states, sent, False
    right = isinstance(result, torch.Tensor) and result.equal(whole)
    if isinstance(result, torch.Tensor) and result.numel() == t.numel():
        chunks[:] = result.tensor_split(RANKS)
    keep()
    return states, sent, right


def _slip(held: Holding) -> str:
    """What is wrong with the first wrong chunk: another's values, some twice, or without the rank's own."""
    for rank, chunks in enumerate(held):
        for row, parts in chunks.items():
            here = f"chunk {'abcd'[row]} of rank {rank}"
            if others := [chunk for chunk, _ in parts if chunk != row]:
                return f"{here} holds values of chunk {'abcd'[others[0]]}."
            if twice := [other for other in range(RANKS) if list(parts).count((row, other)) > 1]:
                return f"{here} holds the values of rank {twice[0]} more than once."
            if (row, rank) not in parts:
                return f"{here} has lost the rank's own values."
    return ""


def _rounds(held: list[Holding], sent: list[list[int]]) -> list[Round]:
    """A message for each rank in every round; framed is what has changed."""
    return [
        Round(
            now,
            [(rank, (rank + 1) % RANKS, rows[turn]) for rank, rows in enumerate(sent)],
            {(r, row) for r, chunks in enumerate(now) for row in chunks if chunks[row] != before[r][row]},
        )
        for turn, (before, now) in enumerate(pairwise(held))
    ]
