"""How a check ends that is not passed, as it is shown in a notebook."""

from __future__ import annotations

from collections.abc import Sequence

TARGET = "(target: "  # what a line about a target holds


class CheckFailed(AssertionError):  # noqa: N818 - it is a result, and is read as one
    """The answer is wrong. The message holds a line for each wrong fact, and indented ones that help.

    Args:
        lines: what is wrong.
        exercise: its number, such as ``"05.2"``: the message ends with the command for its hint.
    """

    def __init__(self, lines: Sequence[str], exercise: str | None = None) -> None:
        self.lines = list(lines)
        self.told = [*lines, *([f"  For a hint: course hint {exercise}"] if exercise else [])]
        super().__init__("\n".join(self.told))

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback."""
        return [f"  {line}" if line.startswith((" ", "…")) else f"  ✗ {line}" for line in self.told]


class TargetMissed(CheckFailed):
    """The answer is right, and needs more than its target."""
