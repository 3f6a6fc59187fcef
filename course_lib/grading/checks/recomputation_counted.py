"""What the checks of chapter 08 count: targets of several cases that tell one story."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from course_lib.grading.report import Report


class Counted(NamedTuple):
    """What an answer needed in one case, what it may need, and what each likely mistake would need there."""

    case: str
    got: int
    limit: int
    mistakes: Mapping[str, Callable[[], int]]

    def fits(self, sentence: str) -> bool:
        """Whether the mistake needs here what the answer needed, where either is too much."""
        value = self.mistakes[sentence]()
        return value == self.got or max(value, self.got) <= self.limit


def state_targets(report: Report, what: str, counted: Sequence[Counted], task: str) -> None:
    """State one target of several cases; a mistake is named only where it fits all of them."""
    sentences = counted[0].mistakes if any(each.got > each.limit for each in counted) else ()
    fitting = [s for s in sentences if all(each.fits(s) for each in counted)]
    for each in counted:
        with report.case(each.case):
            mistakes = {sentence: each.mistakes[sentence]() for sentence in fitting}
            report.at_most(what, each.got, each.limit, mistakes=mistakes, task=task)
