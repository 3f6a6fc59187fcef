"""A guess, the prediction and the measurement as marks on one axis."""

from __future__ import annotations

from html import escape

from course_lib.observe.show.commitment import Guess

MARK = (
    '<span style="position:absolute; top:{top}em; left:{x}%; transform:translateX(-{x}%); white-space:nowrap">'
    '{text}</span><i style="position:absolute; top:{line}em; height:{height}em; left:{x}%; '
    'border-left:{width}px {style} currentColor"></i>'
)


def ends(guess: Guess, number: float) -> tuple[float, float]:
    """Where the axis begins and ends: with the slider, else from nothing to twice the answer, or to 100 %."""
    if guess.low is not None and guess.high is not None:
        return guess.low * guess.factor, guess.high * guess.factor
    if guess.unit == "%" and 0 <= number <= 1:
        return 0, 1
    return (0, 2 * number or 1) if number >= 0 else (2 * number, 0)


def axis(
    guess: Guess, number: float, measured: float | None = None, said: tuple[str, str] | None = None
) -> str:
    """The axis as HTML that needs no style sheet.

    Args:
        guess: its value stands above the axis; at the end, with an arrow, where it lies beyond.
        number: the prediction, below it.
        measured: what was measured, below that.
        said: the guess's place in percent and its words, where the value is not known yet.
    """
    low, high = ends(guess, number)

    def place(value: float) -> tuple[str, str]:
        part = (value - low) / (high - low)
        text = guess.text(value)
        text = f"← {text}" if part < 0 else f"{text} →" if part > 1 else text
        return f"{100 * min(1, max(0, part)):.1f}", text

    marks = [("you: ", *(said or place(guess.value)), 0, 1.3, 1.1, 2, "solid")]
    marks.append(("predicted: ", *place(number), 3, 2, 1.1, 3, "solid"))
    if measured is not None:
        marks.append(("measured: ", *place(measured), 4.2, 2, 1.1, 2, "dotted"))
    drawn = "".join(
        MARK.format(
            x=x, text=escape(name + text), top=top, line=line, height=height, width=width, style=style
        )
        for name, x, text, top, line, height, width, style in marks
    )
    words = escape(f"{guess.name}, from {guess.text(low)} to {guess.text(high)}; ", quote=True)
    words += escape(", ".join(name + text for name, _, text, *_ in marks), quote=True)
    end = '<span style="align-self:flex-start; margin-top:1.4em">{}</span>'
    height = 4.4 if measured is None else 5.6
    return (
        f'<div role="img" aria-label="{words}" style="display:flex; gap:0.6em; max-width:40em; margin:0.6em 0">'
        f'{end.format(guess.text(low))}<div style="position:relative; flex:1; height:{height}em">'
        f'<i style="position:absolute; top:2em; left:0; right:0; border-top:1px solid currentColor"></i>{drawn}</div>'
        f"{end.format(guess.text(high))}</div>"
    )
