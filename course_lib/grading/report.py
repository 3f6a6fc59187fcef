"""What a check says: the facts that hold, and those that do not with what helps to mend them.

A check is a function named ``check_NN_M`` in ``course_lib/grading/checks/``. It gets a ``Report`` and then the
learner's objects; the notebook calls it with the latter alone::

    MISTAKES = {  # hints.py says when one of them is named
        "when the sum is not divided by the number of ranks": lambda parts: sum(parts),
    }

    @check
    def check_05_2(report, average):
        for ranks in (2, 3, 4):                                 # 3 too: 2 and 4 hide what rounding does
            with report.case(f"{ranks} ranks"):                 # a case: ends at its first wrong fact, the next begins
                parts = fresh_gradients(report.seed(), ranks)   # other numbers every time
                got, messages = counted(average, parts)         # the answer first …
                want = sum(parts) / ranks                       # … then what is right, from one device
                report.close("averaged gradient", got, want, mistakes=MISTAKES, given=(parts,),
                             task="Every rank ends with the mean.")      # word for word, from the task's cell
                report.at_most("messages sent by a rank", messages, 2)   # the target

    >>> checks.ddp.check_05_2(average)
      ✓ 2 ranks: averaged gradient
      ✓ 2 ranks: messages sent by a rank (target: at most 2)

- Being right (``equal``, ``close``, ``on_every_rank``, ``true``) and meeting the target (``at_most``) earn points
  of their own: the heading ``### Exercise 05.2 · Average (3 points, and 1 for the target)`` says how many.
- What is printed is compared with the stored output, so it holds nothing that changes between runs and machines:
  no times, paths, last digits. An answer that needs less than the target prints the same as ours. Draw inputs
  with ``report.seed()``; what is wrong may be printed with its numbers, since it is never stored.
- Accept every right answer: ``close`` asks for no dtype; ``equal`` takes a Fraction or a tensor for a number.
- Ranks run by ``grading.ranks.launch``; give it some seconds. What an answer prints is shown only on failure.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import Any

from course_lib.grading.allowed import refuse_what_is_not_allowed
from course_lib.grading.compare import difference, in_number, inequality, rank_differences, same, settle
from course_lib.grading.complaints import explain, not_written, unwritten
from course_lib.grading.failed import CheckFailed, TargetMissed
from course_lib.grading.hints import Comparison, Failure, name_mistakes, tell
from course_lib.grading.printed import Printed
from course_lib.runtime.errors import RankError

PATIENCE = 10.0  # seconds after which no new case is begun where one has failed (none at all after a hang)
TARGET = "(target: "


class _CaseEnds(Exception):  # noqa: N818
    """The fact at hand is wrong: what follows in its case is not tried."""


class Report:
    """Prints the facts of one check that hold as they are found, and keeps those that do not."""

    def __init__(self, exercise: str) -> None:
        self.exercise = exercise
        self.facts = 0
        self.failures: list[Failure] = []
        self.unwritten: str | None = None
        self.hung = False  # to find that out took many seconds, and the next case would most likely hang too
        self._passed: list[Comparison] = []
        self._out, self._case, self._started = sys.stdout, "", time.monotonic()

    def case(self, name: str) -> AbstractContextManager[None]:
        """Name what is tried next; it goes before each fact, and before what the answer raises.

        Used by ``with``: what goes wrong ends the block, and the check goes on behind it.
        """
        self._case = f"{name}: " if name else ""
        return _Case(self)

    def seed(self) -> int:
        """A new seed each time, so that no answer can know the inputs; not for what is printed."""
        return random.SystemRandom().randrange(2**31)

    def ok(self, fact: str) -> None:
        """State a fact that holds."""
        self.facts += 1
        print(f"  ✓ {self._case}{fact}", file=self._out)

    def fail(self, fact: str, likely: str | None = None, *, task: str | None = None) -> None:
        """State a fact that does not hold, and end the case; further lines of ``fact`` are details."""
        head, *details = fact.split("\n")
        self._fail(Failure(self._case + head, details, task), likely)

    def true(
        self,
        condition: bool,
        fact: str,
        otherwise: str,
        likely: str | None = None,
        *,
        got: Any = None,
        mistakes: Mapping[str, Any] | None = None,
        given: tuple | None = None,
        task: str | None = None,
    ) -> None:
        """``fact`` where the condition holds; else the case fails with ``otherwise``.

        For what can be right in many ways: ``mistakes`` are compared with ``got``, and may not be right.
        """
        if not condition:
            head, *details = otherwise.split("\n")
            seen = Comparison(
                got, self, mistakes, given, lambda a, b: b is not self and same(settle(a, b), b)
            )
            self._fail(Failure(self._case + head, details, task, seen), likely)
        self.ok(fact)

    def equal(
        self,
        fact: str,
        got: Any,
        want: Any,
        *,
        mistakes: Mapping[str, Any] | None = None,
        given: tuple | None = None,
        task: str | None = None,
        tasks: Mapping[str, str] | None = None,
        likely: str | None = None,
    ) -> None:
        """Exactly equal: numbers, strings, lists and dicts of them, or tensors (shape, type and values).

        Args:
            mistakes: what follows "This is what comes out", such as ``"when …"`` -> that mistake's program or value.
            given: the programs' arguments.
            task: the task's sentence that is violated; ``tasks``: a mistake's sentence -> another one that it violates.
        """
        got = settle(got, want)
        seen = Comparison(got, want, mistakes, given, lambda a, b: same(settle(a, b), b))
        self._compare(fact, seen, () if same(got, want) else inequality(got, want), task, likely, tasks=tasks)

    def close(
        self,
        fact: str,
        got: Any,
        want: Any,
        *,
        tolerance: float = 1e-5,
        mistakes: Mapping[str, Any] | None = None,
        given: tuple | None = None,
        task: str | None = None,
        tasks: Mapping[str, str] | None = None,
        likely: str | None = None,
    ) -> None:
        """Numbers, arrays or tensors of one shape that differ by at most ``tolerance * (1 + |want|)``."""
        problem = difference(got, want, tolerance)
        seen = Comparison(got, want, mistakes, given, lambda a, b: difference(a, b, tolerance) is None)
        self._compare(fact, seen, problem.split("\n") if problem else (), task, likely, tasks=tasks)

    def on_every_rank(
        self,
        fact: str,
        got: Sequence[Any],
        want: Sequence[Any],
        *,
        tolerance: float = 1e-5,
        mistakes: Mapping[str, Any] | None = None,
        given: tuple | None = None,
        trace: Any = None,
        task: str | None = None,
        tasks: Mapping[str, str] | None = None,
        likely: str | None = None,
        thing: str = "result",
    ) -> None:
        """``close`` for a list with one result a rank (or another ``thing``); tells of the first wrong one.

        ``mistakes`` give such a list; with a ``trace`` (what the ranks sent), the pair of both, to tell more apart.
        """
        pair = (lambda x: x) if trace is None else (lambda x: x[0])
        seen = Comparison(
            got if trace is None else (got, trace),
            want if trace is None else (want, None),
            mistakes,
            given,
            alike=lambda a, b: not rank_differences(pair(a), pair(b), tolerance),
            closer=None if trace is None else (lambda a, b: a[1] == b[1]),
        )
        self._compare(fact, seen, rank_differences(got, want, tolerance, thing), task, likely, False, tasks)

    def at_most(
        self,
        what: str,
        got: float,
        limit: float,
        *,
        mistakes: Mapping[str, Any] | None = None,
        given: tuple | None = None,
        task: str | None = None,
        likely: str | None = None,
    ) -> None:
        """A target: ``got`` is counted and may not exceed ``limit``. The case goes on where it does."""
        if got <= limit:
            return self.ok(f"{what} {TARGET}at most {limit:,})")
        seen = Comparison(got, limit, mistakes, given, lambda a, b: a == b)
        fact = f"{self._case}{what}: {got:,} {TARGET}at most {limit:,})"
        hint = f"likely: {likely}" if likely else None
        self.failures.append(Failure(fact, (), task, seen, target=True, hint=hint))
        return None

    def _compare(
        self,
        fact: str,
        seen: Comparison,
        problem: Sequence[str],
        task: str | None,
        likely: str | None,
        named: bool = True,
        tasks: Mapping[str, str] | None = None,
    ) -> None:
        if not problem:
            self._passed.append(seen)
            return self.ok(fact)
        head, *details = problem
        said = f"{fact.replace('every rank has ', '')}: {head}"
        said = f"{fact} {in_number(fact, head)}" if named else said
        return self._fail(Failure(self._case + said, details, task, seen, tasks=tasks or {}), likely)

    def _fail(self, failure: Failure, likely: str | None) -> None:
        failure.hint = f"likely: {likely}" if likely else None
        self.failures.append(failure)
        raise _CaseEnds

    def _raised(self, error: BaseException) -> None:
        """Take in what ended a case, or the check: a wrong fact, or something that the answer raised."""
        if isinstance(error, _CaseEnds):
            return
        self.unwritten = self.unwritten or unwritten(error, self.exercise)
        fact, *details = explain(error, self._case)
        self.failures.append(Failure(fact, details))

    def _end(self) -> CheckFailed | None:
        """The verdict, or None where there is nothing to complain of."""
        if not self.failures:
            return None
        name_mistakes(self.failures, self._passed)
        wrong = [failure for failure in self.failures if not failure.target]
        lines = list(tell(wrong + [failure for failure in self.failures if failure.target]))
        return (CheckFailed if wrong else TargetMissed)(lines, self.exercise)


class _Case(AbstractContextManager):
    """The block of one case: what goes wrong in it is kept, and the check goes on."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> bool:
        if error is None or type(error) is KeyboardInterrupt:
            return False
        self.report._raised(error)
        if isinstance(error, RankError) and error.rank is None:
            self.report.hung = True
            self.report.failures[-1].hint = "After ranks have hung, no further case is tried."
        if self.report.hung or self.report.unwritten or time.monotonic() - self.report._started > PATIENCE:
            raise _CaseEnds from None
        return True


def check(function: Callable[..., None]) -> Callable[..., None]:
    """Make ``check_05_2(report, *answers)`` the check that a notebook calls with the answers alone.

    Raises:
        CheckFailed: a fact is wrong, or the answer raised. ``TargetMissed``, its subclass, where the answer is right.
    """
    exercise = function.__name__.removeprefix("check_").replace("_", ".")

    @functools.wraps(function)
    def run(*answers: Any) -> None:
        refuse_what_is_not_allowed(exercise)
        report, printed = Report(exercise), Printed()
        ranks = sys.modules.get("course_lib.grading.ranks")  # loaded by the checks that need it
        with ranks.kept() if ranks else nullcontext():  # from case to case, and while mistakes are compared
            try:
                with redirect_stdout(printed):
                    function(report, *answers)
            except BaseException as error:
                if type(error) is KeyboardInterrupt:
                    raise
                report._raised(error)
            failed = None if report.unwritten else report._end()
        if report.unwritten:
            return not_written(report.unwritten)
        if failed is not None:
            printed.show()
            raise failed from None
        if not report.facts:
            raise RuntimeError(f"{function.__name__} stated no fact: nothing was checked")

    return run
