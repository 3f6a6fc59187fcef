"""The checks of chapter 04: real ranks, every message counted, blocking programs played out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.grading.compare import difference
from course_lib.grading.report import Report, check
from course_lib.observe.ledgers.messages import record_messages
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import collectives, launch
from course_lib.runtime.collectives import receive, send
from simulator.inputs.chunks import chunk_sizes
from simulator.inputs.hardware import Link
from simulator.predict.collective_time import all_reduce_seconds, tree_ring_crossover
from simulator.predict.collective_traffic import ring_reduce_scatter_sent
from simulator.predict.message_rounds import Event, in_rounds, rendezvous

# Ranks that wait for each other are found out long before the limit, in seconds.
ON_CPU: dict[str, Any] = {"timeout": 20.0, "backend": "gloo"}


def _whole_numbers(shape: Sequence[int], rank: int) -> Tensor:
    """Whole numbers, int64: their sums are the same in every order, and a log of messages keeps them."""
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randint(1, 90, tuple(shape), generator=generator)


FINISHED = (
    "broadcast",
    "scatter",
    "gather",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
)


def _noted(name: str, called: set[str]) -> Callable[..., Any]:
    """The course's own collective, which notes that it was called."""
    finished = getattr(collectives, name)

    def noting(*args: Any, **named: Any) -> Any:
        called.add(f"course_lib's own {name}")
        return finished(*args, **named)

    return noting


def _on_rank(answer: Callable[..., Any], inputs: Sequence[Tensor], more: tuple) -> tuple[Any, ...]:
    mine = inputs[dist.get_rank()]
    before, finished = mine.clone(), set()
    noting = {name: _noted(name, finished) for name in FINISHED}
    with mock.patch.multiple(collectives, **noting), record_traffic() as log, record_messages() as events:
        result = answer(mine, *more)
    others = {
        f"{row.collective} of torch.distributed" for row in log.traffic.rows if row.collective != "send"
    }
    others |= finished
    return result, torch.equal(mine, before), events, sorted(others)


def _run(
    report: Report, answer: Callable[..., Any], inputs: Sequence[Tensor], *more: Any
) -> tuple[list[Any], list[list[Event]]]:
    """Every rank's result and log; the answer may use messages only, and leaves its input alone."""
    outcomes = launch(_on_rank, len(inputs), args=(answer, list(inputs), more), **ON_CPU)
    results, kept, logs, others = map(list, zip(*outcomes, strict=True))
    if any(others):
        report.fail(
            f"it calls {', '.join(max(others))}",
            "build it from send, receive and exchange: that is the exercise.",
        )
    if not all(kept):
        report.fail("the input tensor has changed", "a chunk of `t` is a view of it: add into a new tensor.")
    return results, logs


def _everywhere(
    report: Report,
    fact: str,
    got: list[Any],
    want: list[Tensor],
    mistakes: Mapping[str, list[Tensor]],
    likely: str | None = None,
) -> None:
    """One fact for all ranks; where it is wrong, the first such rank's values and slip."""
    wrong = next((r for r, w in enumerate(want) if difference(got[r], w, 1e-6) is not None), None)
    if wrong is None:
        return report.ok(fact)
    slips = {hint: values[wrong] for hint, values in mistakes.items()}
    return report.close(f"the result of rank {wrong}", got[wrong], want[wrong], mistakes=slips, likely=likely)


def _bytes_at_most(report: Report, logs: list[list[Event]], limits: list[int], likely: str) -> None:
    """Each rank's bytes against its own limit, stated for the rank that exceeds it, or else for rank 0."""
    sent = [sum(event.size for event in log if event.kind == "send") for log in logs]
    worst = max(range(len(sent)), key=lambda r: (sent[r] > limits[r], -r))
    report.at_most(f"bytes sent by rank {worst}", sent[worst], limits[worst], likely=likely)


def _first_sent(log: list[Event]) -> tuple[int, ...]:
    return next((event.values for event in log if event.kind == "send"), ())


def _messages_of(logs: list[list[Event]]) -> int:
    return max(sum(event.kind == "send" for event in log) for log in logs)


