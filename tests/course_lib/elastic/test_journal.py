"""What a journal says of a run."""

from course_lib.elastic.journal import Journal
from simulator.predict.recovery import PHASES


def events(pid, *times_and_kinds):
    return [{"pid": pid, "kind": kind, "time": time, "rank": 0, "step": 7} for time, kind in times_and_kinds]


def test_a_recovery_is_that_of_the_survivors_and_not_of_a_newcomer():
    survivor = events(1, (0, "connected"), (11, "lost"), (12, "connected"), (13, "restored"), (14, "step"))
    newcomer = events(2, (30, "lost"), (31, "connected"), (32, "restored"), (33, "step"))
    recovery = Journal(survivor + newcomer).recovery(lost_at=10)
    assert [
        (span.name, span.start, span.end) for span in sorted(recovery.spans, key=lambda span: span.start)
    ] == [(name, start, start + 1) for start, name in enumerate(PHASES)]
