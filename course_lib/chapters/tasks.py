"""One sentence under several training objectives: what each model reads, and below it what it must write."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.text.objectives import NOTHING, Seen
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH

BOTH_WAYS, BEFORE, WRITTEN = "#dcdcdc", "#c9dff2", "#f6d3b3"
LETTER, EDGE, GAP = 0.068, 0.09, 0.035  # inches: a letter, the space beside a word, the space between boxes
NAME, ARROW = 1.08, 0.3  # inches for the objective's name, and between encoder and decoder


def plot_tasks(tasks: Mapping[str, Seen], alt: str | None = None) -> Picture:
    """A row for each objective.

    Args:
        tasks: name -> the sentence as that objective sees it.
        alt: the sentence that says what is seen; by default what each reads and writes.

    Raises:
        ValueError: there is no objective.
    """
    from matplotlib.figure import Figure

    if not tasks:
        raise ValueError("there is nothing to draw: give at least one objective")
    figure = Figure(figsize=(WIDTH, 0.4 + 0.68 * len(tasks)))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, WIDTH), ylim=(0.4 + 0.68 * len(tasks), 0))
    axis.axis("off")

    def box(text: str, left: float, top: float, colour: str, width: float) -> None:
        from matplotlib.patches import Rectangle

        axis.add_patch(Rectangle((left, top), width, 0.24, facecolor=colour, linewidth=0))
        axis.text(left + width / 2, top + 0.125, text, ha="center", va="center", fontsize=TEXT)

    for row, (name, seen) in enumerate(tasks.items()):
        top, left = 0.06 + 0.68 * row, NAME
        axis.text(0.03, top + 0.125, name.replace(", ", "\n"), va="center", fontsize=TEXT, linespacing=1.15)
        for token in seen.source:
            box(token, left, top, BOTH_WAYS, width := EDGE + LETTER * len(token))
            left += width + GAP
        if seen.source:
            axis.text(left + ARROW / 2 - GAP, top + 0.12, "→", ha="center", va="center", fontsize=TEXT)
            left += ARROW
        first = seen.mask[0].tolist()  # who looks ahead is seen by the first token
        for read, written, ahead in zip(seen.inputs, seen.targets, first, strict=True):
            asked = written if written != NOTHING else ""
            width = EDGE + LETTER * max(len(read), len(asked))
            box(read, left, top, BOTH_WAYS if ahead and sum(first) > 1 else BEFORE, width)
            if asked:
                box(asked, left, top + 0.27, WRITTEN, width)
            left += width + GAP
    left, top = NAME, 0.06 + 0.68 * len(tasks)
    legend = {"sees both sides": BOTH_WAYS, "sees what came before": BEFORE, "must be written": WRITTEN}
    for text, colour in legend.items():
        box("", left, top, colour, 0.24)
        axis.text(left + 0.3, top + 0.125, text, va="center", fontsize=TEXT)
        left += 0.62 + LETTER * len(text)
    return render(figure, alt or "; ".join(_sentence(*item) for item in tasks.items()) + ".")


def _sentence(name: str, seen: Seen) -> str:
    read = f"an encoder reads {' '.join(seen.source)}, a decoder " if seen.source else "reads "
    return f"{name}: {read}{' '.join(seen.inputs)}, and writes {' '.join(seen.targets)}"
