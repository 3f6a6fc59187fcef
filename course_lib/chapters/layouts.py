"""Chapter 13's picture of the three layouts of a tensor on two laptops, and of the four conversions between them."""

from __future__ import annotations

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

LAYOUTS = {"whole": "#a9cbe8", "part": "#8fb99f", "sum": "#e8c547"}
# layout -> where it stands, and what each laptop has of the two tokens 7 and 3
PLACES = {"sum": (1.1, 2.9), "whole": (8.9, 2.9), "part": (5.0, 0.35)}
HAS = {"sum": (("2", "1"), ("5", "2")), "whole": (("7", "3"), ("7", "3")), "part": (("7", ""), ("", "3"))}
# conversion -> from where, to where, where its name stands, and how it is aligned
CONVERSIONS = {
    "all-reduce": ((3.4, 3.55), (7.2, 3.55), (5.3, 3.7), "center"),
    "reduce-scatter": ((2.6, 2.65), (4.4, 1.45), (2.9, 1.85), "right"),
    "all-gather": ((7.1, 1.75), (8.5, 2.75), (7.4, 2.35), "right"),
    "cut out,\nnothing is sent": ((9.6, 2.65), (7.4, 1.2), (8.8, 1.55), "left"),
}
HIGH = 0.62


def plot_layouts() -> Picture:
    """Two tokens, 7 and 3: both laptops have them whole, each has a part, or each has an addend of a sum."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    axes = figure.subplots()
    for layout, (left, low) in PLACES.items():
        axes.text(left + 1, low + 2 * HIGH + 0.4, layout, ha="center", fontsize=TITLE, weight="bold")
        for column, token in enumerate(("token 1", "token 2")):
            axes.text(left + column + 0.5, low + 2 * HIGH + 0.08, token, ha="center", fontsize=TEXT)
        for row, (name, numbers) in enumerate(zip(("your laptop", "the old one"), HAS[layout], strict=True)):
            y = low + (1 - row) * HIGH
            axes.text(left - 0.1, y + HIGH / 2, name, ha="right", va="center", fontsize=TEXT)
            for column, number in enumerate(numbers):
                colour = LAYOUTS[layout] if number else "#ffffff"
                axes.add_patch(Rectangle((left + column, y), 1, HIGH, facecolor=colour, edgecolor="#444444"))
                axes.text(left + column + 0.5, y + HIGH / 2, number, ha="center", va="center", fontsize=TITLE)
    for name, (start, end, (x, y), align) in CONVERSIONS.items():
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "lw": 1.5})
        axes.text(x, y, name, ha=align, va="bottom" if align == "center" else "center", fontsize=TEXT)
    axes.set(xlim=(-0.6, 11.2), ylim=(0.2, 4.85))
    axes.set_axis_off()
    told = (
        f"{layout}: your laptop {_of(mine)}, the old one {_of(other)}"
        for layout, (mine, other) in HAS.items()
    )
    arrows = ", ".join(name.replace("\n", " ") for name in CONVERSIONS)
    alt = f"Two tokens, 7 and 3, in three layouts. {'; '.join(told)}. Between them {arrows}."
    return render(figure, alt)


def _of(numbers: tuple[str, ...]) -> str:
    return " and ".join(number or "nothing" for number in numbers)
