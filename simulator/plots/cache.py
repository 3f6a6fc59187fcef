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
) -> Picture:
    """Slots over steps, one drawing below the other: coloured by request where tokens are, hatched where reserved.

    The number in a piece is that of its request; pieces that several requests share are grey.

    Args:
        histories: predicted or measured.
        titles: one for each.
        alt: the sentence that says what is seen; by default how many slots hold tokens on average.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    if not histories or not all(history.steps for history in histories):
        raise ValueError("there is nothing to draw: give at least one history, each with at least one step")
    titles = titles_for(titles, len(histories))
    figure = Figure(figsize=(WIDTH, 0.6 + 2.5 * len(histories)), layout="constrained")
    axes = figure.subplots(len(histories), 1, sharex=True, squeeze=False)[:, 0]
    for axis, history, title in zip(axes, histories, titles, strict=True):
        axis.set_title(title, loc="left", fontsize=TITLE)
        for stay in _stays(history):
            _draw(axis, stay, history.slots)
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


def _draw(axis: Axes, stay: _Stay, slots: int) -> None:
    piece, first, tokens = stay
    steps = range(first, first + len(tokens) + 1)
    holder, *others = piece.holders
    colour = SHARED if others else COLOURS[holder % len(COLOURS)]
    top = [piece.start + t for t in (*tokens, tokens[-1])]
    axis.fill_between(steps, piece.start, piece.start + piece.slots, **_empty(colour))
    axis.fill_between(steps, piece.start, top, step="post", color=colour, edgecolor="white", linewidth=0.4)
    name = f"{len(piece.holders)}×" if others else str(holder)
    if piece.slots / slots >= 1 / 17 and len(tokens) >= 1 + len(name):
        height = min(0.5 * piece.slots, 0.06 * slots)  # low in a piece, where tokens come first
        covered = tokens[len(tokens) // 2] >= 1.7 * height
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
