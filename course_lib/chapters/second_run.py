"""Chapter 08's drawing of a block's second run: which inputs are kept, which come back, and what does not run again."""

from __future__ import annotations

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

OPERATIONS = ("attention", "gate, up", "multiply", "down")
KEPT, BACK = "#bbbbbb", "#1b3a5c"  # as in the chapter's steps
EMPTY, PALE, INK = "white", "#aaaaaa", "#222222"
LAST = len(OPERATIONS) - 1


def plot_second_run() -> Picture:
    """Forward keeps the block's input alone; the second run brings back the inputs that backward needs, and stops."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
    axis = figure.subplots()
    for name, y, again in (("forward", 0.0, False), ("second run", -2.0, True)):
        axis.text(-1.35, y, name, va="center", fontsize=TITLE)
        axis.text(-1.35, y - 0.85, "inputs", va="center", fontsize=TITLE)
        axis.text(0.02, y, "x", va="center", ha="center", fontsize=TITLE)
        for place, operation in enumerate(OPERATIONS):
            x, tone = 1 + 1.2 * place, PALE if again and place == LAST else INK
            _arrow(axis, (0.15 if place == 0 else x - 0.77, y), (x - 0.45, y), INK)
            _box(axis, (x, y), (0.43, 0.27), EMPTY, tone, operation)
            face = KEPT if place == 0 else BACK if again else EMPTY
            _arrow(axis, (x - 0.61, y - 0.05), (x - 0.61, y - 0.6), INK)
            _box(axis, (x - 0.61, y - 0.85), (0.24, 0.22), face, INK, line="--" if face == EMPTY else "-")
        end = 1 + 1.2 * LAST
        if again:
            axis.text(end + 0.5, y, "does not\nrun again", va="center", fontsize=TEXT)
        else:
            _arrow(axis, (end + 0.45, y), (end + 0.75, y), INK)
            axis.text(end + 0.85, y, "y", va="center", ha="center", fontsize=TITLE)
        said = "all are there\nfor backward" if again else "only x is kept"
        axis.text(end - 0.27, y - 0.85, said, va="center", fontsize=TEXT)
    axis.set(xlim=(-1.4, 5.95), ylim=(-3.15, 0.35))
    axis.axis("off")
    return render(
        figure,
        f"A block as {', '.join(OPERATIONS)}, each with its input. Forward keeps the first input alone. The second run "
        f"brings the others back, and {OPERATIONS[-1]} does not run again.",
    )


def _box(axis, middle, half, face, edge, text="", line="-") -> None:
    from matplotlib.patches import Rectangle

    (x, y), (width, height) = middle, half
    corner = (x - width, y - height)
    axis.add_patch(Rectangle(corner, 2 * width, 2 * height, facecolor=face, edgecolor=edge, linestyle=line))
    axis.text(x, y, text, ha="center", va="center", fontsize=TITLE, color=edge)


def _arrow(axis, start, end, colour) -> None:
    axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.2})
