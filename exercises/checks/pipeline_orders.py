"""What 11.1 and 11.2 observe of an order: whether the ranks' lists fit together, the room they need, and the time."""

from collections.abc import Callable
from itertools import accumulate
from operator import index

from course_checks.on_ranks import count

from course_lib.grading.judge import Fact, record
from simulator.pipeline.actions import Action, Schedule
from simulator.pipeline.engine import simulate
from simulator.pipeline.validate import validate_schedule

Case = record(
    "ranks microbatches", lambda c: f"{count(c.ranks)}, {count(c.microbatches, 'microbatch', 'es')}"
)
# More microbatches than ranks, as many, fewer; one rank, one microbatch; odd numbers.
CASES = [Case(*size) for size in [(4, 8), (3, 7), (2, 5), (4, 4), (5, 3), (1, 4), (4, 1)]]


def facts(pairs: str, fewer: str, work: str, waits: str, room: str, target: str) -> dict[str, Fact]:
    """With the task's sentences."""
    return {
        "pairs": Fact("the pairs", pairs),
        "fewer": Fact("the microbatches", fewer),
        "work": Fact("the work of every rank", work),
        "waits": Fact("waiting", waits),
        "room": Fact("microbatches at once", room, each="rank"),
        "units": Fact("units of time beyond those that a step may take", target, most=0),
    }


def observed(order, case: Case, names: dict[str, str], room: Callable[[int], int], units: int) -> dict:
    """The facts of one case.

    Args:
        names: the answer's kinds, of which the last ends a microbatch, and what the simulator calls them.
        room: rank -> how many microbatches it may have at once.
        units: of time that a step may take.
    """
    lists: list[list[tuple[str, int]]] = []
    for rank in range(case.ranks):
        lists.append([])
        for pair in order(rank, case.ranks, case.microbatches) or ():
            try:
                kind, microbatch = pair
                if kind not in names:
                    raise ValueError
                lists[rank].append((kind, index(microbatch)))
            except (TypeError, ValueError):
                said = f"rank {rank} has {pair!r} in its list, and the kinds are {', '.join(names)}"
                return {"pairs": said}
            if not 0 <= lists[rank][-1][1] < case.microbatches:
                said = f"rank {rank} has {pair!r} in its list, and the microbatches are 0 to {case.microbatches - 1}"
                return {"fewer": said}
    actions = tuple(tuple(Action(names[kind], r, i) for kind, i in pairs) for r, pairs in enumerate(lists))
    schedule = Schedule("your order", case.ranks, case.microbatches, 1, actions)
    try:
        validate_schedule(schedule)
    except ValueError as error:
        whole = sorted((kind, i) for kind in names for i in range(case.microbatches))
        complete = all(sorted(pairs) == whole for pairs in lists)
        return {"waits" if complete else "work": str(error).replace("; ", "\n"), "trace": lists}
    last, over = list(names)[-1], []
    for rank, pairs in enumerate(lists):
        held = max(accumulate((kind == "F") - (kind == last) for kind, _ in pairs))
        over.append(f"{held} microbatches at once, and room for {room(rank)}" if held > room(rank) else "")
    beyond = round(simulate(schedule, 1, 1, 1).makespan) - units
    return {"room": over, "units": beyond, "trace": lists}
