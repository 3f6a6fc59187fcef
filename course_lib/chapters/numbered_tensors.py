"""Chapter 08's drawing of ``pack`` and ``unpack``: what stands in the place of a tensor, run by run."""

from __future__ import annotations

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

OPERATIONS = ("up", "GELU", "down")
FULL, KEPT, EMPTY, PALE, INK = "#cc6a24", "#bbbbbb", "white", "#aaaaaa", "#222222"  # as in the puzzle
ROWS = (  # the name of a run, whether its operations run, and what each slot holds
    ("forward", (True, True, True), (EMPTY, EMPTY, EMPTY)),
    ("the second run", (True, True, False), (KEPT, FULL, FULL)),  # number 0 is x
)


def plot_numbers() -> Picture:
    """Forward leaves three numbers, the second run fills their slots, and backward empties them in reverse."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    axis = figure.subplots()
    for row, (name, runs, full) in enumerate(ROWS):
        y = -2.2 * row
        axis.text(-1.5, y, name, va="center", fontsize=TITLE)
        _box(axis, 0, y, "x", KEPT, INK, 0.24)
        for place, (operation, run) in enumerate(zip(OPERATIONS, runs, strict=True)):
            x = 1 + place
            tone = INK if run else PALE
            _box(axis, x, y, operation, EMPTY, tone, 0.3, tone)
            if place < 2 or run:
                _arrow(axis, (x + 0.32, y), (x + 0.68, y), tone)
            _arrow(axis, (x - 0.5, y - 0.03), (x - 0.5, y - 0.66), INK)
            _slot(axis, x - 0.5, y - 0.92, place, full[place])
        _arrow(axis, (0.26, y), (0.68, y), INK)
        if runs[-1]:
            axis.text(3.78, y, "y", va="center", ha="center", fontsize=TITLE)
        axis.text(-1.5, y - 0.92, "saved for backward", va="center", fontsize=TEXT)
    y = -4.4
    axis.text(-1.5, y, "backward", va="center", fontsize=TITLE)
    for place in range(3):
        x = place + 0.5
        _arrow(axis, (x, -2.2 - 1.18), (x, y + 0.24), INK)
        said = f"{('first', 'then', 'last')[2 - place]}: {place}"
        axis.text(x, y, said, ha="center", va="center", fontsize=TITLE)
    axis.text(3.05, -0.92, "numbers alone,\nonly x is kept", va="center", fontsize=TEXT)
    axis.text(3.05, -2.2 - 0.92, "0 is x, 1 and 2\nare back", va="center", fontsize=TEXT)
    axis.set(xlim=(-1.55, 4.0), ylim=(-4.75, 0.4))
    axis.axis("off")
    return render(
        figure,
        "Forward through up, GELU and down: for the input of each a number is kept, 0, 1 and 2, and of the tensors "
        "only x. The second run brings them back and does not run down. Backward takes 2, then 1, then 0.",
    )


def _box(axis, x, y, text, face, ink, half, edge=INK) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((x - half, y - 0.26), 2 * half, 0.52, facecolor=face, edgecolor=edge))
    axis.text(x, y, text, ha="center", va="center", fontsize=TITLE, color=ink)


def _slot(axis, x, y, number, face) -> None:
    from matplotlib.patches import Rectangle

    line = "--" if face == EMPTY else "-"
    corner = (x - 0.24, y - 0.26)
    axis.add_patch(Rectangle(corner, 0.48, 0.52, facecolor=face, edgecolor=INK, linestyle=line))
    axis.text(
        x, y, str(number), ha="center", va="center", fontsize=TITLE, color="white" if face == FULL else INK
    )


def _arrow(axis, start, end, colour) -> None:
    axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.2})
