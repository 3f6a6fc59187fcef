"""From a schedule and the time of each action: when every action starts and ends, or which ranks wait for ever.

A rank does its actions in their order, each as soon as its input has arrived. The bubble, the critical path and a
deadlock all follow from this one rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import Any, TypeGuard

from simulator.inputs.checks import is_number, not_negative, positive_or_infinite, refuse, speeds_of
from simulator.pipeline.actions import Action, Schedule
from simulator.pipeline.execution import Execution, Send, inputs_of

Duration = float | Sequence[float] | Sequence[Sequence[float]]


def simulate(
    schedule: Schedule,
    forward: Duration = 1,
    backward_input: Duration = 1,
    backward_weight: Duration = 1,
    transfer: float = 0,
    *,
    message_bytes: float = 0,
    bandwidth: float = inf,
    speeds: Sequence[float] | None = None,
    blocking: bool = False,
    overlapped: float | None = None,
) -> Execution:
    """When each action of ``schedule`` runs.

    Args:
        schedule: who does what in which order.
        forward, backward_input, backward_weight: time of F, B and W, in any unit: one number for all, one number
            a stage, or for each stage one number a microbatch. A whole backward takes B + W.
        transfer: time from the end of an action until the next rank has its output: the latency, alpha.
        message_bytes, bandwidth: bytes of one such message, and bytes per unit of time; they add
            ``message_bytes / bandwidth`` to each transfer. A rank sends one message at a time.
        speeds: of every rank, 1 being the durations as given (a rank of speed 0.5 takes twice as long).
        blocking: a rank computes on only when its message has been delivered; else the two overlap.
        overlapped: time of a forward and a backward that run together (``Schedule.overlapped``); None: as long
            as one after the other.

    Raises:
        ValueError: the durations do not fit the schedule, or its actions can never all run.
    """
    stages, m = schedule.stages, schedule.microbatches
    rank_of = [schedule.rank_of(stage) for stage in range(stages)]
    # Flat tables: entry stage * m + microbatch.
    speed = speeds_of(speeds, schedule.ranks)
    slowness = [1 / speed[rank] for rank in rank_of]
    F = _table("forward", forward, slowness, m)
    B = _table("backward_input", backward_input, slowness, m)
    W = _table("backward_weight", backward_weight, slowness, m)
    took = {"F": F, "B": B, "W": W, "BW": [b + w for b, w in zip(B, W, strict=True)]}
    positive_or_infinite(bandwidth=bandwidth)
    if overlapped is not None:
        not_negative(overlapped=overlapped)
    not_negative(transfer=transfer, message_bytes=message_bytes)
    message = transfer + message_bytes / bandwidth
    crosses = [a != b for a, b in pairwise(rank_of)]
    sends_on = {"F": [*crosses, False], "BW": [False, *crosses], "W": [False] * stages}
    sends_on["B"] = sends_on["BW"]

    # When each output is where it is needed, or None: first the forwards', then the input gradients', last a
    # constant for actions that need nothing. ``waiting``: the ranks that cannot go on without an output.
    n, nothing = stages * m, 2 * stages * m
    arrived: list[float | None] = [None] * (2 * n) + [0.0]
    waiting: dict[int, list[int]] = {}
    clock, link_free = [0.0] * schedule.ranks, [0.0] * schedule.ranks
    starts: list[list[float]] = [[] for _ in range(schedule.ranks)]
    ends: list[list[float]] = [[] for _ in range(schedule.ranks)]
    sends: list[Send] = []

    def need(action: Action) -> int:
        """The output this action waits for."""
        kind, stage, i = action
        k = stage * m + i
        if kind == "F":
            return k - m if stage else nothing
        if kind == "W":
            return n + k
        return k if stage == stages - 1 or arrived[k] is None else n + k + m

    runnable = list(range(schedule.ranks))
    while runnable:
        rank = runnable.pop()
        now, began, ended = clock[rank], starts[rank], ends[rank]
        actions = schedule.actions[rank]
        pairs = schedule.overlapped[rank] if overlapped is not None and schedule.overlapped else ()
        for at in range(len(began), len(actions)):
            kind, stage, i = action = actions[at]
            k = stage * m + i
            output = need(action)
            ready = arrived[output]
            if ready is not None and at in pairs:  # the backward of the pair must be able to start, too
                output = need(actions[at + 1])
                other = arrived[output]
                ready = None if other is None else max(ready, other)
            if ready is None:
                waiting.setdefault(output, []).append(rank)
                break
            if at - 1 in pairs:  # already running, beside the forward
                start = began[-1]
                now = max(now, ended[-1])
                ended.append(ended[-1])
            else:
                start = now if kind == "W" or ready < now else ready
                now = start + (took[kind][k] if overlapped is None or at not in pairs else overlapped)
                ended.append(now)
            began.append(start)
            if kind == "W":
                continue
            output = k if kind == "F" else n + k
            if message and sends_on[kind][stage]:
                sent = max(ended[-1], link_free[rank])
                arrived[output] = link_free[rank] = sent + message
                sends.append((rank, at, sent, sent + message))
                if blocking:
                    now = sent + message
            else:
                arrived[output] = ended[-1]
            if output in waiting:
                runnable += waiting.pop(output)
        clock[rank] = now

    if any(len(done) < len(todo) for done, todo in zip(starts, schedule.actions, strict=True)):
        raise ValueError(explain_deadlock(schedule, [len(done) for done in starts]))
    return Execution(schedule, starts, ends, sends, blocking=blocking, together=overlapped is not None)


def explain_deadlock(schedule: Schedule, done: Sequence[int], whole: str = "B") -> str:
    """A sentence for each rank that cannot go on: the action it is at, and the rank that it waits for.

    Args:
        done: how many of its actions each rank has done.
        whole: how a whole backward is called: ``"B"``, as in a timeline, or ``"BW"``.
    """
    keys = [[(a.kind[0], a.stage, a.microbatch) for a in actions] for actions in schedule.actions]
    finished = {key for rank, n in enumerate(done) for key in keys[rank][:n]}
    where = {key: rank for rank, of_rank in enumerate(keys) for key in of_rank}
    wholes = {a[1:] for actions in schedule.actions for a in actions if a.kind == "BW"}

    def named(kind: str, stage: int, i: int) -> str:
        name = whole if kind[0] == "B" and (stage, i) in wholes else kind
        return f"{name}{i} of stage {stage}"

    sentences = []
    for rank, n in enumerate(done):
        if n == len(schedule.actions[rank]):
            continue
        action = schedule.actions[rank][n]
        missing = next((key for key in inputs_of(schedule, action) if key not in finished), None)
        if missing is None:  # one half of a pair: its own input is there, the other half's is not
            missing = next(k for k in inputs_of(schedule, schedule.actions[rank][n + 1]) if k not in finished)
        holder = where.get(missing)
        who = "which no rank does" if holder is None else f"which rank {holder} has not done"
        if holder == rank:
            who = "which it does only later itself"
        sentences.append(f"rank {rank} cannot do {named(*action)}: it waits for {named(*missing)}, {who}")
    return f"{schedule.name} never ends: " + "; ".join(sentences)


def _table(name: str, value: Duration, slowness: Sequence[float], m: int) -> list[float]:
    """Durations by stage and microbatch, flat."""
    stages = len(slowness)
    rows = value if _is_list(value) else [value] * stages
    if len(rows) != stages:
        raise ValueError(f"{name} must be one number, or one for each of {stages} stages, not {len(rows)}")
    table: list[float] = []
    for row, slow in zip(rows, slowness, strict=True):
        if not _is_list(row):
            table += [_time(name, row) * slow] * m
            continue
        if len(row) != m:
            raise ValueError(f"{name} must have one number for each of {m} microbatches, not {len(row)}")
        table += [_time(name, time) * slow for time in row]
    return table


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return hasattr(value, "__len__") and not isinstance(value, str)


def _time(name: str, value: float) -> float:
    if not (is_number(value) and 0 <= value < inf):
        refuse(name, "a number of at least 0", value)
    return float(value)
