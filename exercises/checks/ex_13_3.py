"""13.3: heads dealt to devices of unequal speed and memory."""

import random

from course_checks.on_ranks import count

from course_lib.grading.judge import Fact, record

FACTS = {
    "heads": Fact("the result", "returns a list of whole numbers, one number for each rank; they add up to…"),
    "memory": Fact("the memory", "No rank gets more heads than fit into its memory."),
    "refused": Fact("the result", "If the heads do not fit into the memory of all ranks together, raise a…"),
    "slowest": Fact("the seconds of the slowest rank", "Among all such lists return one…", tolerance=1e-9),
    "calls": Fact("calls of `seconds` beyond `heads` + ranks", "`seconds` is called at most…", most=0),
}
HEAD_BYTES = 100

# tables: seconds of each rank for no head, one, two, …; spare: bytes of a rank's memory beyond those of its heads
Case = record("name tables room", spare=99)


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)

    def times(heads: int, *slowness: float, pairs: bool = False, drawn: bool = True) -> list[list[float]]:
        """A start and a time for each head; with ``pairs`` an odd head costs as much as a pair."""
        tables = []
        for slow in slowness:
            start = draw.uniform(0.1, 0.5) if drawn else 0.5
            tables.append([0.0, *(slow * (start + n + (n % 2 if pairs else 0)) for n in range(1, heads + 1))])
        return tables

    fixed = times(9, 1.5, 5, 1, 3, drawn=False)  # with these numbers all likely mistakes differ
    return [
        Case("8 heads, one rank three times as slow", times(8, 1, 3), [8, 8]),
        Case("12 heads, the fast rank has memory for 5", times(12, 1, 3), [5, 12], spare=0),
        Case("16 heads on 3 ranks", times(16, 1, 1.5, 4), [16, 16, 16]),
        Case("12 heads on 3 ranks, one without memory", times(12, 1, 2, 2.5), [12, 0, 12]),
        Case("12 heads, computed in pairs", times(12, 1, 2.6, pairs=True), [12, 12]),
        Case("1 head on 3 ranks", times(1, 2, 1, 3), [1, 1, 1]),
        Case("10 heads, all memory is needed", times(10, 1, 5), [4, 6]),
        Case("64 heads on 8 ranks", times(64, 1, 1, 1.5, 2, 2, 3, 4, 8), [12, 9, 20, 64, 64, 64, 3, 64]),
        Case("9 heads on 4 ranks, three with memory for 2", fixed, [2, 2, 9, 2]),
        Case("heads that do not fit", times(12, 1, 3), [5, 6], spare=0),
    ]


def observe(deal_heads, case: Case) -> dict:
    heads, ranks, calls = len(case.tables[0]) - 1, len(case.tables), []

    def seconds(rank: int, n: int) -> float:
        calls.append((rank, n))
        return case.tables[rank][n]

    memory = [own * HEAD_BYTES + case.spare * (own > 0) for own in case.room]
    try:
        shares = deal_heads(heads, seconds, memory, HEAD_BYTES)
    except ValueError:
        if sum(case.room) >= heads:
            raise
        return {}
    if sum(case.room) < heads:
        said = f"{heads} heads do not fit into memory for {' and '.join(map(str, case.room))}"
        return {"refused": f"{said}, and the result is {shares!r:.80}"}
    try:
        shares = [int(share) for share in shares]
    except (TypeError, ValueError):
        return {"heads": f"the result is {shares!r:.80}"}
    if len(shares) != ranks or min(shares) < 0 or sum(shares) != heads:
        said = f"the result is {shares}, for {count(heads, 'head')} on {ranks} ranks"
        return {"heads": said, "trace": shares}
    over = next((r for r in range(ranks) if shares[r] > case.room[r]), None)
    if over is not None:
        said = f"rank {over} gets {shares[over]} heads, and has memory for {case.room[over]}"
        return {"memory": said, "trace": shares}
    return {
        "slowest": max(table[share] for table, share in zip(case.tables, shares, strict=True)),
        "calls": max(0, len(calls) - heads - ranks),
        "trace": shares,
    }
