"""Checks that a schedule is a whole training step and that its ranks can finish; the error names what is wrong."""

from __future__ import annotations

from simulator.pipeline.actions import Action, Schedule
from simulator.pipeline.engine import simulate

Message = tuple[str, Action]  # "send" or "receive", and the action whose output travels

TRANSFERS = ("buffered", "blocking")


def validate_schedule(schedule: Schedule, transfers: str = "buffered") -> None:
    """Check that every microbatch passes every stage once, forward and backward, and that the ranks can finish.

    Args:
        schedule: as ``make_schedule`` made it, or your own.
        transfers: what a rank does about its messages.
            ``"buffered"``: it hands its output over and goes on at once; it only waits for what it needs.
            ``"blocking"``: a message needs both ends at once. After each action a rank sends the output and
            receives what the next action needs, together, and goes on when both are done (Megatron-LM's
            ``send_forward_recv_backward``). ``gpipe``, ``1f1b`` and ``zb-h1`` can always run like this; where a
            rank has several chunks, or runs further ahead, the answer depends on the numbers.

    Raises:
        ValueError: with one sentence for the first thing found wrong.
    """
    if transfers not in TRANSFERS:
        raise ValueError(f"transfers must be one of {', '.join(TRANSFERS)}, not {transfers!r}")
    for rank, actions in enumerate(schedule.actions):
        _check_order(schedule, rank, actions)
    _check_complete(schedule)
    simulate(schedule)  # raises if ranks wait for one another
    if transfers == "blocking":
        _check_exchange(schedule)


def _check_order(schedule: Schedule, rank: int, actions: tuple[Action, ...]) -> None:
    """Every action on its own rank, once, and F before B before W."""
    done: set[Action] = set()
    for action in actions:
        kind, stage, i = action
        holder = schedule.rank_of(stage)
        if holder != rank:
            raise ValueError(f"rank {rank} does {action}, but stage {stage} lives on rank {holder}")
        whole, halves = Action("BW", stage, i), (Action("B", stage, i), Action("W", stage, i))
        if action in done or (kind != "F" and whole in done) or (kind == "BW" and halves[0] in done):
            raise ValueError(f"rank {rank} does {action} twice")
        before = halves[0] if kind == "W" else Action("F", stage, i)
        if kind != "F" and before not in done:
            raise ValueError(f"rank {rank} does {action} before {before}")
        done.add(action)


def _check_complete(schedule: Schedule) -> None:
    done = {action for actions in schedule.actions for action in actions}
    for stage in range(schedule.stages):
        for i in range(schedule.microbatches):
            whole = Action("BW", stage, i) in done
            for action in [Action(kind, stage, i) for kind in ("F" if whole else "FBW")]:
                if action not in done:
                    raise ValueError(f"rank {schedule.rank_of(stage)} never does {action}")


def _check_exchange(schedule: Schedule) -> None:
    """Play the messages through: one is delivered once both its ends are at it."""
    todo = [_exchanges(schedule, actions) for actions in schedule.actions]
    current: list[set[Message]] = [set() for _ in todo]
    moving = True
    while moving:
        offered = {action for step in current for what, action in step if what == "send"}
        awaited = {action for step in current for what, action in step if what == "receive"}
        delivered = offered & awaited
        moving = bool(delivered)
        for rank, step in enumerate(current):
            step -= {message for message in step if message[1] in delivered}
            while not current[rank] and todo[rank]:
                current[rank], moving = todo[rank].pop(), True
    stuck = [
        f"rank {rank} waits to {what} {action}"
        for rank, step in enumerate(current)
        for what, action in sorted(step)
    ]
    if stuck:
        raise ValueError(f"{schedule.name} cannot run with blocking transfers: " + "; ".join(stuck))


def _exchanges(schedule: Schedule, actions: tuple[Action, ...]) -> list[set[Message]]:
    """What a rank sends and receives between its actions, the last exchange first."""
    exchanges = []
    sent: set[Message] = set()
    for action in actions:
        exchanges.append(sent | _message("receive", schedule, action, -1))
        sent = _message("send", schedule, action, 0)
    return [*exchanges, sent][::-1]


def _message(what: str, schedule: Schedule, action: Action, back: int) -> set[Message]:
    """The message that this action sends or receives, if it crosses ranks; a backward goes the other way."""
    kind, stage, i = action
    way = 1 if kind == "F" else -1
    source, target = stage + way * back, stage + way * (back + 1)
    ends = range(schedule.stages)
    if (
        kind == "W"
        or source not in ends
        or target not in ends
        or schedule.rank_of(source) == schedule.rank_of(target)
    ):
        return set()
    return {(what, Action(kind[0], source, i))}
