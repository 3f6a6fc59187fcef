"""What a check works with: an exercise's cases, its solution, and the patches of it that are likely mistakes."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import linecache
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import cloudpickle

from course_lib.grading.mistakes import Entry, read_mistakes
from course_lib.notebooks.exercise import answer_id, check_id
from course_lib.notebooks.places import course_root

PACKAGE = "course_checks"  # what the files in exercises/checks/ are imported as
MISTAKES = "solutions/mistakes"
_SENTENCE_ENDS = re.compile(r"[.!?:](?=\s|$)")
_KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


@dataclass(frozen=True)
class Mistake:
    """A patch of the solution that a learner might hand in.

    Args:
        when: completes "This is what comes out when …".
        make: makes the objects that the check cell names.
        task: the sentence of the task that it violates, where that is not the fact's.
        hangs: its ranks wait for ever, so it is tried only where the answer's do.
    """

    when: str
    make: Callable[[], Any]
    task: str | None = None
    hangs: bool = False

    @property
    def answer(self) -> Any:
        return self.make()


class Material:
    """All that belongs to one exercise, read when it is first needed."""

    def __init__(self, exercise: str) -> None:
        self.exercise = exercise
        root = course_root()
        module = check_file(exercise)
        self.observe, self.cases = module.observe, getattr(module, "cases", None) or _drawn(module.CASES)
        chapter = next((root / "solutions").glob(f"{exercise[:2]}_*.ipynb"))
        self._listed = root / MISTAKES / f"{chapter.stem}.diff"
        cells, task = _code_cells(chapter), _task(chapter, exercise)
        self.facts = {key: replace(fact, task=in_full(fact.task, task)) for key, fact in module.FACTS.items()}
        place = next(i for i, cell in enumerate(cells) if answer_id(cell) == exercise)
        self.source = cells[place].source
        call = next(cell.source for cell in cells if check_id(cell) == exercise)
        self._names = [ast.unparse(name) for name in ast.parse(call).body[-1].value.args[1:]]
        self._before = names_of(
            tuple(c.source for c in cells[:place] if not answer_id(c) and not check_id(c))
        )
        self.solution = self.make(self.source)
        self.seed: int | None = None  # of the cases in which was observed what is ``known``
        self.known: dict[tuple[Any, str], Any] = {}

    def make(self, source: str) -> Any:
        """What the check cell hands over, were ``source`` the answer: one object, or a tuple of them.

        What the cell shows, such as a drawing of the answer, is left out.
        """
        namespace = dict(self._before)
        _run(source, namespace, f"<{self.exercise}: {hash(source)}>")
        found = tuple(eval(name, namespace) for name in self._names)
        return found[0] if len(found) == 1 else found

    @functools.cached_property
    def entries(self) -> list[Entry]:
        """The list of this exercise in ``solutions/mistakes/``."""
        return read_mistakes(self._listed).get(self.exercise, []) if self._listed.exists() else []

    @functools.cached_property
    def _mistakes(self) -> list[Mistake]:
        return [
            Mistake(
                entry.text,
                functools.cache(functools.partial(self.make, entry.patched(self.source))),
                entry.task,
                "hangs" in entry.words,
            )
            for entry in self.entries
            if entry.named
        ]

    def mistakes(self) -> list[Mistake]:
        """Those that can be named: they say when."""
        return self._mistakes


_read: dict[str, Material] = {}


def material(exercise: str) -> Material:
    """What belongs to exercise ``"05.3"``; read before an answer runs, so that no answer changes its files."""
    if exercise not in _read:
        _read[exercise] = Material(exercise)
    return _read[exercise]


def check_file(exercise: str) -> ModuleType:
    """``exercises/checks/ex_05_3.py``; ranks get its functions by value, since they cannot import it."""
    if PACKAGE not in sys.modules:
        package = sys.modules[PACKAGE] = ModuleType(PACKAGE)
        package.__path__ = [str(course_root() / "exercises" / "checks")]
        cloudpickle.register_pickle_by_value(package)
    return importlib.import_module(f"{PACKAGE}.ex_{exercise.replace('.', '_')}")


@functools.cache
def _cells(notebook: Path) -> list[Any]:
    """Without nbformat, which takes longer to import than the rest."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [SimpleNamespace(cell_type=cell["cell_type"], source="".join(cell["source"])) for cell in cells]


def _code_cells(notebook: Path) -> list[Any]:
    return [cell for cell in _cells(notebook) if cell.cell_type == "code"]


def _task(notebook: Path, exercise: str) -> str:
    """The words of an exercise's task, with one space between two of them."""
    tasks = (cell.source for cell in _cells(notebook) if cell.cell_type == "markdown")
    return next((" ".join(s.split()) for s in tasks if f"### Exercise {exercise} ·" in s), "")


def in_full(quote: str | None, task: str) -> str | None:
    """What a check quotes of the task: a quote that ends in "…" goes on to the end of its sentence there."""
    if quote is None or not quote.endswith("…"):
        return quote
    _, begins, after = task.partition(quote[:-1])
    end = _SENTENCE_ENDS.search(after)
    return begins + after[: end.end()] if begins and end else quote


def _drawn(cases: list[Any]) -> Callable[[int], list[Any]]:
    """``cases(seed)`` of cases that differ from run to run by their field ``seed`` only."""
    return lambda seed: [case._replace(seed=seed + i) for i, case in enumerate(cases)]


@functools.cache
def names_of(sources: tuple[str, ...]) -> dict[str, Any]:
    """What the course's own cells define: imports, functions, classes and values, but nothing that they show.

    A cell that needs an answer is left out: no answer uses another's.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for index, source in enumerate(sources):
        tree = ast.parse(source)
        tree.body = [statement for statement in tree.body if isinstance(statement, _KEPT)]
        try:
            _run(ast.unparse(tree), namespace, f"<the course's cell {index}>")
        except NameError:
            continue
    return namespace


def _run(source: str, namespace: dict[str, Any], name: str) -> None:
    # For the tracebacks of ranks.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree = ast.parse(source)
    tree.body = [statement for statement in tree.body if not isinstance(statement, ast.Expr)]
    exec(compile(tree, name, "exec"), namespace)
