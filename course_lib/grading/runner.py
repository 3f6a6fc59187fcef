"""The process in which answers are judged, one after the other, as their notebook would: cell, then check.

``sandbox.py`` starts it, sends what to judge as one line of JSON, and reads a line for each step that begins
(exercise and ``"course"``, ``"answer"`` or ``"check"``) and one for each verdict (exercise, status, message, facts).
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

from course_lib.grading.complaints import NOT_WRITTEN, explain, unwritten
from course_lib.grading.failed import CheckFailed, Printed, TargetMissed

LONGEST = 20_000  # characters of a message that are passed on


def main() -> None:
    """Judge what comes on stdin. What answers and libraries print is no event: it goes nowhere."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # how sandbox.py ends what takes too long
    work = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    sys.stdin = open(os.devnull)  # noqa: SIM115 - `input()` finds the end of it

    def tell(*event: object) -> None:
        print(json.dumps(event), file=events, flush=True)

    tell(work[0]["exercise"], "course")
    from course_lib.runtime import kept, settings  # torch takes its time

    with kept.kept():
        for answer in work:
            exercise = answer["exercise"]
            with settings.kept():
                try:
                    verdict = judged(**answer, begin=lambda step, exercise=exercise: tell(exercise, step))
                except KeyboardInterrupt as late:
                    verdict = "timeout", "".join(explain(late)[1:]), []
            status, message, facts = verdict
            tell(exercise, status, message[:LONGEST], facts)


def judged(
    exercise: str, source: str, names: list[str], course: list[str], begin: Callable[[str], None]
) -> tuple[str, str, list[str]]:
    """Status, message and the facts that hold, of one answer."""
    from course_lib.grading.judge import check
    from course_lib.grading.material import execute, material, names_of

    begin("course")
    try:
        namespace = {"display": lambda *_, **__: None, **names_of(tuple(course))}
        material(exercise)
    except Exception as error:
        return "error", f"a cell of the course failed: {explain(error)[0]}", []
    begin("answer")
    try:
        with redirect_stdout(Printed()) as printed, redirect_stderr(printed):
            execute(source, namespace, f"<answer {exercise}>")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if what := unwritten(error, exercise):
            return "unwritten", f"{NOT_WRITTEN}: {what}", []
        return "error", "\n  ".join(explain(error, "the answer's cell raised ")), []
    if missing := [name for name in names if name not in namespace]:
        return "error", f"the answer's cell does not define `{missing[0]}`", []
    begin("check")
    said, status, message = io.StringIO(), "passed", ""
    try:
        with redirect_stdout(said):
            check(exercise, *(namespace[name] for name in names))
    except CheckFailed as failed:
        status, message = "target missed" if isinstance(failed, TargetMissed) else "failed", str(failed)
    except Exception as error:
        status, message = "error", explain(error)[0]
    lines = said.getvalue().splitlines()
    if stubs := [line[4:] for line in lines if line.startswith("  ○ ")]:
        status, message = "unwritten", stubs[0]
    return status, message, [line[4:] for line in lines if line.startswith("  ✓ ")]


def _leave_with_parent() -> None:
    """End when the grader has ended, however that was: its end of our stdin closes."""
    os.read(0, 1)
    os._exit(3)
