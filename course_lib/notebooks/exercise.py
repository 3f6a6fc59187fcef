"""The form of an exercise: four cells of ``solutions/NN_topic.ipynb``, in this order.

1. A Markdown cell with the task. One of its lines is the heading, which carries the number, the title and
   the points, those for meeting the target apart (or none, where the exercise has no target)::

       ### Exercise 05.2 · Gradient buckets (3 points, and 1 for the target)

   A line that begins ``Not allowed:`` names in backticks what would do the work in the learner's place, by its
   full name. An answer that uses it, or anything inside it, is refused::

       Not allowed: `torch.optim` and the chapter's `course_lib.one_device.adam`.

2. The answer: a code cell whose first line is ``# EXERCISE 05.2``. What the learner is to write stands between
   two marks; ``exercises/`` gets a ``raise`` in its place, with the words after the colon (or the title)::

       # EXERCISE 05.2
       def assign_buckets(parameters, limit):
           \"\"\"Lists of parameters, last first, each list at most `limit` bytes.\"\"\"
           # BEGIN SOLUTION: walk the parameters from the last to the first
           ...
           # END SOLUTION

3. The check: a code cell tagged ``nbval-check-output`` (``course_lib/grading/judge.py``)::

       check("05.2", assign_buckets)

4. Three hints for ``course hint 05.2``: first the idea, then the shape of the code, then its first line. This
   Markdown cell is left out of ``exercises/``::

       #### Hints for 05.2
       1. Gradients are ready in the reverse order of the parameters.
       2. Two loops: one over the tensors, and in it …
       3. `for tensor in reversed(parameters):`

A last Markdown cell that begins with ``#### Done`` is left out as well: what a learner with all points is told, such
as where the course's own code and the code of production is.

Other cells may stand between them. An answer may use what the course's own cells define above it, and nothing
of another exercise's answer: each is graded as if the others were not there.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbformat import NotebookNode

CHECK_TAG = "nbval-check-output"
LONGEST_LINE = 110  # of the ``raise`` in an exercise, so that the formatter leaves it alone

_HEADING = re.compile(
    r"^### Exercise (\d\d\.\d+) · (\S.*) \(([1-9]\d*) points?(?:, and ([1-9]\d*) for the target)?\)[ \t]*$",
    re.MULTILINE,
)
_HINTS = re.compile(r"\s*#### Hints for (\d\d\.\d+)[ \t]*\n")
_DONE = re.compile(r"\s*#### Done[ \t]*\n(.*)", re.DOTALL)
_HINT = re.compile(r"^\d\. +(.*(?:\n(?!\d\. ).*)*)", re.MULTILINE)
_NOT_ALLOWED = re.compile(r"^Not allowed:(.*)$", re.MULTILINE)
HINTS = 3
_ANSWER = re.compile(r"\s*#[ \t]*EXERCISE[ \t]+(\d\d\.\d+)[ \t]*(?:\n|$)")
_CHECK = re.compile(r'\bcheck\("(\d\d\.\d+)"')
_SOLUTION = re.compile(
    r"^([ \t]*)# BEGIN SOLUTION(?:: (\S[^\n]*))?[ \t]*\n.*?^[ \t]*# END SOLUTION[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Exercise:
    """One exercise; ``task``, ``answer`` and ``check`` are the indices of its cells.

    Args:
        points: in all; ``target`` of them are for meeting the target, the others for being right.
        not_allowed: full names that an answer may not use.
        hints: none, or the idea, the shape and the first line.
    """

    id: str
    title: str
    points: int
    task: int
    answer: int
    check: int
    target: int = 0
    not_allowed: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    @property
    def right(self) -> int:
        """The points for being right."""
        return self.points - self.target

    @property
    def worth(self) -> str:
        """``"3 points, and 1 for the target"``."""
        text = f"{self.right} point" + ("s" if self.right > 1 else "")
        return f"{text}, and {self.target} for the target" if self.target else text


class _Node(dict):
    """A dict of a notebook, whose entries are attributes, too; None where there is none."""

    __getattr__ = dict.get


def read_trusted(path: Path) -> NotebookNode:
    """A notebook, for reading only: nbformat, which also validates, takes seconds to import.

    Raises:
        ValueError: where there is none, or it is no notebook.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"), object_hook=_Node)
        for cell in notebook.cells:
            cell["source"] = "".join(cell.source)
    except FileNotFoundError:
        raise ValueError(f"there is no notebook {path}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not a notebook: not JSON at line {error.lineno}") from None
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a notebook: {error}") from None
    return notebook


def answer_id(cell: NotebookNode) -> str | None:
    """The exercise that this cell answers, such as ``"05.2"``, or None."""
    return answer_of(cell.source) if cell.cell_type == "code" else None


def answer_of(source: str) -> str | None:
    """The exercise that a code cell with this source answers, or None."""
    match = _ANSWER.match(source)
    return match and match[1]


