"""The drawing of masks: a square for each query and key, filled where the query may look at the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

SEEN, HIDDEN = "#1b3a5c", "#eeeeee"


def plot_masks(masks: Mapping[str, Sequence[Sequence[bool]]], alt: str | None = None) -> Picture:
    """Masks beside each other, four in a row at most; rows are queries and columns are keys.

    Args:
        masks: title -> for each query, from the first on, whether it may look at each key.
        alt: the sentence that says what is seen; by default how many pairs each mask allows.

    Raises:
        ValueError: there is no mask, or the rows of one have different lengths.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    if not masks or not all(len(mask) and len(mask[0]) for mask in masks.values()):
        raise ValueError(
            "there is nothing to draw: give at least one mask with at least one query and one key"
        )
    for title, mask in masks.items():
        if len({len(row) for row in mask}) > 1:
            raise ValueError(f"the rows of the mask {title!r} have different lengths")
    columns = min(len(masks), 4)
    rows = -(-len(masks) // columns)
    figure = Figure(figsize=(WIDTH, 0.5 + rows * min(2.6, WIDTH / columns + 0.35)), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[len(masks) :]:
        axis.set_visible(False)
    for axis, (title, mask) in zip(axes, masks.items(), strict=False):
        for query, row in enumerate(mask):
            for key, sees in enumerate(row):
                place = (key + 0.06, query + 0.06)
                axis.add_patch(Rectangle(place, 0.88, 0.88, facecolor=SEEN if sees else HIDDEN, linewidth=0))
        axis.set_xlim(0, len(mask[0]))
        axis.set_ylim(len(mask), 0)
        axis.set_aspect("equal")
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        axis.set_title(title, loc="left", fontsize=TITLE)
        axis.set_xlabel("keys →", fontsize=TEXT, loc="left")
        axis.set_ylabel("← queries", fontsize=TEXT, loc="top")
    handles = [Patch(facecolor=colour) for colour in (SEEN, HIDDEN)]
    names = ["the query may look at the key", "it may not"]
    figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize=TEXT, frameon=False)
    return render(figure, alt or f"Masks: {'; '.join(_sentence(*item) for item in masks.items())}.")


def _sentence(title: str, mask: Sequence[Sequence[bool]]) -> str:
    seen, all_of_them = sum(map(sum, mask)), sum(map(len, mask))
    return f"{title}, {seen} of {all_of_them} pairs of a query and a key are allowed"
