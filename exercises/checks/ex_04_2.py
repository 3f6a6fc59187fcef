"""04.2: an all-gather of as many rows as each rank happens to have, by messages to the right."""

from course_checks.collectives import BASE, VIEWS, run, whole_numbers
from course_checks.on_ranks import count

from course_lib.grading.judge import Fact, record

TARGET = "Every rank sends to its right neighbour only, at most p − 1 messages, and at most as many bytes as…"
FACTS = BASE | {
    "rows": Fact("the rows", "Every rank returns the rows of all ranks, in the order of the…", each="rank"),
    "past": Fact("messages to others than the right neighbour", TARGET, most=0),
    "bytes": Fact("bytes sent by a rank beyond the rows of all but its right neighbour", TARGET, most=0),
    "messages": Fact("messages sent by a rank beyond p − 1", TARGET, most=0),
}

Case = record(
    "rows",
    lambda c: f"{count(len(c.rows))} with {', '.join(map(str, c.rows))} rows" + f", {VIEWS}" * c.views,
    views=False,
)
PLAIN = [(2, 2, 2), (2, 5, 1, 3), (4, 0, 1), (3, 1), (0, 0, 1, 0), (3,)]
CASES = [*map(Case, PLAIN), Case((1, 2), views=True)]


def observe(answer, case: Case) -> dict:
    p, rows = len(case.rows), case.rows
    inputs = whole_numbers(case.seed, *[(n, 2) for n in rows], views=case.views)
    found = run(answer, inputs, list(rows))
    return found.said | {
        "rows": found.results,
        "past": sum(event.peer != (r + 1) % p for r, event in found.sends),
        "bytes": found.bytes_beyond([16 * (sum(rows) - rows[(r + 1) % p]) for r in range(p)]),
        "messages": max(0, max(found.messages) - (p - 1)),
        "trace": found.logs,
    }