@check
def check_04_1(report: Report, ring_reduce_scatter: Callable[[Tensor], Tensor]) -> None:
    for ranks, shape in [(4, (10, 3)), (3, (7,)), (2, (6,))]:
        rest = " x 3" if len(shape) > 1 else ""
        report.case(f"{ranks} ranks, {shape[0]}{rest} elements")
        inputs = [_whole_numbers(shape, rank) for rank in range(ranks)]
        rows = chunk_sizes(shape[0], ranks)
        want = list(sum(inputs).split(rows))
        results, logs = _run(report, ring_reduce_scatter, inputs)
        own = [t.split(rows)[r] for r, t in enumerate(inputs)]
        as_it_was = "your own chunk as it was: keep the sum that you make in each step."
        if all(
            _first_sent(log) == tuple(chunk.flatten().tolist()) for log, chunk in zip(logs, own, strict=True)
        ):
            as_it_was = (
                "the chunk you send first comes home last: it cannot be your own, which has to end with you."
            )
        mistakes = {
            "this is the next rank's chunk: start one chunk further back.": want[1:] + want[:1],
            "this is the previous rank's chunk: start one chunk further on.": want[-1:] + want[:-1],
            "only one rank's part arrived: add what you receive to what you hold.": [
                inputs[(r + 1) % ranks].split(rows)[r] for r in range(ranks)
            ],
            as_it_was: own,
        }
        likely = "after the last step a rank has one complete chunk: is the complete one the chunk that you return?"
        _everywhere(report, "every rank has its chunk of the sum", results, want, mistakes, likely)
        width = inputs[0][0].numel()
        limits = [ring_reduce_scatter_sent(shape[0], 8 * width, ranks, r) for r in range(ranks)]
        likely = "send one chunk a step: a rank needs the sum of its own chunk, not everyone's tensor."
        _bytes_at_most(report, logs, limits, likely)
        report.at_most("messages sent by a rank", _messages_of(logs), ranks - 1)


@check
def check_04_2(report: Report, ring_all_gather: Callable[[Tensor, list[int]], Tensor]) -> None:
    for rows in ([2, 5, 1, 3], [4, 0, 1], [3, 1]):
        ranks = len(rows)
        report.case(f"{ranks} ranks with {', '.join(map(str, rows))} rows")
        inputs = [_whole_numbers((count, 2), rank) for rank, count in enumerate(rows)]
        want = [torch.cat(inputs)] * ranks
        results, logs = _run(report, ring_all_gather, inputs, list(rows))
        mistakes = {
            "the rows are there, but begin with the rank's own: put them in the order of the ranks.": [
                torch.cat(inputs[r:] + inputs[:r]) for r in range(ranks)
            ],
            "in the order in which they came: chunk r belongs at place r.": [
                torch.cat([inputs[(r - step) % ranks] for step in range(ranks)]) for r in range(ranks)
            ],
        }
        _everywhere(report, "every rank has everyone's rows", results, want, mistakes)
        past = sum(e.kind == "send" and e.peer != (r + 1) % ranks for r, log in enumerate(logs) for e in log)
        report.at_most(
            "messages to others than the right neighbour",
            past,
            0,
            likely="in a ring you talk to your right neighbour only; it passes your rows on.",
        )
        limits = [16 * (sum(rows) - rows[(r + 1) % ranks]) for r in range(ranks)]
        likely = "pass on what came in the step before, as long as it is: no padding, nothing twice."
        _bytes_at_most(report, logs, limits, likely)
        report.at_most("messages sent by a rank", _messages_of(logs), ranks - 1)


