"""What autograd keeps of one token, tensor by tensor, so that one sees which of them a method brings back."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.observe.networks.render import PALETTE
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, bare


def plot_kept(rows: Mapping[str, Mapping[str, int]]) -> Picture:
    """A bar for each way of training, divided into the tensors that are kept; what is too thin for its name stands at
    the end of the bar, beside the total.

    Args:
        rows: way -> (tensor -> numbers kept for a token). A tensor has the same colour in all rows.

    Raises:
        ValueError: there is no row.
    """
    from matplotlib.figure import Figure

    if not rows:
        raise ValueError("there is nothing to draw: give at least one row")
    colours: dict[str, str] = {}
    for parts in rows.values():
        for part in parts:
            colours.setdefault(part, PALETTE[len(colours) % len(PALETTE)])
    longest = 1.6 * max(sum(parts.values()) for parts in rows.values())
    figure = Figure(figsize=(WIDTH, 0.5 + 0.62 * len(rows)), layout="constrained")
    axis = figure.subplots()
    for place, parts in enumerate(rows.values()):
        left, thin = 0, []
        for part, numbers in parts.items():
            edge = "white" if numbers > 0.02 * longest else colours[part]  # a thin one is seen without
            axis.barh(place, numbers, 0.7, left, color=colours[part], edgecolor=edge)
            if numbers > 0.08 * longest:
                said = f"{part}\n{numbers:,}"
                axis.text(left + numbers / 2, place, said, ha="center", va="center", fontsize=TEXT)
            else:
                thin.append(f"{numbers:,} of them {part}")
            left += numbers
        axis.annotate(
            "\n".join([f"{left:,} in all", *thin]),
            (left, place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=TEXT,
        )
    axis.set_yticks(range(len(rows)), list(rows), fontsize=TEXT)
    axis.set_xlim(0, longest)
    axis.set_xticks([])
    axis.set_xlabel("numbers kept for one token", fontsize=TEXT, loc="left")
    axis.invert_yaxis()
    bare(axis)
    axis.spines["bottom"].set_visible(False)
    said = (
        f"{way}: {', '.join(f'{part} {numbers:,}' for part, numbers in parts.items())}, "
        f"{sum(parts.values()):,} in all"
        for way, parts in rows.items()
    )
    return render(figure, f"Numbers kept for one token. {'; '.join(said)}.")
