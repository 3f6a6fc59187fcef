"""How long training stands still when a rank is lost, before the run: the four phases of a recovery in a timeline."""

from __future__ import annotations

from simulator.inputs import checks
from simulator.ledgers.timeline import Span, Timeline

LANE = "recovery"
PHASES = ("detect", "re-form", "restore", "catch up")


def predict_recovery(
    ranks: int,
    *,
    detect: float,
    poll: float,
    last_call: float,
    connect: float,
    state_bytes: float,
    bandwidth: float,
    step_seconds: float,
    steps_lost: int = 0,
) -> Timeline:
    """The recovery of the ranks that are left; 0 seconds is the loss.

    Args:
        ranks: how many are left.
        detect: until a collective fails: milliseconds for a closed connection, the heartbeats' time limit for a
            machine that has stopped.
        poll: between two looks of an agent at the round.
        last_call: what an open round waits; 0 when all who are expected have come, as after the death of a rank whose
            agent says that it leaves.
        connect: to make a process group.
        state_bytes, bandwidth: of the state that one rank sends to all others (bytes), and of the link (bytes/s).
        step_seconds: of one step.
        steps_lost: done, and lost: 0 with state in memory, half an interval on average with checkpoints. The step that
            was under way is done again in any case.
    """
    checks.at_least(1, ranks=ranks)
    checks.at_least(0, steps_lost=steps_lost)
    checks.not_negative(
        detect=detect,
        poll=poll,
        last_call=last_call,
        connect=connect,
        state_bytes=state_bytes,
        step_seconds=step_seconds,
    )
    checks.positive_or_infinite(bandwidth=bandwidth)
    lengths = (
        detect,
        poll + last_call + connect,
        state_bytes / bandwidth,
        (steps_lost + 1) * step_seconds,
    )
    spans, start = [], 0.0
    for name, length in zip(PHASES, lengths, strict=True):
        spans += [Span(rank, LANE, name, start, start + length) for rank in range(ranks)]
        start += length
    return Timeline(spans)
