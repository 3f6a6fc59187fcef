"""What a check says: the facts it computed, or the first one that is wrong and why that may be.

A check is a function named ``check_NN_M`` in ``course_lib/grading/checks/``. It gets a ``Report`` and then the
learner's objects; the notebook calls it with the latter alone::

    @check
    def check_05_2(report, assign_buckets):
        for ranks, sizes in [(2, [7, 3, 5]), (3, [4, 4])]:
            report.case(f"{ranks} ranks, {len(sizes)} parameters")   # names what is being tried
            want = [...]                                             # from the one-device oracle
            got = assign_buckets(sizes, limit=8)                     # whatever it raises becomes one line
            report.close("averaged gradient", got, want, mistakes={
                "not divided by the number of ranks?": want * ranks,  # hint: the value that mistake gives
            })
            report.at_most("messages", calls, 3, likely="one message per parameter: fill the bucket first")

    >>> checks.ddp.check_05_2(assign_buckets)
      ✓ 2 ranks, 3 parameters: averaged gradient
      ✓ 2 ranks, 3 parameters: messages: at most 3, as it should be

- Each line states what was tried and what came out. The text is compared with the stored one, so it holds
  nothing that changes between runs or machines: no times, no paths, no last digits. Seed what is random.
- The first fact that is wrong ends the check. ``likely`` is one sentence about the probable slip;
  ``mistakes`` maps such a sentence to the very value the slip would give, so that the right one is said.
- What the answer prints is kept out of the check's output, and shown only when the check fails.
- A target (messages, bytes, elements held at once) is a fact like any other: count it, do not time it.
- A check must end: nothing here limits its time. `launch` has a time limit of its own; keep it at some seconds.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Any

from course_lib.grading.compare import describe, difference, same
from course_lib.grading.complaints import explain

PRINTED_LIMIT = 1_000_000  # characters an answer may print during one check
PRINTED_SHOWN = 20  # lines of them shown when the check fails


class CheckFailed(AssertionError):  # noqa: N818 - it is a result, and is read as one
    """A fact about the answer is wrong: ``fact`` says which, ``likely`` (or None) why that may be."""

    def __init__(self, fact: str, likely: str | None = None) -> None:
        super().__init__(fact + (f"\nlikely: {likely}" if likely else ""))
        self.fact, self.likely = fact, likely

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback."""
        likely = [f"    likely: {self.likely}"] if self.likely else []
        return [f"  ✗ {self.fact}", *likely]


class Report:
    """Prints the facts of one check as they are found, and ends the check at the first that is wrong."""

    def __init__(self, exercise: str) -> None:
        self.exercise = exercise
        self.facts = 0
        self._out = sys.stdout
        self._case = ""

    def case(self, name: str) -> None:
        """Name what is tried next; it goes before each fact, and before what the answer raises."""
        self._case = f"{name}: " if name else ""

    def ok(self, fact: str) -> None:
        """State a fact that holds."""
        self.facts += 1
        print(f"  ✓ {self._case}{fact}", file=self._out)

    def fail(self, fact: str, likely: str | None = None) -> None:
        """End the check: ``fact`` says what is wrong, ``likely`` the probable slip."""
        raise CheckFailed(self._case + fact, likely)

    def true(self, condition: bool, fact: str, otherwise: str, likely: str | None = None) -> None:
        """``fact`` where the condition holds; else the check fails with ``otherwise``."""
        if not condition:
            self.fail(otherwise, likely)
        self.ok(fact)

    def equal(
        self,
        fact: str,
        got: Any,
        want: Any,
        *,
        mistakes: Mapping[str, Any] | None = None,
        likely: str | None = None,
    ) -> None:
        """Exactly equal: numbers, strings, lists and dicts of them, or tensors (shape, type and values)."""
        if same(got, want):
            return self.ok(fact)
        hint = next((hint for hint, value in (mistakes or {}).items() if same(got, value)), likely)
        return self.fail(f"{fact}: got {describe(got)}, expected {describe(want)}", _none_hint(got, hint))

    def close(
        self,
        fact: str,
        got: Any,
        want: Any,
        *,
        tolerance: float = 1e-5,
        mistakes: Mapping[str, Any] | None = None,
        likely: str | None = None,
    ) -> None:
        """Numbers, arrays or tensors of one shape that differ by at most ``tolerance * (1 + |want|)``."""
        problem = difference(got, want, tolerance)
        if problem is None:
            return self.ok(fact)
        slips = (mistakes or {}).items()
        hint = next((hint for hint, value in slips if difference(got, value, tolerance) is None), likely)
        return self.fail(f"{fact} {problem}", _none_hint(got, hint))

    def at_most(self, what: str, got: float, limit: float, *, likely: str | None = None) -> None:
        """A target: ``got`` may not exceed ``limit``; an answer that needs less says the same as ours."""
        if got > limit:
            self.fail(f"{what}: {got:,}, and at most {limit:,} are needed", likely)
        self.ok(f"{what}: at most {limit:,}, as it should be")


def check(function: Callable[..., None]) -> Callable[..., None]:
    """Make ``check_05_2(report, *answers)`` the check that a notebook calls with the answers alone.

    Raises:
        CheckFailed: from the check; also in place of whatever the answer raised, told in one line.
    """
    exercise = function.__name__.removeprefix("check_").replace("_", ".")

    @functools.wraps(function)
    def run(*answers: Any) -> None:
        report, printed, failed = Report(exercise), _Printed(), None
        try:
            with redirect_stdout(printed):
                function(report, *answers)
        except CheckFailed as error:
            failed = error
        except (Exception, SystemExit) as error:
            failed = CheckFailed(*explain(error, exercise, report._case))
        if failed is None and not report.facts:
            raise RuntimeError(f"{function.__name__} stated no fact: nothing was checked")
        if failed is not None:
            printed.show()
            raise failed from None

    return run


class _Printed:
    """Stands in for stdout while a check runs: what the answer prints is no fact."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0

    def write(self, text: str) -> int:
        self._size += len(text)
        if self._size > PRINTED_LIMIT:
            raise RuntimeError(f"the answer printed more than {PRINTED_LIMIT:,} characters")
        self._parts.append(text)
        return len(text)

    def flush(self) -> None:
        pass

    def show(self) -> None:
        """Print the first lines, for whoever put a ``print`` there to find out."""
        lines = "".join(self._parts).splitlines()
        if lines:
            print("  your answer printed:")
            for line in lines[:PRINTED_SHOWN]:
                print(f"    {line[:200]}")
            if len(lines) > PRINTED_SHOWN:
                print(f"    … and {len(lines) - PRINTED_SHOWN:,} more lines")


def _none_hint(got: Any, hint: str | None) -> str | None:
    return hint or ("a `return` is missing?" if got is None else None)
