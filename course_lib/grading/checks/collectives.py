"""The checks of chapter 04: real ranks, every message counted, blocking programs played out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.checks.collectives_mistakes import (
    ALL_GATHER,
    BROADCAST,
    CROSSOVER,
    ORDERS,
    REDUCE_SCATTER,
    SLOW_ORDERS,
)
from course_lib.grading.checks.collectives_ranks import Outcome, play_on_ranks, run
from course_lib.grading.report import Report, check
from simulator.inputs.chunks import chunk_sizes
from simulator.inputs.hardware import Link
from simulator.predict.collective_time import all_reduce_seconds, tree_ring_crossover
from simulator.predict.message_rounds import in_rounds, rendezvous


def _whole_numbers(report: Report, *shapes: Sequence[int]) -> list[Tensor]:
    """A tensor of each shape, int64: their sums are the same in every order, and a log of messages keeps them."""
    generator = torch.Generator().manual_seed(report.seed())
    return [torch.randint(1, 10_000, tuple(shape), generator=generator) for shape in shapes]


def _bytes_at_most(report: Report, outcome: Outcome, limits: list[int], task: str) -> None:
    """Each rank's bytes against its own limit, stated for the rank that exceeds it, or else for rank 0."""
    sent = outcome.bytes
    worst = max(range(len(sent)), key=lambda r: (sent[r] > limits[r], -r))
    report.at_most(f"bytes sent by rank {worst}", sent[worst], limits[worst], task=task)


@check
def check_04_1(report: Report, ring_reduce_scatter: Callable[[Tensor], Tensor]) -> None:
    task = "Rank r returns the r-th chunk of the sum of all ranks' `t`"
    cases = [(4, (10, 3)), (3, (7,)), (3, (6, 2)), (2, (5,)), (4, (3, 2)), (1, (4,))]
    for ranks, shape in cases:
        with report.case(f"{_count(ranks)}, {shape[0]} rows"):
            inputs = _whole_numbers(report, *[shape] * ranks)
            outcome = run(report, ring_reduce_scatter, inputs)
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
            size = inputs[0][:1].nbytes
            limits = [size * (shape[0] - own) for own in rows]
            _bytes_at_most(
                report, outcome, limits, "No rank sends more bytes than all chunks of `t` but its own"
            )
            task_of_messages = "no rank sends more than p − 1 messages"
            report.at_most("messages sent by a rank", outcome.messages, ranks - 1, task=task_of_messages)
    with report.case("3 ranks, every second column of a tensor"):
        whole = _whole_numbers(report, *[(5, 4)] * 3)
        views = [t[:, ::2] for t in whole]
        outcome = run(report, ring_reduce_scatter, views)
        want = list(sum(views).split(chunk_sizes(5, 3)))
        report.on_every_rank("every rank has its chunk of the sum", outcome.results, want, task=task)


def _count(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


@check
def check_04_2(report: Report, ring_all_gather: Callable[[Tensor, list[int]], Tensor]) -> None:
    for rows in ([2, 2, 2], [2, 5, 1, 3], [4, 0, 1], [3, 1], [0, 0, 1, 0], [3]):
        ranks = len(rows)
        with report.case(f"{_count(ranks)} with {', '.join(map(str, rows))} rows"):
            inputs = _whole_numbers(report, *[(count, 2) for count in rows])
            outcome = run(report, ring_all_gather, inputs, list(rows))
            report.on_every_rank(
                "every rank has everyone's rows",
                outcome.results,
                [torch.cat(inputs)] * ranks,
                mistakes=ALL_GATHER,
                given=(inputs,),
                task="Every rank returns the rows of all ranks, in the order of the ranks",
            )
            target = "Every rank sends to its right neighbour only, at most p − 1 messages"
            past = sum(
                event.kind == "send" and event.peer != (r + 1) % ranks
                for r, log in enumerate(outcome.logs)
                for event in log
            )
            report.at_most("messages to others than the right neighbour", past, 0, task=target)
            limits = [16 * (sum(rows) - rows[(r + 1) % ranks]) for r in range(ranks)]
            bytes_task = "and no more bytes than the rows of all ranks but its right neighbour"
            _bytes_at_most(report, outcome, limits, bytes_task)
            report.at_most("messages sent by a rank", outcome.messages, ranks - 1, task=target)


@check
def check_04_3(report: Report, tree_broadcast: Callable[[Tensor, int], Tensor]) -> None:
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
            outcome = run(report, tree_broadcast, inputs, src)
            report.on_every_rank(
                "every rank has the tensor of `src`",
                outcome.results,
                [inputs[src]] * ranks,
                mistakes=BROADCAST,
                given=(inputs, src),
                task="Every rank returns the `t` of rank `src`",
            )
            messages = in_rounds(outcome.logs)
            target = "p − 1 messages in all, in ceil(log2 p) rounds"
            report.at_most("messages in all", len(messages), ranks - 1, task=target)
            rounds = max((message.round for message in messages), default=0)
            report.at_most("rounds", rounds, (ranks - 1).bit_length(), task=target)


@check
def check_04_4(report: Report, crossover: Callable[[Callable[[str, float], float]], float]) -> None:
    task = "Return the size in bytes at which both take equally long"
    draw = random.Random(report.seed())
    for ranks in (4, 8, 64, 5, 3, 2):
        with report.case(f"{ranks} ranks"):
            link = Link(draw.uniform(1e-6, 50e-6), draw.uniform(1e9, 100e9))
            calls = 0

            def time_of(algorithm: str, size: float, ranks: int = ranks, link: Link = link) -> float:
                nonlocal calls
                calls += 1
                return all_reduce_seconds(algorithm, float(size), ranks, link)

            got = _number(report, crossover(time_of))
            want = tree_ring_crossover(ranks, link)
            if abs(got - want) <= 1e-3 * link.latency * link.rate:  # bytes that are as good as none
                got = want
            report.close(
                "the size at which both take equally long",
                got,
                want,
                tolerance=1e-3,
                mistakes=CROSSOVER,
                given=(ranks, link),
                task=task,
            )
            report.at_most("measurements", calls, 4, task="at most 4 measurements")


def _number(report: Report, got: Any) -> float:
    """Whatever is a number, in any style."""
    try:
        return float(got)
    except (TypeError, ValueError):
        return report.fail(f"the result is {got!r}, not a number of bytes")


@check
def check_04_5(report: Report, ring_steps: Callable[[int, int], list[tuple[str, int]]]) -> None:
    for ranks in (2, 3, 4, 7, 8):
        with report.case(f"{ranks} ranks"):
            programs = [list(ring_steps(rank, ranks)) for rank in range(ranks)]
            programs = [[(kind, int(peer)) for kind, peer in steps] for steps in programs]
            order = {"got": programs, "mistakes": ORDERS, "given": (ranks,)}
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
                mistakes={
                    text: meeting.rounds for text, slow in SLOW_ORDERS.items() if slow(ranks) == programs
                },
                task="2 rounds for an even number of ranks, and 3 for an odd one",
            )
    with report.case("3 real ranks"):
        values = [float(value) for value in random.Random(report.seed()).sample(range(100), 3)]
        got = play_on_ranks([list(map(tuple, ring_steps(rank, 3))) for rank in range(3)], values)
        report.equal("every rank has what its left neighbour sent", got, [values[2], values[0], values[1]])
