"""The answer to a guess or a bet, which opens when the learner has committed to one."""

from __future__ import annotations

from html import escape
from typing import Any

from course_lib.observe.show.axis import axis, ends
from course_lib.observe.show.commitment import Bet, Guess, remembered
from course_lib.observe.show.formula import explained
from course_lib.observe.show.game import as_mime, encoded, live
from course_lib.observe.show.verdict import how_far, likely, mistakes_of, sentence

CLOSED = "The answer opens after your {}."


def reveal(
    guess: Guess | Bet | str, value: Any, *shown: Any, mistakes: dict[str, Any] | None = None, **values: Any
) -> Answer:
    """Show the answer once the learner has said something, with the formula behind it and how far the guess was.

    Args:
        guess: what ``predict`` or ``bet`` returned, or the name it was remembered under.
        value: of a bet, the right choice's text. Of a guess, the number in the base unit (bytes, seconds, a fraction);
            of a ledger (memory, traffic, a timeline): all its bytes, the bytes sent, its length.
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
        return Answer(asked, str(value), [], _facts_of_bet(asked, value, mistakes or {}), shown)
    formula, shown = (shown[0], shown[1:]) if shown and isinstance(shown[0], str) else ("", shown)
    number = _number(value)
    lines = explained(formula, values, number, asked.text) if formula else []
    wrong = mistakes_of(asked, number, {said: _number(one) for said, one in (mistakes or {}).items()})
    facts = {"value": number, "mistakes": wrong, "factor": asked.factor, "percent": asked.unit == "%"}
    return Answer(asked, asked.text(number), lines, facts | {"ends": ends(asked, number)}, shown)


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
        lines = [f"{self.asked.name}: {self.answer}", *(f"    {line}" for line in self.lines), self.said()]
        return "\n".join([*lines, *(text for text, _ in self.shown)])

    def html(self) -> str:
        """The answer: open, or in a closed ``<details>`` with what a page's script needs to open it."""
        asked, facts, open_ = self.asked, self.facts, self.asked.value is not None
        said = escape(self.said()) if open_ else ""
        if isinstance(asked, Guess):
            drawn = axis(asked, facts["value"])
            said, facts = said + drawn * open_, facts | {"axis": drawn}
        html = f"<p>{escape(asked.name)}: <strong>{escape(self.answer)}</strong></p>"
        html += "".join(f'<div style="margin-left:2em">{escape(line)}</div>' for line in self.lines)
        html += f'<div class="said">{said}</div>' + "".join(face for _, face in self.shown)
        if open_:
            return html
        known = encoded({"name": asked.name, **facts})
        return f'<details data-answer="{known}"><summary>{self.closed}</summary>{html}</details>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        view = None
        if self.asked.value is None and (view := live(html=f"<p>{self.closed}</p>")):
            self.asked.then.append(lambda: setattr(view, "html", self.html()))
        return {"text/plain": repr(self), "text/html": self.html(), **as_mime(view)}


def _facts_of_bet(asked: Bet, right: Any, mistakes: dict[str, str]) -> dict[str, Any]:
    """The right choice, and what is said to each of the others."""
    if right not in asked.choices:
        raise ValueError(
            f"the answer {right!r} is none of the choices: {', '.join(map(repr, asked.choices))}"
        )
    for choice in mistakes:
        if choice not in asked.choices or choice == right:
            raise ValueError(f"the mistake {choice!r} is not one of the wrong choices of {asked.name!r}")
    return {"value": right, "mistakes": {choice: sentence(said) for choice, said in mistakes.items()}}


def _faces(thing: Any) -> tuple[str, str]:
    """A thing that is shown, as text and as HTML; of a live view its still picture."""
    if isinstance(thing, str):
        return thing, f"<p>{escape(thing)}</p>"
    faces = getattr(thing, "still", getattr(thing, "_repr_mimebundle_", dict))()
    text = faces.get("text/plain", repr(thing))
    return text, faces.get("text/html", f"<pre>{escape(text)}</pre>")


def _number(value: Any) -> float:
    for quantity in ("total", "sent", "makespan"):  # of a ledger
        value = getattr(value, quantity, value)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"the answer to a guess is a number or a ledger, not {value!r}") from None
