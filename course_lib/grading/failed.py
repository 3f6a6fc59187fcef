"""How a check ends that is not passed, as it is shown in a notebook; and what the answer printed meanwhile."""

from __future__ import annotations

import io
from collections.abc import Sequence

TARGET = "(target: "  # what a line about a target holds
PRINTED_LIMIT = 1_000_000  # characters an answer may print during one check
PRINTED_SHOWN = 20  # lines of them shown when the check fails


class CheckFailed(AssertionError):  # noqa: N818 - it is a result, and is read as one
    """The answer is wrong: a line for each wrong fact, indented ones that help, and the command for a hint."""

    def __init__(self, lines: Sequence[str], exercise: str | None = None) -> None:
        self.lines = list(lines)
        self.told = [*lines, *([f"  For a hint: course hint {exercise}"] if exercise else [])]
        super().__init__("\n".join(self.told))

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback."""
        return [f"  {line}" if line.startswith((" ", "…")) else f"  ✗ {line}" for line in self.told]


class TargetMissed(CheckFailed):
    """The answer is right, and needs more than its target."""


class Printed(io.StringIO):
    """Stands in for stdout while a check runs: what the answer prints is no fact."""

    def write(self, text: str) -> int:
        if self.tell() + len(text) > PRINTED_LIMIT:
            raise RuntimeError(f"the answer printed more than {PRINTED_LIMIT:,} characters")
        return super().write(text)

    def show(self) -> None:
        """Print the first lines, for whoever put a ``print`` there to find out."""
        if lines := self.getvalue().splitlines():
            print("  your answer printed:")
            print(*(f"    {line[:200]}" for line in lines[:PRINTED_SHOWN]), sep="\n")
        if len(lines) > PRINTED_SHOWN:
            print(f"    … and {len(lines) - PRINTED_SHOWN:,} more lines")