def check_id(cell: NotebookNode) -> str | None:
    """The exercise that this cell checks, or None: it calls ``check("05.2", …)`` and answers nothing itself."""
    if cell.cell_type != "code" or answer_id(cell):
        return None
    match = _CHECK.search(cell.source)
    return match and match[1]


def hints_id(cell: NotebookNode) -> str | None:
    """The exercise that this cell holds the hints for, or None."""
    match = _HINTS.match(cell.source) if cell.cell_type == "markdown" else None
    return match and match[1]


def done(cell: NotebookNode) -> str | None:
    """What a learner who has finished the chapter is told, where this cell says it."""
    match = _DONE.match(cell.source) if cell.cell_type == "markdown" else None
    return match and match[1].strip()


def read_exercises(notebook: NotebookNode, name: str) -> list[Exercise]:
    """The exercises of a solution notebook, in its order.

    Args:
        notebook: a solution, as read by nbformat.
        name: the notebook's name without the suffix, for the messages; its first two digits are the chapter.

    Raises:
        ValueError: where a cell is missing, stands twice, is out of order or lacks its tag or its marks,
            and for a cell that is not plain Python.
    """
    tasks: dict[str, tuple[str, int, int]] = {}
    hints: dict[str, tuple[str, ...]] = {}
    found: list[tuple[str, str, int]] = []
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            for exercise, title, right, target in _HEADING.findall(cell.source):
                found.append(("task", exercise, index))
                tasks[exercise] = (title, int(right), int(target or 0))
            if exercise := hints_id(cell):
                hints[exercise] = tuple(" ".join(text.split()) for text in _HINT.findall(cell.source))
                if len(hints[exercise]) != HINTS:
                    raise ValueError(
                        f"{name}: {len(hints[exercise])} hints for {exercise}; {HINTS} are wanted"
                    )
            continue
        if cell.cell_type == "code":
            _parse(cell.source, f"{name}: cell {index}")
        if exercise := answer_id(cell):
            found.append(("answer", exercise, index))
            if not _SOLUTION.search(cell.source):
                raise ValueError(f"{name}: answer {exercise} has no `# BEGIN SOLUTION` … `# END SOLUTION`")
        elif exercise := check_id(cell):
            found.append(("check", exercise, index))
            if CHECK_TAG not in cell.metadata.get("tags", []):
                raise ValueError(f"{name}: check {exercise} lacks the tag `{CHECK_TAG}`")
    for (role, exercise), times in Counter((role, exercise) for role, exercise, _ in found).items():
        if times > 1:
            raise ValueError(f"{name}: {times} cells are the {role} of exercise {exercise}; one is wanted")
    where = {(role, exercise): index for role, exercise, index in found}
    exercises = []
    for exercise in dict.fromkeys(exercise for _, exercise, _ in found):
        places = [where.get((role, exercise), -1) for role in ("task", "answer", "check")]
        if -1 in places or places != sorted(places):
            raise ValueError(
                f"{name}: exercise {exercise} needs its task (`### Exercise {exercise} · Title (4 points)`), "
                f'its answer (`# EXERCISE {exercise}`) and its check (`check("{exercise}", …)`), '
                "in this order"
            )
        if exercise[:2] != name[:2]:
            raise ValueError(f"{name}: exercise {exercise} belongs to chapter {exercise[:2]}")
        title, right, target = tasks[exercise]
        task, answer, check = places
        refused = _NOT_ALLOWED.search(notebook.cells[task].source)
        names = tuple(re.findall(r"`([\w.]+)`", refused[1])) if refused else ()
        exercises.append(
            Exercise(
                exercise, title, right + target, task, answer, check, target, names, hints.pop(exercise, ())
            )
        )
    for exercise in hints:
        raise ValueError(f"{name}: hints for {exercise}, and there is no such exercise")
    return exercises


def to_write(source: str, exercise: Exercise) -> str:
    """What the first stub of the solution's answer cell says is to be written."""
    match = _SOLUTION.search(source)
    return (match and match[2]) or exercise.title


def stub(source: str, exercise: Exercise) -> str:
    """The answer cell as the learner gets it: every marked part becomes ``raise NotImplementedError``.

    Raises:
        ValueError: when what is left is not Python, or the raise would be longer than a line.
    """

    def replacement(match: re.Match[str]) -> str:
        text = f"{exercise.id}: {match[2] or exercise.title}".replace('"', "'")
        line = f'{match[1]}raise NotImplementedError("{text}")'
        if len(line) > LONGEST_LINE:
            raise ValueError(f"exercise {exercise.id}: shorten the text after BEGIN SOLUTION: {text!r}")
        return line

    text = _SOLUTION.sub(replacement, source)
    _parse(text, f"exercise {exercise.id}: mark whole statements; without its solution the cell")
    return text


def _parse(source: str, what: str) -> None:
    try:
        ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"{what} is not plain Python ({error.msg}, line {error.lineno})") from None
