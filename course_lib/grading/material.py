"""What a check works with: an exercise's cases, its solution, and the patches of it that are likely mistakes."""

from __future__ import annotations

import ast
import functools
import importlib
import linecache
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import cloudpickle

from course_lib.grading.mistakes import Mistake, read_mistakes
from course_lib.notebooks.exercise import Exercise, answer_id, check_id, read_exercises, read_trusted
from course_lib.notebooks.places import course_root

PACKAGE = "course_checks"  # what the files in exercises/checks/ are imported as
MISTAKES = "solutions/mistakes"
_SENTENCE_ENDS = re.compile(r"[.!?:](?=\s|$)")
_KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


class Material:
    """All that belongs to one exercise, read when it is first needed."""

    def __init__(self, exercise: str) -> None:
        self.exercise, self._module = exercise, check_file(exercise)
        self.observe: Callable[[Any, Any], dict[str, Any]] = self._module.observe
        self._chapter, cells, exercises = chapter_of(exercise)
        at = exercises[exercise]
        self.source, task = cells[at.answer].source, " ".join(cells[at.task].source.split())
        facts = self._module.FACTS.items()
        self.facts = {key: replace(fact, task=in_full(fact.task, task)) for key, fact in facts}
        self._names = names_asked(cells[at.check].source)
        self._before = names_of(tuple(course_above(cells, at)))
        self.solution = self.make(self.source)
        self.seed: int | None = None  # of the cases in which was observed what is ``known``
        self.known: dict[tuple[Any, str], Any] = {}
        self.asked: list[Any] = []  # the cases of that seed

    def cases(self, seed: int) -> list[Any]:
        """The check's; those of a list ``CASES`` differ from run to run by their field ``seed`` only."""
        if hasattr(self._module, "cases"):
            return self._module.cases(seed)
        return [case._replace(seed=seed + i) for i, case in enumerate(self._module.CASES)]

    def make(self, source: str) -> Any:
        """What the check cell hands over, were ``source`` the answer; what it shows is left out."""
        namespace = dict(self._before)
        execute(source, namespace, f"<{self.exercise}: {hash(source)}>", without=ast.Expr)
        found = tuple(eval(name, namespace) for name in self._names)
        return found[0] if len(found) == 1 else found

    @functools.cached_property
    def mistakes(self) -> list[Mistake]:
        """The answers to this exercise in ``solutions/mistakes/`` that can be named: they say when."""
        path = course_root() / MISTAKES / f"{self._chapter}.diff"
        found = read_mistakes(path).get(self.exercise, []) if path.exists() else []
        for each in found:
            each.make = functools.partial(self.make, each.patched(self.source))
        return [each for each in found if each.named]


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
def chapter_of(exercise: str) -> tuple[str, Sequence[Any], dict[str, Exercise]]:
    """The name of the chapter that an exercise belongs to, its solution's cells, and its exercises by number."""
    path = next((course_root() / "solutions").glob(f"{exercise[:2]}_*.ipynb"))
    notebook = read_trusted(path)
    return path.stem, notebook.cells, {each.id: each for each in read_exercises(notebook, path.stem)}


def course_above(cells: Sequence[Any], exercise: Exercise) -> list[str]:
    """The course's own code above an answer."""
    above = (cell for cell in cells[: exercise.answer] if cell.cell_type == "code")
    return [cell.source for cell in above if not answer_id(cell) and not check_id(cell)]


def names_asked(check: str) -> list[str]:
    """What a check cell hands over: ``check("05.3", average, deal)`` -> ``["average", "deal"]``."""
    call: ast.Call = ast.parse(check).body[-1].value  # pyright: ignore[reportAttributeAccessIssue]
    return [ast.unparse(name) for name in call.args[1:]]


def in_full(quote: str | None, task: str) -> str | None:
    """What a check quotes of the task: a quote that ends in "…" goes on to the end of its sentence there."""
    _, found, after = task.partition(quote[:-1]) if quote and quote.endswith("…") else ("", "", "")
    end = _SENTENCE_ENDS.search(after)
    return found + after[: end.end()] if found and end else quote


@functools.cache
def names_of(sources: tuple[str, ...]) -> dict[str, Any]:
    """What the course's own cells define: imports, functions, classes and values, but nothing that they show.

    A cell that needs an answer is left out: no answer uses another's.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for index, source in enumerate(sources):
        try:
            execute(source, namespace, f"<the course's cell {index}>", only=_KEPT)
        except NameError:
            continue
    return namespace


def execute(
    source: str, namespace: dict[str, Any], name: str, only: Any = ast.AST, without: Any = ()
) -> None:
    """Run a cell's statements of some kinds; ``name`` stands for its file in tracebacks, on ranks too."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree = ast.parse(source)
    tree.body = [each for each in tree.body if isinstance(each, only) and not isinstance(each, without)]
    exec(compile(tree, name, "exec"), namespace)
