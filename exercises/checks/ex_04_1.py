"""04.1: a reduce-scatter by messages to the left."""

from course_checks.collectives import BASE, VIEWS, Run, run, whole_numbers
from course_checks.on_ranks import count

from course_lib.grading.judge import Fact, record
from simulator.inputs.chunks import chunk_sizes

FACTS = BASE | {
    "chunk": Fact("the chunk of the sum", "Rank r returns the r-th chunk of the sum of all…", each="rank"),
    "left": Fact("the messages", "Every message goes to the left neighbour, that is from rank r to rank r…"),
    "bytes": Fact("bytes sent by a rank beyond the chunks of all other ranks", "No rank sends more…", most=0),
    "messages": Fact("messages sent by a rank beyond p − 1", "no rank sends more than p − 1…", most=0),
}

Case = record(
    "ranks shape", lambda c: f"{count(c.ranks)}, {VIEWS if c.views else f'{c.shape[0]} rows'}", views=False
)
PLAIN = [(3, (6, 2)), (4, (10, 3)), (3, (7,)), (2, (5,)), (4, (3, 2)), (1, (4,))]
CASES = [*(Case(*case) for case in PLAIN), Case(3, (5, 2), views=True)]


def observe(answer, case: Case) -> dict:
    inputs = whole_numbers(case.seed, *[case.shape] * case.ranks, views=case.views)
    found = run(answer, inputs)
    row = inputs[0][:1].numel() * inputs[0].element_size()
    limits = [row * (case.shape[0] - own) for own in chunk_sizes(case.shape[0], case.ranks)]
    return found.said | {
        "chunk": found.results,
        "left": not_to_the_left(found, case.ranks),
        "bytes": found.bytes_beyond(limits),
        "messages": max(0, max(found.messages) - (case.ranks - 1)),
        "trace": found.logs,
    }


def not_to_the_left(found: Run, p: int) -> str:
    for rank, event in found.sends:
        if event.peer != (left := (rank - 1) % p):
            return f"rank {rank} sends to rank {event.peer}, and its left neighbour is rank {left}"
    return ""