@check
def check_04_3(report: Report, tree_broadcast: Callable[[Tensor, int], Tensor]) -> None:
    for ranks, src in [(2, 0), (4, 1), (5, 3), (6, 5)]:
        report.case(f"{ranks} ranks, root {src}")
        inputs = [_whole_numbers((3,), rank) for rank in range(ranks)]
        results, logs = _run(report, tree_broadcast, inputs, src)
        mistakes = {
            "this is rank 0's tensor: the tree grows from `src`.": [inputs[0]] * ranks,
            "this rank kept its own tensor: it received, but did not return what came, or nobody sent.": inputs,
        }
        _everywhere(report, "every rank has the root's tensor", results, [inputs[src]] * ranks, mistakes)
        messages = in_rounds(logs)
        report.at_most(
            "messages in all", len(messages), ranks - 1, likely="every rank but the root hears it once."
        )
        report.at_most(
            "rounds",
            max(m.round for m in messages),
            (ranks - 1).bit_length(),
            likely="in every round all who have the tensor pass it on, so they double.",
        )


@check
def check_04_4(report: Report, crossover: Callable[[Callable[[str, float], float]], float]) -> None:
    draw = random.Random(4)
    for ranks in (4, 8, 64, 3):
        report.case(f"{ranks} ranks")
        link = Link(draw.uniform(1e-6, 50e-6), draw.uniform(1e9, 100e9))
        calls = 0

        def time_of(algorithm: str, size: float, ranks: int = ranks, link: Link = link) -> float:
            nonlocal calls
            calls += 1
            return all_reduce_seconds(algorithm, size, ranks, link)

        want = tree_ring_crossover(ranks, link)
        got = crossover(time_of)
        if not isinstance(got, int | float):
            report.fail(f"the result is {got!r}, not a number of bytes", "a `return` is missing?")
        mistakes = {
            "the sign is turned round: the ring starts higher and rises less.": -want,
            "upside down: difference of the heights over difference of the slopes.": 1 / want
            if want
            else 1.0,
            "this is where latency and transfer take equally long, for one message.": link.latency
            * link.rate,
        }
        # In bytes: a thousandth of what the latency is worth is as good as nothing.
        scale = link.latency * link.rate
        problem = difference(got / scale, want / scale, 1e-3)
        if problem is not None:
            hint = next(
                (h for h, v in mistakes.items() if difference(got / scale, v / scale, 1e-3) is None), None
            )
            hint = (
                hint
                or "each time is a straight line over the size: two measurements give its height and slope."
            )
            report.fail(f"the two take equally long at {want:,.0f} bytes, not at {got:,.0f}", hint)
        report.ok(f"the two take equally long at {want:,.0f} bytes")
        report.at_most("measurements", calls, 4, likely="a straight line is known from two of its points.")


@check
def check_04_5(report: Report, ring_steps: Callable[[int, int], list[tuple[str, int]]]) -> None:
    for ranks in (2, 3, 4, 7, 8):
        report.case(f"{ranks} ranks")
        programs = [list(ring_steps(rank, ranks)) for rank in range(ranks)]
        for rank, steps in enumerate(programs):
            right, left = (rank + 1) % ranks, (rank - 1) % ranks
            if sorted(steps) != [("receive", left), ("send", right)]:
                report.fail(
                    f"rank {rank} does {steps}",
                    f"one send to the right ({right}) and one receive from the left ({left}) are wanted.",
                )
        meeting = rendezvous(programs)
        likely = "somebody must receive while its neighbour sends, on every edge of the ring."
        if all(kind == "send" for kind, _ in meeting.waiting.values()):
            likely = "everyone sends first, and nobody receives."
        elif all(kind == "receive" for kind, _ in meeting.waiting.values()):
            likely = "everyone receives first, and nobody sends."
        report.true(not meeting.waiting, "everyone gets through", str(meeting), likely)
        report.at_most(
            "rounds",
            meeting.rounds,
            2 if ranks % 2 == 0 else 3,
            likely="half of the ranks can send at the same time to the other half.",
        )
    report.case("3 real ranks")
    got = launch(_play, 3, args=([ring_steps(rank, 3) for rank in range(3)],), **ON_CPU)
    report.equal("what came from the left", got, [2.0, 0.0, 1.0])


def _play(programs: list[list[tuple[str, int]]]) -> float:
    """Carry out a rank's steps with blocking messages; what it received."""
    me = dist.get_rank()
    received = torch.empty(1)
    for kind, peer in programs[me]:
        if kind == "send":
            send(torch.tensor([float(me)]), peer)
        else:
            received = receive(received, peer)
    return received.item()
