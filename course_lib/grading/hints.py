"""Hints with evidence: a likely mistake is a program, and is named only when nothing else gives the same result.

A check may know what learners get wrong. It says so by programs: each computes what its mistake would give in the
case at hand, and its sentence completes "This is what comes out …"::

    MISTAKES = {
        "when the sum is not divided by the number of ranks": lambda parts: sum(parts),
        "when each rank returns its own part": lambda parts: parts[0],
    }
    report.close("average", average(parts), sum(parts) / len(parts), mistakes=MISTAKES, given=(parts,))

A sentence is printed under a fact that is wrong only when all of this holds:

- its program gives exactly what the answer gave, and not what is right;
- it gives what the answer gave in every other wrong fact that it was written for, too, where it can be computed:
  what explains one case and not the next is a coincidence;
- no fact that the answer got right would have come out wrong by it;
- no other program of the same fact passes all of this, unless the way there (the messages sent) tells the two apart.

Where that is not so, nothing is guessed: the reader gets the case, the first difference and the task's sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SHOWN = 3  # failures that are told in full

_NOTHING = object()  # what a mistake gives that raises, or gives None: it cannot be made here


class Comparison:
    """What came out, what should have, and what each likely mistake would have given.

    Args:
        mistakes: sentence -> the value that this mistake gives, or the program that computes it; None, or a program
            that raises, where the mistake cannot be made.
        given: arguments of the programs. With them, facts that came out right count as evidence, too.
        alike: whether two results are the same, by the measure of this fact.
        closer: where several mistakes give the same result, whether two of them also came about in the same way.
    """

    def __init__(
        self,
        got: Any,
        want: Any,
        mistakes: Mapping[str, Any] | None,
        given: tuple | None,
        alike: Callable[[Any, Any], bool],
        closer: Callable[[Any, Any], bool] | None = None,
    ) -> None:
        self.got, self.want, self.alike, self.closer = got, want, alike, closer
        self.mistakes, self.given = dict(mistakes or {}), given
        self._values: dict[str, Any] = {}

    def explained_by(self, sentence: str) -> bool:
        """Whether this mistake gives what the answer gave, and that is wrong."""
        value = self._value(sentence)
        return value is not _NOTHING and self._same(self.got, value) and not self._same(value, self.want)

    def speaks_against(self, sentence: str) -> bool:
        """Whether the answer is wrong here in another way than this mistake, which can be made here."""
        return self._value(sentence) is not _NOTHING and not self.explained_by(sentence)

    def rules_out(self, sentence: str) -> bool:
        """Whether this mistake would have given something else than the answer, which was right here."""
        if sentence not in self.mistakes or (callable(self.mistakes[sentence]) and self.given is None):
            return False
        value = self._value(sentence)
        return value is _NOTHING or not self._same(value, self.want)

    def came_about_by(self, sentence: str) -> bool:
        """Whether the answer not only gave what this mistake gives, but also in the same way."""
        return self.closer is not None and self.closer(self.got, self._value(sentence))

    def _same(self, one: Any, other: Any) -> bool:
        try:
            return self.alike(one, other)
        except Exception:  # what cannot be compared is not the same
            return False

    def _value(self, sentence: str) -> Any:
        if sentence not in self.mistakes:
            return _NOTHING
        if sentence not in self._values:
            value = self.mistakes[sentence]
            try:
                value = value(*(self.given or ())) if callable(value) else value
            except Exception:  # a mistake that cannot be made here explains nothing
                value = None
            self._values[sentence] = _NOTHING if value is None else value
        return self._values[sentence]


@dataclass
class Failure:
    """One wrong fact: what is wrong, what helps to see it, and the sentence of the task that is violated.

    Args:
        fact: one line, the case first.
        details: more lines, such as where the first difference is.
        task: a sentence of the task, word for word.
        comparison: for the mistake behind it; None where the fact is not a comparison.
        target: the answer is right and needs more than the task allows.
        tasks: a mistake's sentence -> what takes the place of ``task`` where this mistake is named.
    """

    fact: str
    details: Sequence[str] = ()
    task: str | None = None
    comparison: Comparison | None = None
    target: bool = False
    hint: str | None = field(default=None)
    tasks: Mapping[str, str] = field(default_factory=dict)


def name_mistakes(failures: Sequence[Failure], passed: Sequence[Comparison]) -> None:
    """Give each failure the sentence of the one mistake that explains it, where there is one."""
    wrong = [failure.comparison for failure in failures if failure.comparison is not None]
    for failure in failures:
        if failure.comparison is None or not failure.comparison.mistakes:
            continue
        found = [s for s in failure.comparison.mistakes if failure.comparison.explained_by(s)]
        found = [s for s in found if not any(each.rules_out(s) for each in passed)]
        found = [s for s in found if not any(each.speaks_against(s) for each in wrong)]
        if len(found) > 1 and failure.comparison.closer is not None:
            found = [s for s in found if failure.comparison.came_about_by(s)]
        if len(found) == 1:
            (sentence,) = found
            failure.hint = f"This is what comes out {sentence}." if sentence.startswith("when ") else sentence
            failure.task = failure.tasks.get(sentence, failure.task)


def tell(failures: Sequence[Failure]) -> Iterator[str]:
    """The first failures as lines: a fact is not indented, what belongs to it is, and is said once."""
    said: set[str] = set()
    for failure in failures[:SHOWN]:
        yield failure.fact
        task = f'The task: "{failure.task}"' if failure.task else None
        for line in filter(None, [*failure.details, failure.hint, task]):
            if line not in said:
                yield f"  {line}"
            said.add(line)
    if (more := len(failures) - SHOWN) > 0:
        yield f"… and {more} more" + (" case fails" if more == 1 else " cases fail")
