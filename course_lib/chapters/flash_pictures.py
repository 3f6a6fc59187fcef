"""Chapter 15's colours, its drawing of backward in one tile, and of how much of a measured time is explained."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.inputs.checks import amounts
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, bare

STANDARD, FLASH, REST = "#1b3a5c", "#cc6a24", "#dcdcdc"
BOXES = {  # where a box of the tile stands: its column and its row
    "Q, K": (0, 2),
    "S": (1, 2),
    "P": (2, 2),
    "dV": (3, 2),
    "dO, V": (0, 1),
    "dP": (1, 1),
    "dS": (2, 1),
    "dQ": (3, 1),
    "dK": (3, 0),
}
PRODUCTS = [  # from, to, and what is multiplied; the first only FlashAttention does
    ("Q, K", "S", "Q Kᵀ"),
    ("P", "dV", "Pᵀ dO"),
    ("dO, V", "dP", "dO Vᵀ"),
    ("dS", "dQ", "dS K"),
    ("dS", "dK", "dSᵀ Q"),
]
NUMBER_BY_NUMBER = [("S", "P", "exp(S − L)"), ("P", "dS", ""), ("dP", "dS", "P × (dP − D)")]


def plot_backward_tile() -> Picture:
    """Backward in one tile: a thick arrow is a matrix product, the orange one is FlashAttention's own; along a thin
    arrow each number of a tile is computed from those at its place, and from its query's L or D."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axis = figure.subplots()
    for name, (column, row) in BOXES.items():
        tile = column in (1, 2)
        edge = FLASH if name == "S" else "#222222"
        look = {"boxstyle": "square,pad=0.5", "fc": "#eef2f6" if tile else "white", "ec": edge}
        axis.text(column, row, name, ha="center", va="center", fontsize=TITLE, bbox=look)
    for arrows, wide in ((PRODUCTS, 3.0), (NUMBER_BY_NUMBER, 0.9)):
        for source, target, words in arrows:
            (x0, y0), (x1, y1) = BOXES[source], BOXES[target]
            colour = FLASH if target == "S" else "#444444"
            if y0 == y1:
                begin, end, at = (x0 + 0.2, y0), (x1 - 0.22, y1), ((x0 + x1) / 2, y0 + 0.1)
            elif x0 == x1:
                begin, end, at = (x0, y0 - 0.24), (x1, y1 + 0.24), (x0, y0)
            else:
                begin, end, at = (x0 + 0.2, y0 - 0.12), (x1 - 0.22, y1), (x0 + 0.3, y1 + 0.2)
            shape = {"arrowstyle": "-|>", "lw": wide, "color": colour, "shrinkA": 0, "shrinkB": 0}
            axis.annotate("", end, begin, arrowprops=shape | {"mutation_scale": 8 + 3 * wide})
            axis.text(*at, words, ha="center", va="bottom", fontsize=TITLE, color=colour)
    for column, words in ((0, "loaded"), (1.5, "one tile, on the chip"), (3, "added up")):
        axis.text(column, 2.62, words, ha="center", fontsize=TEXT, color="#666666")
    axis.text(
        1.5, 0.76, "D: each query's\nsum of O × dO", ha="center", va="top", fontsize=TEXT, color="#666666"
    )
    key = [
        (3.0, "#444444", "matrix product"),
        (3.0, FLASH, "only FlashAttention"),
        (0.9, "#444444", "number by number"),
    ]
    for place, (wide, colour, words) in enumerate(key):
        y = 0.3 - 0.3 * place
        axis.plot([-0.28, 0.02], [y, y], color=colour, lw=wide, solid_capstyle="butt")
        axis.text(0.1, y, words, va="center", fontsize=TEXT, color=colour)
    axis.set(xlim=(-0.4, 3.35), ylim=(-0.45, 2.85))
    axis.axis("off")
    return render(
        figure,
        "Backward in one tile. Five matrix products: Q and K give S, which only FlashAttention computes again; P and "
        "dO give dV; dO and V give dP; dS and K give dQ; dS and Q give dK. Without one: P from S; "
        "dS = P × (dP − D), where D is each query's sum of O × dO.",
    )


def plot_explained(counted: Mapping[str, Mapping[str, float]], measured: Mapping[str, float]) -> Picture:
    """For both methods, on one axis, what was counted and what was measured: as far as the longest count reaches, the
    measured time has the method's colour, and the rest is grey.

    Args:
        counted: the method, standard first -> what takes time -> ms.
        measured: the method -> ms, at least as long as each of its counts.

    Raises:
        ValueError: the methods differ, are not two, or a count is longer than what was measured.
    """
    from matplotlib.figure import Figure

    amounts(measured=[*measured.values()], counted=[ms for own in counted.values() for ms in own.values()])
    if list(counted) != list(measured) or len(counted) != 2:
        raise ValueError("give two methods, the same in counted and in measured")
    longest = {method: max(own.values()) for method, own in counted.items()}
    if any(longest[method] > measured[method] for method in measured):
        raise ValueError("a count is longer than the measured time")
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axis = figure.subplots()
    places, names, said, y = [], [], [], 0.0
    for (method, own), colour in zip(counted.items(), (STANDARD, FLASH), strict=True):
        whole = measured[method]
        axis.text(0, y, method, fontsize=TITLE, weight="bold", color=colour, va="center")
        for name, ms in {**own, "measured": whole}.items():
            y += 1
            rest = whole - longest[method] if name == "measured" else 0
            axis.barh(y, ms - rest, 0.66, color=colour)
            axis.barh(y, rest, 0.66, left=ms - rest, color=REST)
            words = f"{ms:.3g}" + (f", of which {rest:.2g} not counted" if rest else "")
            axis.annotate(words, (ms, y), (4, 0), textcoords="offset points", va="center", fontsize=TEXT)
            places.append(y)
            names.append(name)
            said.append(f"{method}, {name} {words} ms")
        y += 1.2
    axis.set_yticks(places, names)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.5 * max(measured.values()))
    axis.set_xticks(range(0, int(max(measured.values())) + 1, 10))
    axis.set_xlabel("time, ms", fontsize=TEXT, loc="left")
    bare(axis)
    return render(figure, f"Bars. {'; '.join(said)}.")
