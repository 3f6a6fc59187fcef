"""Which wrong answers do the checks not notice? Every small change of every solution, graded one after the other.

    python tests/mutate_answers.py 04 05.2 --count 40 --seed 0

changes what a learner writes in an exercise, one place at a time (with ``--styles``, in the right answers that are
written in another way than the solution): an operator, a comparison or a constant becomes its neighbour, an argument,
a statement, a guard or a ``with`` is dropped, ``clone`` or a division is left out, two arguments or two lines change
places. Each changed answer goes through the check as ``tests/wrong_answers`` does it.
It prints what passes, with its difference from the solution, and what a learner would be told of the others; with
``--json FILE`` all of it is kept. What passes is right in another way, or a hole in the check; which of the two, a
person decides. ``mutate.py`` does the same to the course's own code and its tests.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib.util
import io
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

from answer_changes import changed

HERE = Path(__file__).parent
sys.path[:] = [
    folder for folder in sys.path if folder != str(HERE)
]  # its folder `course_lib` is not the course's
LIMIT = 30  # seconds for one check
MEMORY = 16 * 2**30  # bytes of addresses that a changed answer may ask for


def grading():
    """``tests/wrong_answers/test_answers.py``, which knows the exercises and their listed answers."""
    spec = importlib.util.spec_from_file_location("answers", HERE / "wrong_answers" / "test_answers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcome(answers, chapter: str, number: str, source: str) -> tuple[str, str]:
    """(what became of it, what the learner is told): passes, wrong, slow (misses the target only) or raises."""
    from course_lib.grading.failed import CheckFailed, TargetMissed
    from course_lib.runtime import settings

    signal.alarm(LIMIT)
    try:
        with settings.kept(), contextlib.redirect_stdout(io.StringIO()):
            answers.judge.check(number, answers.material(number).make(source))
    except CheckFailed as failed:
        return "slow" if isinstance(failed, TargetMissed) else "wrong", str(failed)
    except KeyboardInterrupt:
        return "endless", f"no end within {LIMIT} seconds"
    except BaseException as error:  # while the cell ran, before any check
        return "raises", f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return "passes", ""


def work(chapter: str, number: str) -> None:
    """Grade what comes on stdin, an answer a line, in a process that may be lost."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    answers = grading()
    from course_lib.runtime.kept import kept

    with kept():
        for line in sys.stdin:
            print(json.dumps(outcome(answers, chapter, number, json.loads(line))), file=told, flush=True)


class Worker:
    """A process that grades answers to one exercise; where one hangs it or ends it, the next gets a new process."""

    def __init__(self, chapter: str, number: str) -> None:
        self.command = [sys.executable, __file__, "--work", chapter, number]
        self.process: subprocess.Popen | None = None

    def grade(self, source: str) -> tuple[str, str]:
        if self.process is None:
            pipe = subprocess.PIPE
            options = {"text": True, "stderr": subprocess.DEVNULL, "start_new_session": True}
            self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, **options)
        self.process.stdin.write(json.dumps(source) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], 3 * LIMIT)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.close()
            return "endless" if not ready else "raises", "its process was lost"
        return tuple(json.loads(line))

    def close(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def difference(old: str, new: str) -> str:
    """The lines that differ."""
    lines = difflib.unified_diff(ast.unparse(ast.parse(old)).splitlines(), new.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in list(lines)[2:] if not line.startswith("@@"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", nargs="+", help="chapters (04) and exercises (05.2)")
    parser.add_argument("--count", type=int, help="changes to try of each exercise (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument(
        "--styles", action="store_true", help="change the right answers of tests/wrong_answers instead"
    )
    parser.add_argument("--list", action="store_true", help="only count what can be changed")
    parser.add_argument("--json", type=Path, help="keep what was tried, a line each, in this file")
    asked = parser.parse_args()
    answers = grading()
    for chapter, number in answers.ALL:
        if not number.startswith(tuple(asked.which)):
            continue
        texts = [solution := answers.material(number).source]
        if asked.styles:
            listed = answers.entries(chapter).get(number, [])
            texts = [entry.patched(solution) for entry in listed if "right" in entry.words]
        possible = [(text, source) for text in texts for source in changed(text)]
        if asked.list:
            print(f"{number}: {len(possible)} changes")
            continue
        count = min(asked.count or len(possible), len(possible))
        chosen = random.Random(asked.seed).sample(possible, count)
        worker, alive = Worker(chapter, number), 0
        for text, source in sorted(chosen, key=possible.index):
            status, said = worker.grade(source)
            alive += status == "passes"
            diff = difference(text, source)
            print(f"---- {number} {status}\n{diff}\n{said}", flush=True)
            if asked.json:
                entry = {"exercise": number, "status": status, "said": said, "diff": diff, "source": source}
                with asked.json.open("a") as file:
                    print(json.dumps(entry), file=file)
        worker.close()
        print(
            f"==== {number}: {alive} of {count} changed answers pass; {len(possible)} are possible",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        main()
