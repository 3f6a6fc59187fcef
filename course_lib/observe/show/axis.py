"""A guess, the prediction and the measurement as marks on one axis."""

from __future__ import annotations

from html import escape

from course_lib.observe.show.commitment import Guess

AXIS = (
    '<div role="img" aria-label="{words}" style="display:flex; gap:0.6em; max-width:40em; margin:0.6em 0; '
    'line-height:1.2"><span style="margin-top:1.4em">{low}</span><div style="position:relative; flex:1; '
    'height:{height}em"><i style="position:absolute; top:2em; left:0; right:0; border-top:1px solid"></i>{marks}'
    '</div><span style="margin-top:1.4em">{high}</span></div>'
)
MARK = (
    '<span style="position:absolute; top:{top}em; left:{x}%; transform:translateX(-{x}%); white-space:nowrap">'
    '{text}</span><i style="position:absolute; top:{line}em; height:1em; left:{x}%; border-left:3px solid"></i>'
)
ROWS = {"you": (0, 1.2), "predicted": (3.1, 1.9), "measured": (4.3, 1.9)}  # em from the top: words, mark


def ends(guess: Guess, number: float) -> tuple[float, float]:
    """Where the axis begins and ends: with the slider, else from nothing to twice the answer, or to 100 %."""
    if guess.low is not None and guess.high is not None:
        return guess.low * guess.factor, guess.high * guess.factor
    if guess.unit == "%" and 0 <= number <= 1:
        return 0, 1
    return (0, 2 * number or 1) if number >= 0 else (2 * number, 0)


def axis(guess: Guess, number: float, measured: float | None = None) -> str:
    """The axis as HTML that needs no style sheet.

    Args:
        guess: what was said stands above the axis, at its end where it lies beyond. Where nothing was said yet, ``{x}``
            and ``{said}`` stand for its place in percent and its words.
        number: the prediction, below it.
        measured: what was measured, below that.
    """
    low, high = ends(guess, number)
    marks, words = "", []
    later = {} if measured is None else {"measured": measured}
    for name, value in {"you": guess.value, "predicted": number, **later}.items():
        part = 0 if value is None else (value - low) / (high - low)
        text = "{said}" if value is None else guess.text(value)
        text = f"{name}: ← {text}" if part < 0 else f"{name}: {text} →" if part > 1 else f"{name}: {text}"
        x = "{x}" if value is None else f"{100 * min(1, max(0, part)):.1f}"
        marks += MARK.format(x=x, text=escape(text), top=ROWS[name][0], line=ROWS[name][1])
        words.append(text)
    said = f"{guess.name}, from {guess.text(low)} to {guess.text(high)}; {', '.join(words)}"
    height = 4.4 if measured is None else 5.6
    return AXIS.format(
        words=escape(said), low=guess.text(low), high=guess.text(high), height=height, marks=marks
    )
