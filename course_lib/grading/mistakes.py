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

import re
from dataclasses import dataclass, field
from pathlib import Path

_WORD = "(?:wrong|slow|right|hangs|without idea)"
_HEAD = re.compile(f"@@ (?:({_WORD}(?:, {_WORD})*): )?(when )?(.+)")


@dataclass
class Entry:
    """One answer of the list; ``places`` holds (what stands in the solution, what stands there instead)."""

    text: str  # without "when"
    named: bool
    words: tuple[str, ...]
    task: str | None = None
    says: str = ""
    places: list[tuple[list[str], list[str]]] = field(default_factory=list)

    @property
    def hint(self) -> str:
        """What a check says of it: that it is this mistake, or ``says``."""
        return f"This is what comes out when {self.text}." if self.named else self.says

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
                raise ValueError(f"{self.text}: {old!r} must stand in the solution exactly once")
            source = source.replace(old, new)
        return source


def read_mistakes(path: Path) -> dict[str, list[Entry]]:
    """The answers to each exercise of a chapter, in the order of the file.

    Raises:
        ValueError: naming a line that has no meaning.
    """
    found: dict[str, list[Entry]] = {}
    entries: list[Entry] = []
    last = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        mark, rest = line[:1], line[1:]
        if line.startswith("=== "):
            entries = found.setdefault(line[4:], [])
        elif (head := _HEAD.fullmatch(line)) and found:
            words, when, text = head.groups("")
            entries.append(Entry(text, bool(when), tuple(filter(None, words.split(", ")))))
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
