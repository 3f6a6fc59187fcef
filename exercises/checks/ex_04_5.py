"""04.5: blocking programs, played out."""

from course_lib.grading.judge import Fact, record
from simulator.predict.message_rounds import rendezvous

FACTS = {
    "steps": Fact("the steps", "both once, in the order that you choose"),
    "waiting": Fact("the ranks", "so that no rank waits for ever."),
    "rounds": Fact(
        "rounds beyond 2 for an even number of ranks, and 3 for an odd one", "2 rounds for an even…", most=0
    ),
}

Case = record("name ranks")
CASES = [Case(f"{ranks} ranks", ranks) for ranks in (2, 3, 4, 7, 8)]


def observe(ring_steps, case: Case) -> dict:
    n = case.ranks
    programs = [[(kind, int(peer)) for kind, peer in ring_steps(rank, n)] for rank in range(n)]
    for rank, steps in enumerate(programs):
        both = [("send", (rank + 1) % n), ("receive", (rank - 1) % n)]
        if sorted(steps) != sorted(both):
            said = f"rank {rank} takes the steps {steps}, and its two steps are {both}"
            return {"steps": said, "trace": programs}
    meeting = rendezvous(programs)
    return {
        "waiting": str(meeting) if meeting.waiting else "",
        "rounds": max(0, meeting.rounds - 2 - n % 2),
        "trace": programs,
    }
