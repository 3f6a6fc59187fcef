"""Reads ``solutions/mistakes/NN_topic.diff``: answers to an exercise that are likely, as patches of its solution.

An exercise begins with ``=== 05.3``, an answer with ``@@``; what follows is a diff without numbers of lines::

    === 05.3
    @@ when the sum is not divided by the number of samples
    - / samples)
    +)
    @@ slow: when the gradients are sent in double precision
         flat = torch.cat([p.grad.flatten() for p in trained])
    +    flat = flat.double()
    @@ wrong: every rank computes the whole batch
    says: the model sees 8 samples
    +def whole_batch_gradients(model, inputs, targets):
    +    ...

What stands behind ``-`` or a space must stand in the solution exactly once, as a part of a line, a line or several;
what stands behind ``+`` or a space is there instead. A ``-`` or a space after a ``+`` begins the next place. Where
there is nothing but ``+``, that is the whole answer; what no ``+`` follows is left out. The words before a colon are:

- ``slow``: right, but misses its target. ``right``: in another style, and earns every point.
- ``hangs``: its ranks wait for ever, so it is tried only where the answer's do.
- ``without idea``: leaves out what the exercise is about, and may earn one point at most.
- ``wrong`` says nothing; it is there for those that have no other word and no ``when``.

An answer with ``when`` is named by the check: "This is what comes out when …". A line ``task: `` quotes the sentence
that it violates where that is not the fact's; ``says: `` is part of what the check says of an answer without ``when``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_WORD = "(?:wrong|slow|right|hangs|without idea)"
_HEAD = re.compile(f"@@ (?:({_WORD}(?:, {_WORD})*): )?(when )?(.+)")


@dataclass
class Mistake:
    """One answer of the list; ``make`` gives what its check cell would hand over.

    Args:
        when: completes "This is what comes out when …", where the mistake is ``named``.
        places: (what stands in the solution, what stands there instead).
    """

    when: str
    make: Callable[[], Any] = lambda: None
    task: str | None = None
    named: bool = True
    words: tuple[str, ...] = ()
    says: str = ""
    places: list[tuple[list[str], list[str]]] = field(default_factory=list)

    @functools.cached_property
    def answer(self) -> Any:
        return self.make()

    def patched(self, solution: str) -> str:
        """The answer's source.

        Raises:
            ValueError: where a place does not stand in the solution exactly once.
        """
        source = solution
        for lines, instead in self.places:
            old, new = "\n".join(lines), "\n".join(instead)
            if not lines and len(self.places) == 1:
                return new
            if solution.count(old) != 1 or source.count(old) != 1:
                raise ValueError(f"{self.when}: {old!r} must stand in the solution exactly once")
            source = source.replace(old, new)
        return source


def read_mistakes(path: Path) -> dict[str, list[Mistake]]:
    """The answers to each exercise of a chapter, in the order of the file.

    Raises:
        ValueError: naming a line that has no meaning.
    """
    found: dict[str, list[Mistake]] = {}
    entries: list[Mistake] = []
    last = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        mark, rest = line[:1], line[1:]
        if line.startswith("=== "):
            entries = found.setdefault(line[4:], [])
        elif (head := _HEAD.fullmatch(line)) and found:
            words, when, text = head.groups("")
            entries.append(Mistake(text, named=bool(when), words=tuple(filter(None, words.split(", ")))))
        elif entries and line.startswith(("task: ", "says: ")):
            setattr(entries[-1], line[:4], line[6:])
        elif entries and mark and mark in "-+ ":
            places = entries[-1].places
            if not places or (last == "+" and mark != "+"):
                places.append(([], []))
            places[-1][0].extend([rest] * (mark != "+"))
            places[-1][1].extend([rest] * (mark != "-"))
        elif line:
            raise ValueError(f"{path.name}, line {number}: {line!r} is no part of an answer")
        last = mark
    return found
