"""The checks of chapter 04: real ranks, every message counted, blocking programs played out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.checks.collectives_crossover import known
from course_lib.grading.checks.collectives_mistakes import (
    ALL_GATHER,
    BROADCAST,
    FLOAT32,
    ORDERS,
    REDUCE_SCATTER,
    orders_on_every_ring,
    programs_of,
    sums_in_float32,
)
from course_lib.grading.checks.collectives_ranks import Outcome, bytes_at_most, play_on_ranks, run
from course_lib.grading.checks.collectives_waiting import (
    STUCK_GATHER,
    STUCK_TREE,
    own_peer,
    play_or_wait,
    stuck_sums,
)
from course_lib.grading.report import Report, check
from course_lib.runtime import RankError
from simulator.inputs.chunks import chunk_sizes
from simulator.inputs.hardware import Link
from simulator.predict.collective_time import all_reduce_seconds, tree_ring_crossover
from simulator.predict.message_rounds import in_rounds, rendezvous

VIEWS = "every second column of a tensor, large numbers"
RING_SIZES = (2, 3, 4, 7, 8)  # ranks, in 04.5


def _whole_numbers(report: Report, *shapes: Sequence[int], below: int = 10_000) -> list[Tensor]:
    """A tensor of each shape, int64: their sums are the same in every order, and a log of messages keeps them."""
    generator = torch.Generator().manual_seed(report.seed())
    return [torch.randint(1, below, tuple(shape), generator=generator) for shape in shapes]


def _large_views(report: Report, *rows: int) -> list[Tensor]:
    """Tensors with so many rows, each a view of another, with numbers that float32 does not hold."""
    return [t[:, ::2] for t in _whole_numbers(report, *[(count, 4) for count in rows], below=2**50)]


@check
def check_04_1(report: Report, ring_reduce_scatter: Callable[[Tensor], Tensor]) -> None:
    task = "Rank r returns the r-th chunk of the sum of all ranks' `t`"
    cases = [(4, (10, 3)), (3, (7,)), (3, (6, 2)), (2, (5,)), (4, (3, 2)), (1, (4,))]
    for ranks, shape in cases:
        with report.case(f"{_count(ranks)}, {shape[0]} rows"):
            inputs = _whole_numbers(report, *[shape] * ranks)
            outcome = play_or_wait(report, ring_reduce_scatter, inputs, stuck=stuck_sums(shape[0]))
            rows = chunk_sizes(shape[0], ranks)
            want = list(sum(inputs).split(rows))
            report.on_every_rank(
                "every rank has its chunk of the sum",
                outcome.results,
                want,
                mistakes=REDUCE_SCATTER,
                given=(inputs,),
                trace=outcome.sent,
                task=task,
            )
            _sent_to_the_left(report, outcome)
            size = inputs[0][:1].nbytes
            limits = [size * (shape[0] - own) for own in rows]
            bytes_task = "No rank sends more bytes than the chunks of all other ranks have together"
            whole = all(event.size == inputs[0].nbytes for _, event in outcome.sends)
            way = "when whole tensors are sent, and not chunks" if whole else None
            bytes_at_most(report, outcome, limits, bytes_task, way)
            task_of_messages = "no rank sends more than p − 1 messages"
            report.at_most("messages sent by a rank", outcome.messages, ranks - 1, task=task_of_messages)
    with report.case(f"3 ranks, {VIEWS}"):
        views = _large_views(report, 5, 5, 5)
        outcome = run(report, ring_reduce_scatter, views)
        want = list(sum(views).split(chunk_sizes(5, 3)))
        fact = "every rank has its chunk of the sum"
        mistakes = {FLOAT32: sums_in_float32(views)}
        report.on_every_rank(fact, outcome.results, want, tolerance=0.0, mistakes=mistakes, task=task)


def _sent_to_the_left(report: Report, outcome: Outcome) -> None:
    p, sends = len(outcome.logs), [(r, event.peer) for r, event in outcome.sends]
    rank, to = next(((r, to) for r, to in sends if to != (r - 1) % p), (0, 0))
    turned = sends and all(to == (r + 1) % p for r, to in sends)
    report.true(
        all(to == (r - 1) % p for r, to in sends),
        "every message goes to the left neighbour",
        f"rank {rank} sends to rank {to}, and its left neighbour is rank {(rank - 1) % p}",
        got=to,
        mistakes={"when the ring turns to the right, as in the chapter": to if turned else None},
        task="Every message goes to the left neighbour",
    )


def _count(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


@check
def check_04_2(report: Report, ring_all_gather: Callable[[Tensor, list[int]], Tensor]) -> None:
    task = "Every rank returns the rows of all ranks, in the order of the ranks"
    for rows in ([2, 2, 2], [2, 5, 1, 3], [4, 0, 1], [3, 1], [0, 0, 1, 0], [3]):
        ranks = len(rows)
        with report.case(f"{_count(ranks)} with {', '.join(map(str, rows))} rows"):
            inputs = _whole_numbers(report, *[(count, 2) for count in rows])
            outcome = play_or_wait(report, ring_all_gather, inputs, list(rows), stuck=STUCK_GATHER)
            report.on_every_rank(
                "every rank has everyone's rows",
                outcome.results,
                [torch.cat(inputs)] * ranks,
                mistakes=ALL_GATHER,
                given=(inputs,),
                task=task,
            )
            target = "Every rank sends to its right neighbour only, at most p − 1 messages"
            past = sum(event.peer != (r + 1) % ranks for r, event in outcome.sends)
            left = all(event.peer == (r - 1) % ranks for r, event in outcome.sends)
            itself = not left and all(event.size == inputs[r].nbytes for r, event in outcome.sends)
            ways = {  # -1: not so here
                "when the ring turns to the left": past if left else -1,
                "when every rank sends its rows to each of the others itself": past if itself else -1,
            }
            report.at_most("messages to others than the right neighbour", past, 0, mistakes=ways, task=target)
            limits = [16 * (sum(rows) - rows[(r + 1) % ranks]) for r in range(ranks)]
            bytes_task = "and at most as many bytes as the rows of all ranks but its right neighbour have"
            bytes_at_most(report, outcome, limits, bytes_task, _heavy_all_gather(outcome, inputs))
            report.at_most("messages sent by a rank", outcome.messages, ranks - 1, task=target)
    with report.case(f"2 ranks with 1, 2 rows, {VIEWS}"):
        views = _large_views(report, 1, 2)
        outcome = run(report, ring_all_gather, views, [1, 2])
        _copied(report, "every rank has everyone's rows", outcome, torch.cat(views), task)


def _copied(report: Report, fact: str, outcome: Outcome, want: Tensor, task: str) -> None:
    """What was only copied is equal to the last bit."""
    p = len(outcome.results)
    mistakes = {FLOAT32: [want.float().to(want.dtype)] * p}
    report.on_every_rank(fact, outcome.results, [want] * p, tolerance=0.0, mistakes=mistakes, task=task)


def _heavy_all_gather(outcome: Outcome, inputs: Sequence[Tensor]) -> str | None:
    """How an all-gather that sends too many bytes goes, where the messages of every rank show it."""
    p, rows = len(inputs), [t.nbytes for t in inputs]
    sizes = [[event.size for event in log if event.kind == "send"] for log in outcome.logs]
    if sizes == [[max(rows)] * (p - 1)] * p:
        return "when every message has as many rows as the longest `t`"
    right = [tuple(inputs[(r + 1) % p].flatten().tolist()) for r in range(p)]
    back = all(not own or own in sent[-1:] for own, sent in zip(right, outcome.sent, strict=True))
    if back and outcome.bytes == [sum(rows)] * p:
        return "when there is one step too many: the last message gives the right neighbour its own rows back"
    return None


@check
def check_04_3(report: Report, tree_broadcast: Callable[[Tensor, int], Tensor]) -> None:
    task = "Every rank returns the `t` of rank `src`"
    for ranks, src, shape in [
        (2, 0, (3,)),
        (3, 2, (1,)),
        (4, 1, (3,)),
        (5, 3, (2, 2)),
        (6, 5, (3,)),
        (7, 0, (3,)),
        (1, 0, (3,)),
    ]:
        with report.case(f"{_count(ranks)}, src {src}"):
            inputs = _whole_numbers(report, *[shape] * ranks)
            try:
                outcome = play_or_wait(report, tree_broadcast, inputs, src, stuck=STUCK_TREE)
            except RankError as error:
                own_peer(report, error, ranks, src)
            report.on_every_rank(
                "every rank has the tensor of `src`",
                outcome.results,
                [inputs[src]] * ranks,
                mistakes=BROADCAST,
                given=(inputs, src),
                task=task,
            )
            messages = in_rounds(outcome.logs)
            target = "p − 1 messages in all, in ceil(log2 p) rounds"
            report.at_most("messages in all", len(messages), ranks - 1, task=target)
            rounds = max((message.round for message in messages), default=0)
            report.at_most(
                "rounds", rounds, (ranks - 1).bit_length(), mistakes=_slow_tree(outcome, src), task=target
            )
    with report.case(f"2 ranks, src 1, {VIEWS}"):
        views = _large_views(report, 2, 2)
        outcome = run(report, tree_broadcast, views, 1)
        _copied(report, "every rank has the tensor of `src`", outcome, views[1], task)


def _slow_tree(outcome: Outcome, src: int) -> dict[str, int]:
    """How a broadcast that takes too many rounds goes, where all its messages show it."""
    p, rounds = len(outcome.logs), max((message.round for message in in_rounds(outcome.logs)), default=0)
    ways = {
        "when `src` sends to every other rank itself": all(r == src for r, _ in outcome.sends),
        "when every rank only sends to its right neighbour, so that one message waits for the next": all(
            (event.peer - r) % p == 1 for r, event in outcome.sends
        ),
    }
    return {text: rounds if shown else -1 for text, shown in ways.items()}


@check
def check_04_4(report: Report, crossover: Callable[[Callable[[str, float], float]], float]) -> None:
    task = "Return the size in bytes at which both take equally long"
    draw = random.Random(report.seed())
    for ranks in (4, 8, 64, 5, 3, 2):
        with report.case(f"{ranks} ranks"):
            long_and_fast = ranks == 64  # a latency that is left in a slope shows there, whatever is drawn
            latency = draw.uniform(20e-6 if long_and_fast else 1e-6, 50e-6)
            link = Link(latency, draw.uniform(50e9 if long_and_fast else 1e9, 100e9))
            sizes: dict[str, list[float]] = {"tree": [], "ring": []}

            def time_of(
                algorithm: str, size: float, ranks: int = ranks, link: Link = link, sizes: Any = sizes
            ) -> float:
                seconds = all_reduce_seconds(algorithm, float(size), ranks, link)
                sizes[algorithm].append(float(size))
                return seconds

            got = _number(report, crossover(time_of))
            want = tree_ring_crossover(ranks, link)
            if abs(got - want) <= 1e-3 * link.latency * link.rate:  # bytes that are as good as none
                got = want
            report.close(
                "the size at which both take equally long",
                got,
                want,
                tolerance=1e-3,
                mistakes=known(got, ranks, link, sizes),
                given=(),
                task=task,
            )
            calls = len(sizes["tree"]) + len(sizes["ring"])
            searched = {
                "when the size is searched for, and not computed from two points of each line": calls
                if len({*sizes["tree"], *sizes["ring"]}) > 4
                else None
            }
            report.at_most("measurements", calls, 4, mistakes=searched, task="at most 4 measurements")


def _number(report: Report, got: Any) -> float:
    """Whatever is a number, in any style."""
    try:
        return float(got)
    except (TypeError, ValueError):
        return report.fail(f"the result is {got!r}, not a number of bytes")


@check
def check_04_5(report: Report, ring_steps: Callable[[int, int], list[tuple[str, int]]]) -> None:
    everywhere = orders_on_every_ring(ring_steps, RING_SIZES)
    for ranks in RING_SIZES:
        with report.case(f"{ranks} ranks"):
            programs = programs_of(ring_steps, ranks)
            order = {"got": programs, "mistakes": everywhere or ORDERS, "given": (ranks,)}
            for rank, steps in enumerate(programs):
                wanted = [("receive", (rank - 1) % ranks), ("send", (rank + 1) % ranks)]
                if sorted(steps) != wanted:
                    otherwise = f"rank {rank} takes the steps {steps}, and its two steps are {wanted[::-1]}"
                    report.true(False, "", otherwise, task="both once, in the order", **order)
            meeting = rendezvous(programs)
            task = "no rank waits for ever"
            report.true(not meeting.waiting, "every rank takes both steps", str(meeting), task=task, **order)
            report.at_most(
                "rounds",
                meeting.rounds,
                2 if ranks % 2 == 0 else 3,
                mistakes=dict.fromkeys(everywhere, meeting.rounds),
                task="2 rounds for an even number of ranks, and 3 for an odd one",
            )
    with report.case("3 real ranks"):
        values = [float(value) for value in random.Random(report.seed()).sample(range(100), 3)]
        got = play_on_ranks([list(map(tuple, ring_steps(rank, 3))) for rank in range(3)], values)
        report.equal("every rank has what its left neighbour sent", got, [values[2], values[0], values[1]])
