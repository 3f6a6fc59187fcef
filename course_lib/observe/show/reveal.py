"""The answer to a guess or a bet, which opens when the learner has committed to one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from course_lib.observe.show.axis import axis, ends
from course_lib.observe.show.commitment import Bet, Guess, remembered
from course_lib.observe.show.formula import filled, readable, result
from course_lib.observe.show.game import as_mime, encoded, live
from course_lib.observe.show.verdict import RIGHT, how_far, likely, mistakes_of
from simulator.ledgers.memory import MemoryBreakdown
from simulator.ledgers.timeline import Timeline
from simulator.ledgers.traffic import Traffic

CLOSED = "The answer opens after your {}."


def reveal(
    guess: Guess | Bet | str,
    value: float | str | MemoryBreakdown | Traffic | Timeline,
    *shown: Any,
    mistakes: Mapping[str, Any] | None = None,
    **values: float | tuple[float, str],
) -> Answer:
    """Show the answer once the learner has said something, with the formula behind it and how far the guess was.

    Args:
        guess: what ``predict`` or ``bet`` returned, or the name it was remembered under.
        value: of a bet, the right choice's text. Of a guess, the number in the base unit (bytes, seconds, a fraction);
            of a ledger: all its bytes, the bytes sent, its length.
        shown: what stands below the answer: pictures, tables, sentences. Below a guess the first text is a formula
            by which the number can be worked out, such as ``"2 (p - 1)/p × gradients"``. Names are letters, digits
            and ``_`` (shown as a blank); ``×``, ``/``, ``+``, ``-``, ``^``, min, max, ceil, sqrt and log2 are known.
        mistakes: of a guess, what was probably forgotten -> the value that this gives, in the base unit:
            ``{"you forgot that it is sent twice": 33.5e6}``. Of a bet, a wrong choice -> what is wrong with it.
        values: what the names in the formula stand for, plain (``p=4``) or with a unit (``gradients=(44.7e6, "B")``).
            Without any, the formula is shown as it is, and not checked.

    Raises:
        ValueError: the right answer is none of the choices, the formula lacks a value or does not give ``value`` within
            half a percent, a mistake is right or belongs to no choice.
    """
    asked = remembered(guess) if isinstance(guess, str) else guess
    if isinstance(asked, Bet):
        return Answer(asked, str(value), [], _of_bet(asked, value, mistakes or {}), shown)
    formula, shown = (shown[0], shown[1:]) if shown and isinstance(shown[0], str) else ("", shown)
    number, lines = _number(value), []
    if formula:
        lines = [f"= {readable(formula)}"]
        if values:
            if not math.isclose(found := result(formula, values), number, rel_tol=RIGHT):
                raise ValueError(
                    f"the formula {formula!r} gives {asked.text(found)}, the value is {asked.text(number)}"
                )
            lines.append(f"= {filled(formula, values)}")
    wrong = mistakes_of(asked, number, {said: _number(one) for said, one in (mistakes or {}).items()})
    return Answer(asked, asked.text(number), lines, {"value": number, "mistakes": wrong}, shown)


class Answer:
    """What ``reveal`` shows: the answer where something was said; else it stands in a closed ``<details>``.

    Args:
        answer, lines: the answer, and how it is worked out.
        facts: the right ``value``, and the ``mistakes`` with what is said to them.
    """

    def __init__(
        self, asked: Guess | Bet, answer: str, lines: list[str], facts: dict[str, Any], shown: tuple[Any, ...]
    ) -> None:
        self.asked, self.answer, self.lines, self.facts = asked, answer, lines, facts
        self.shown = [_faces(one) for one in shown]
        self.closed = CLOSED.format("bet" if isinstance(asked, Bet) else "guess")

    def said(self) -> str:
        """What is said to what the learner has said."""
        asked, value, mistakes = self.asked, self.facts["value"], self.facts["mistakes"]
        if isinstance(asked, Guess):
            far = how_far(asked, value)
            suspected = "" if far == "right" else likely(asked.value, mistakes)
            return f"You said {asked.text(asked.value)}: {far}. {suspected}".strip()
        if asked.value == value:
            return "Right."
        return f"You said “{asked.value}”. {mistakes.get(asked.value, '')}".strip()

    def __repr__(self) -> str:
        if self.asked.value is None:
            return f"{self.asked.name}. {self.closed}"
        lines = [f"    {line}" for line in self.lines]
        return "\n".join(
            [f"{self.asked.name}: {self.answer}", *lines, self.said(), *(t for t, _ in self.shown)]
        )

    def html(self) -> str:
        """The answer: open, or in a closed ``<details>``."""
        asked, said = self.asked, ""
        if asked.value is not None:
            said = escape(self.said()) + ("" if isinstance(asked, Bet) else axis(asked, self.facts["value"]))
        html = f"<p>{escape(asked.name)}: <strong>{escape(self.answer)}</strong></p>"
        html += "".join(f'<div style="margin-left:2em">{escape(line)}</div>' for line in self.lines)
        html += f'<div class="said">{said}</div>' + "".join(face for _, face in self.shown)
        if asked.value is not None:
            return html
        return f'<details data-answer="{encoded(self.for_script())}"><summary>{self.closed}</summary>{html}</details>'

    def for_script(self) -> dict[str, Any]:
        """What a page without a kernel needs to answer."""
        asked, facts = self.asked, {"name": self.asked.name, **self.facts}
        if isinstance(asked, Bet):
            return facts
        number = facts["value"]
        return facts | {
            "value": _rounded(number),
            "mistakes": [(_rounded(value), sentence) for value, sentence in facts["mistakes"]],
            "factor": asked.factor,
            "percent": asked.unit == "%",
            "ends": [_rounded(end) for end in ends(asked, number)],
            "axis": axis(asked, number, said=("{x}", "{said}")),
        }

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        view = None
        if self.asked.value is None and (view := live(html=f"<p>{self.closed}</p>")):
            self.asked.then.append(lambda: setattr(view, "html", self.html()))
        return {"text/plain": repr(self), "text/html": self.html(), **as_mime(view)}


def _of_bet(asked: Bet, right: Any, mistakes: Mapping[str, str]) -> dict[str, Any]:
    """The right choice, and what is said to each of the others."""
    if right not in asked.choices:
        raise ValueError(
            f"the answer {right!r} is none of the choices: {', '.join(map(repr, asked.choices))}"
        )
    for choice in mistakes:
        if choice not in asked.choices or choice == right:
            raise ValueError(f"the mistake {choice!r} is not one of the wrong choices of {asked.name!r}")
    said = {choice: f"{sentence.rstrip('.')}." for choice, sentence in mistakes.items()}
    return {"value": right, "mistakes": said}


def _faces(thing: Any) -> tuple[str, str]:
    """A thing that is shown, as text and as HTML."""
    if isinstance(thing, str):
        return thing, f"<p>{escape(thing)}</p>"
    bundle = getattr(
        thing, "still", getattr(thing, "_repr_mimebundle_", dict)
    )()  # a live view: its still picture
    text = bundle.get("text/plain", repr(thing))
    return text, bundle.get("text/html", f"<pre>{escape(text)}</pre>")


def _number(value: Any) -> float:
    for ledger, quantity in ((MemoryBreakdown, "total"), (Traffic, "sent"), (Timeline, "makespan")):
        if isinstance(value, ledger):
            return float(getattr(value, quantity))
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"the answer to a guess is a number or a ledger, not {value!r}") from None


def _rounded(value: float) -> float:
    """Without the last digits, in which machines differ."""
    return float(f"{value:.6g}")
