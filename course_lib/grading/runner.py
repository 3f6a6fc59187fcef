"""The process in which answers are judged, one after the other, as their notebook would: cell, then check.

``sandbox.py`` starts it, sends what to judge (``answers.to_judge``) as one line of JSON, and reads a line for each step
that begins (the course's cells, the answer's, its check) and one for each verdict.
"""

from __future__ import annotations

import io
import json
import linecache
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from course_lib.grading.complaints import NOT_WRITTEN, explain, unwritten
from course_lib.grading.failed import CheckFailed, TargetMissed
from course_lib.grading.printed import Printed

LONGEST = 20_000  # characters of a message that are passed on


def main() -> None:
    """Judge what comes on stdin. What answers and libraries print is no event: it goes nowhere."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # how sandbox.py ends what takes too long
    work = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    sys.stdin = open(os.devnull)  # noqa: SIM115 - `input()` finds the end of it

    def tell(**event: Any) -> None:
        print(json.dumps(event), file=events, flush=True)

    tell(exercise=work[0]["exercise"], step="course")
    from course_lib.grading import ranks, settings  # torch takes its time

    with ranks.kept():
        for answer in work:
            with settings.kept():
                try:
                    status, message, facts = judged(**answer, begin=tell)
                except KeyboardInterrupt as late:
                    status, message, facts = "timeout", "".join(explain(late)[1:]), []
                tell(exercise=answer["exercise"], status=status, message=message[:LONGEST], facts=facts)


def judged(
    exercise: str, source: str, names: list[str], course: list[str], begin: Callable[..., None]
) -> tuple[str, str, list[str]]:
    """Status, message and the facts that hold, of one answer."""
    from course_lib.grading.judge import check
    from course_lib.grading.material import material, names_of

    begin(exercise=exercise, step="course")
    try:
        namespace = {"display": lambda *_, **__: None, **names_of(tuple(course))}
        material(exercise)
    except Exception as error:
        return "error", f"a cell of the course failed: {explain(error)[0]}", []
    begin(exercise=exercise, step="answer")
    printed = Printed()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            execute(source, namespace, f"<answer {exercise}>")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if what := unwritten(error, exercise):
            return "unwritten", f"{NOT_WRITTEN}: {what}", []
        first, *more = explain(error)
        return "error", "\n  ".join([f"the answer's cell raised {first}", *more]), []
    if missing := [name for name in names if name not in namespace]:
        return "error", f"the answer's cell does not define `{missing[0]}`", []
    begin(exercise=exercise, step="check")
    said, status, message = io.StringIO(), "passed", ""
    try:
        with redirect_stdout(said):
            check(exercise, *(namespace[name] for name in names))
    except CheckFailed as failed:
        status = "target missed" if isinstance(failed, TargetMissed) else "failed"
        message = str(failed)
    except Exception as error:
        status, message = "error", explain(error)[0]
    lines = said.getvalue().splitlines()
    for line in _after("  ○ ", lines):
        status, message = "unwritten", line
    return status, message, list(_after("  ✓ ", lines))


def _after(mark: str, lines: list[str]) -> Iterator[str]:
    return (line.removeprefix(mark) for line in lines if line.startswith(mark))


def execute(source: str, namespace: dict[str, Any], name: str) -> None:
    """Run a cell; ``name`` stands for its file in tracebacks, on ranks too."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)


def _leave_with_parent() -> None:
    """End when the grader has ended, however that was: its end of our stdin closes."""
    os.read(0, 1)
    os._exit(3)
