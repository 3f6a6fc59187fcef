"""The drawing of a KV cache over time: who has which slots, and which of them hold tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from simulator.ledgers.cache import CacheHistory, Piece
from simulator.plots.picture import Picture, render
from simulator.plots.style import PARTS, TEXT, TITLE, WIDTH, bare, titles_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (*PARTS[:-1], "#d77fa1", "#b08d6a", "#5fb3c7")  # ten requests without a repetition
SHARED = "#4d4d4d"
DARK = {"#1b3a5c", "#cc6a24", "#23614a", "#7d5ba6", SHARED}  # white text can be read on these


class _Stay(NamedTuple):
    """One piece from its first step to its last, with the tokens at each step."""

    piece: Piece
    first: int
    tokens: list[int]


def plot_cache(
    *histories: CacheHistory,
    titles: Sequence[str] | None = None,
    alt: str | None = None,
    arrivals: Sequence[int] = (),
    follow: int | None = None,
) -> Picture:
    """Slots over steps, one drawing below the other: coloured by request where tokens are, hatched where reserved.

    The number in a piece is that of its request; pieces that several requests share are grey.

    Args:
        histories: predicted or measured.
        titles: one for each.
        alt: the sentence that says what is seen; by default how many slots hold tokens on average.
        arrivals: for each request the step at which it comes; its number stands there, above the slots.
        follow: a request whose pieces are framed, with an arrow from its arrival to its first one; of the others only
            large pieces have a number.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    if not histories or not all(history.steps for history in histories):
        raise ValueError("there is nothing to draw: give at least one history, each with at least one step")
    if follow is not None and not 0 <= follow < len(arrivals):
        raise ValueError(
            f"follow is {follow}, and {len(arrivals)} requests arrive: give the number of one of them"
        )
    titles = titles_for(titles, len(histories))
    figure = Figure(figsize=(WIDTH, 0.6 + 2.5 * len(histories)), layout="constrained")
    axes = figure.subplots(len(histories), 1, sharex=True, squeeze=False)[:, 0]
    for axis, history, title in zip(axes, histories, titles, strict=True):
        axis.set_title(title, loc="left", fontsize=TITLE, pad=18 if arrivals else None)
        stays = _stays(history)
        for stay in stays:
            _draw(axis, stay, history.slots, follow)
        _come(axis, stays, arrivals, history.slots, follow)
        axis.set_ylim(0, history.slots)
        axis.set_ylabel("slots", fontsize=TEXT)
        axis.set_yticks([0, history.slots // 2, history.slots])
        bare(axis)
    axes[0].set_xlim(0, max(len(history.steps) for history in histories))
    axes[-1].set_xlabel("step", fontsize=TEXT, loc="right")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    keys = [
        Patch(color=PARTS[0], label="holds tokens"),
        Patch(**_empty(PARTS[0]), label="reserved, empty"),
    ]
    if any(len(piece.holders) > 1 for history in histories for step in history.steps for piece in step):
        keys.append(Patch(color=SHARED, label="shared"))
    figure.legend(
        handles=keys, loc="outside upper right", ncols=3, fontsize=TEXT, frameon=False, handlelength=1.2
    )
    return render(figure, alt or " ".join(map(_sentence, histories, titles)))


def _come(
    axis: Axes, stays: Sequence[_Stay], arrivals: Sequence[int], slots: int, follow: int | None
) -> None:
    """The requests' numbers above the slots, and the arrow of the one that is followed."""
    for number, step in enumerate(arrivals):
        weight = "bold" if number == follow else "normal"
        axis.text(step, 1.03 * slots, str(number), fontsize=TEXT, fontweight=weight, ha="center", va="bottom")
    if not arrivals:
        return
    axis.text(max(arrivals) + 1.5, 1.03 * slots, "arrive", fontsize=TEXT, va="bottom")
    for piece, first, _ in stays:
        if follow in piece.holders:
            arrow = {"arrowstyle": "->", "color": "#111111", "linewidth": 1.5, "shrinkA": 0, "shrinkB": 0}
            start, end = (arrivals[follow], 1.03 * slots), (first + 0.2, piece.start + 0.85 * piece.slots)
            axis.annotate("", xy=end, xytext=start, arrowprops=arrow, annotation_clip=False)
            return


def _draw(axis: Axes, stay: _Stay, slots: int, follow: int | None) -> None:
    piece, first, tokens = stay
    steps = range(first, first + len(tokens) + 1)
    holder, *others = piece.holders
    colour = SHARED if others else COLOURS[holder % len(COLOURS)]
    top = [piece.start + t for t in (*tokens, tokens[-1])]
    axis.fill_between(steps, piece.start, piece.start + piece.slots, **_empty(colour))
    axis.fill_between(steps, piece.start, top, step="post", color=colour, edgecolor="white", linewidth=0.4)
    name = f"{len(piece.holders)}×" if others else str(holder)
    followed = follow in piece.holders
    if followed:
        axis.fill_between(
            steps, piece.start, piece.start + piece.slots, fc="none", ec="#111111", linewidth=1.6, zorder=4
        )
    least = 1 / 17 if followed or follow is None else 1 / 8
    if piece.slots / slots >= least and len(tokens) >= 1 + len(name):
        height = min(0.5 * piece.slots, 0.06 * slots)  # low in a piece, where tokens come first
        covered = tokens[len(tokens) // 2] >= 1.3 * height
        axis.text(
            first + len(tokens) / 2,
            piece.start + height,
            name,
            ha="center",
            va="center",
            fontsize=TEXT,
            color="white" if colour in DARK and covered else "#111111",
            bbox=None if covered else {"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )


def _empty(colour: str) -> dict[str, Any]:
    """How reserved slots without tokens look: hatched, since a pale colour may be another request's own."""
    return {"facecolor": "white", "edgecolor": colour, "hatch": "/////", "linewidth": 0.6}


def _stays(history: CacheHistory) -> list[_Stay]:
    open_stays: dict[tuple[int, int, tuple[int, ...]], _Stay] = {}
    found = []
    for step, pieces in enumerate(history.steps):
        still = {}
        for piece in pieces:
            key = (piece.start, piece.slots, piece.holders)
            still[key] = open_stays.get(key) or _Stay(piece, step, [])
            if not still[key].tokens:
                found.append(still[key])
            still[key].tokens.append(piece.tokens)
        open_stays = still
    return found


def _sentence(history: CacheHistory, title: str) -> str:
    mean = sum(history.tokens) / len(history.steps) / history.slots
    return (
        f"{title or 'A cache'}: {len(history.steps)} steps, {mean:.0%} of the slots hold tokens on average."
    )
