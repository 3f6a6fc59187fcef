"""What autograd keeps of one token, tensor by tensor, so that one sees which of them a method brings back."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.observe.networks.render import PALETTE
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, bare


def plot_kept(rows: Mapping[str, Mapping[str, int]]) -> Picture:
    """A bar for each way of training. Each tensor has its own place and colour in all rows; where a row does not keep
    it, a dashed empty box stands there. What is too thin for its name stands beside the total.

    Args:
        rows: way -> (tensor -> numbers kept for a token).

    Raises:
        ValueError: there is no row.
    """
    from matplotlib.figure import Figure

    if not rows:
        raise ValueError("there is nothing to draw: give at least one row")
    widths: dict[str, int] = {}
    for parts in rows.values():
        for part, numbers in parts.items():
            widths[part] = max(widths.get(part, 0), numbers)
    whole = sum(widths.values())
    thin = {part for part, width in widths.items() if width < 0.05 * whole}
    longest = 1.35 * whole
    figure = Figure(figsize=(WIDTH, 0.75 + 0.55 * len(rows)), layout="constrained")
    axis = figure.subplots()
    for place, parts in enumerate(rows.values()):
        left, said = 0, [f"{sum(parts.values()):,} in all"]
        for at, (part, width) in enumerate(widths.items()):
            numbers, colour = parts.get(part, 0), PALETTE[at % len(PALETTE)]
            if numbers:
                axis.barh(
                    place, numbers, 0.7, left, color=colour, edgecolor=colour if part in thin else "white"
                )
            elif part not in thin:
                axis.barh(
                    place,
                    width,
                    0.66,
                    left,
                    facecolor="none",
                    edgecolor="#666666",
                    linestyle="--",
                    linewidth=1.2,
                )
            if part not in thin:
                inside = f"{numbers:,}" if numbers else "none"
                axis.text(left + width / 2, place, inside, ha="center", va="center", fontsize=TEXT)
            elif numbers:
                said.append(f"{numbers:,} of them {part}")
            if place == 0 and part not in thin:
                name = part if width > 0.2 * whole else part.replace(" of ", "\nof ")
                axis.text(left + width / 2, -0.45, name, ha="center", va="bottom", fontsize=TEXT)
            left += width
        end = (whole, place)
        axis.annotate("\n".join(said), end, (6, 0), textcoords="offset points", va="center", fontsize=TEXT)
    axis.set_yticks(range(len(rows)), list(rows), fontsize=TEXT)
    axis.set_xlim(0, longest)
    axis.set_ylim(len(rows) - 0.5, -1.1)
    axis.set_xticks([])
    axis.set_xlabel("numbers kept for one token", fontsize=TEXT, loc="left")
    bare(axis)
    axis.spines["bottom"].set_visible(False)
    said = (
        f"{way}: {', '.join(f'{part} {numbers:,}' for part, numbers in parts.items())}, "
        f"{sum(parts.values()):,} in all"
        for way, parts in rows.items()
    )
    return render(figure, f"Numbers kept for one token. {'; '.join(said)}.")
