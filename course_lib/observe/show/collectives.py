"""Collectives drawn from the log of a real run: every round of messages, and who holds what after it.

Ranks stand side by side, chunks one below the other. A cell's colour and letter say which chunk it is; each of
its stripes stands for a rank, and is filled with that rank's number once its part is in the sum.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field
from html import escape

from course_lib.observe.ledgers.messages import Trace, read_label
from simulator.plots.picture import Picture
from simulator.predict.message_rounds import Message

# (filled, pale) by chunk: told apart by hue in all kinds of colour blindness, and by their letters without colour.
CHUNKS = [
    ("#0b5a8c", "#d3e6f3"),
    ("#a63603", "#fbe0d0"),
    ("#1b6b48", "#d5ecdf"),
    ("#5e3c8f", "#e6ddf2"),
    ("#7a5c00", "#f5ebc4"),
    ("#4d4d4d", "#e4e4e4"),
    ("#8c1d5a", "#f6d9e8"),
]
INK = "#222222"
LETTER, STRIPE, CELL = 14, 11, 24  # pixels: a cell's letter, each of its stripes, its height
WIDE = 16  # between ranks: room for arrows
COLUMN = 640  # pixels that a notebook leaves a picture when its window is 1,100 wide
TOP = 24  # above the cells: the ranks' names

Parts = Collection[tuple[int, int]]  # what was added up: (chunk, rank)
Holding = list[dict[int, Parts]]  # by rank: row -> parts


@dataclass(frozen=True)
class Round:
    """One round: what the ranks hold after it, its messages, and (rank, row) of what is framed.

    A message is (sender, receiver, row); whole tensors have no row.
    """

    held: Holding
    messages: list[tuple[int, int, int | None]]
    fresh: set[tuple[int, int]]


@dataclass
class _Canvas:
    """Pieces of SVG, and how large they have become."""

    parts: list[str] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def text(self, x: float, y: float, text: str, size: float = 12, colour: str = INK, **more: str) -> None:
        extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{colour}"{extra}>{escape(text)}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        stroke: str = "none",
        line: float = 1,
    ) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{stroke}" '
            f'stroke-width="{line:g}"/>'
        )
        self.width, self.height = max(self.width, x + width), max(self.height, y + height)

    def arrow(self, path: str) -> None:
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1.6" marker-end="url(#head)"/>'
        )

    def picture(self, alt: str) -> Picture:
        width, height = self.width + 12, self.height + 10
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif">'
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
            f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>'
            f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>'
        )
        return Picture("".join([head, *self.parts, "</svg>"]), alt)


def plot_rounds(trace: Trace, title: str = "") -> Picture:
    """Every round: its messages as arrows, and what the ranks hold when it is over; what just came is framed.

    What a rank receives is added to what it holds of that chunk. Single chunks that go to a neighbour in the
    ring are drawn beside their row, all else above the ranks.
    """
    if not trace.messages:
        raise ValueError("there is nothing to draw: the trace has no messages")
    p, holding = trace.ranks, _placed(trace.before)
    rounds = []
    for turn in range(1, trace.rounds + 1):
        messages = [m for m in trace.messages if m.round == turn]
        fresh = _deliver(holding, messages, p)
        sent = [
            (m.sender, m.receiver, read_label(m.values[0], p)[0] if len(m.values) == 1 else None)
            for m in messages
        ]
        rounds.append(Round([dict(rank) for rank in holding], sent, fresh))
    alt = _progress(title or "A collective", trace, [each.held for each in rounds])
    return draw_rounds(rounds, p, alt)


def draw_rounds(rounds: Sequence[Round], ranks: int, alt: str) -> Picture:
    """Rounds of messages, whatever the ranks hold: a part of another chunk keeps its colour."""
    canvas = _Canvas()
    messages = [message for each in rounds for message in each.messages]
    along = all(row is not None and receiver == (sender + 1) % ranks for sender, receiver, row in messages)
    above = 0 if along else 12 + 9 * max(abs(receiver - sender) for sender, receiver, _ in messages)
    across = ranks * (_cell_width(ranks) + WIDE) + 16
    per_row = max(1, int((COLUMN - 16) // across))
    while len(rounds) % per_row and per_row > 2:  # rather full rows than one round alone in the last
        per_row -= 1
    x, y = 12.0, 0.0
    for turn, each in enumerate(rounds, 1):
        left, top = x + WIDE / 2, y + 30 + above
        canvas.text(left, y + 20, f"round {turn}", 13, font_weight="bold")
        _grid(canvas, left, top, each.held, ranks, each.fresh)
        for sender, receiver, row in each.messages:
            if along and row is not None:
                _beside(canvas, left, top, sender, receiver, row, ranks)
            else:
                _over(canvas, left, top, sender, receiver, ranks)
        x += across
        if turn % per_row == 0:
            x, y = 12.0, canvas.height + 16
    canvas.width += WIDE / 2  # arrows leave to the right of the last rank
    return canvas.picture(alt)


def _cell_width(ranks: int) -> float:
    return LETTER + ranks * STRIPE


def _grid(
    canvas: _Canvas,
    x: float,
    y: float,
    holding: Holding,
    ranks: int,
    fresh: Set[tuple[int, int]],
) -> None:
    """The ranks side by side."""
    width = _cell_width(ranks)
    for rank, held in enumerate(holding):
        left = x + rank * (width + WIDE)
        canvas.text(left + width / 2, y + TOP - 8, f"rank {rank}", 12, text_anchor="middle")
        for row in range(ranks):
            top = y + TOP + row * CELL
            if row in held:
                _cell(canvas, left, top, row, held[row], ranks)
            else:
                canvas.box(left + 0.5, top + 0.5, width - 1, CELL - 3, "#ffffff", "#c4c4c4")
        for row in (row for receiver, row in fresh if receiver == rank):
            canvas.box(left - 1, y + TOP + row * CELL - 1, width + 2, CELL, "none", INK, 2.2)


def _cell(canvas: _Canvas, x: float, y: float, row: int, parts: Parts, ranks: int) -> None:
    filled, pale = CHUNKS[row]
    canvas.box(x, y, _cell_width(ranks), CELL - 2, pale)
    canvas.text(
        x + LETTER / 2, y + 15.5, "abcdefg"[row], 12, filled, text_anchor="middle", font_weight="bold"
    )
    for rank in range(ranks):
        chunks = sorted(chunk for chunk, of in parts if of == rank)
        for band, chunk in enumerate(chunks):  # one but where chunks are mixed up, or a part was added twice
            left, high = x + LETTER + rank * STRIPE, (CELL - 2) / len(chunks)
            top, gap = y + band * high, int(band + 1 < len(chunks))
            canvas.box(left, top, STRIPE - 1, high - gap, CHUNKS[chunk][0])
            if len(chunks) <= 2:
                size, foot = (12, y + 15.5) if len(chunks) == 1 else (11, top + 9.5)
                canvas.text(left + STRIPE / 2 - 0.5, foot, str(rank), size, "#ffffff", text_anchor="middle")


def _beside(canvas: _Canvas, x: float, y: float, sender: int, receiver: int, row: int, ranks: int) -> None:
    """An arrow in the chunk's row; around the end of the ring, one that leaves and one that comes back in."""
    width = _cell_width(ranks)
    middle = y + TOP + row * CELL + CELL / 2 - 1
    start = x + sender * (width + WIDE) + width + 3
    if receiver == 0:
        canvas.arrow(f"M{x - 12:g},{middle:g} H{x - 3:g}")
        canvas.arrow(f"M{start:g},{middle:g} h9")
    else:
        canvas.arrow(f"M{start:g},{middle:g} h{WIDE - 6:g}")


def _over(canvas: _Canvas, x: float, y: float, sender: int, receiver: int, ranks: int) -> None:
    step = _cell_width(ranks) + WIDE
    towards = 1 if receiver > sender else -1
    start = x + sender * step + _cell_width(ranks) / 2 + 8 * towards
    end = x + receiver * step + _cell_width(ranks) / 2 - 8 * towards
    rise = 18 * abs(receiver - sender) + 10
    foot = y + 2
    canvas.arrow(f"M{start:g},{foot:g} C{start:g},{foot - rise:g} {end:g},{foot - rise:g} {end:g},{foot:g}")


def _parts(label: int, ranks: int) -> tuple[int, Parts]:
    """The chunk of a label, and its parts."""
    chunk, of = read_label(label, ranks)
    return chunk, {(chunk, rank) for rank in of}


def _placed(values: Sequence[Sequence[int]]) -> Holding:
    """A whole tensor lies as it is, a shard in the row of its chunk; zeros are nothing."""
    ranks = len(values)
    read = [[(i, *_parts(v, ranks)) for i, v in enumerate(row) if v] for row in values]
    return [
        {i if len(row) == ranks else chunk: parts for i, chunk, parts in some}
        for row, some in zip(values, read, strict=True)
    ]


def _deliver(holding: Holding, messages: Sequence[Message], ranks: int) -> set[tuple[int, int]]:
    """Add every message to what its receiver holds; returns the (rank, row) that something came to."""
    fresh = set()
    for message in messages:
        for value in message.values:
            row, parts = _parts(value, ranks)
            held = holding[message.receiver]
            held[row] = {*held.get(row, ()), *parts}
            fresh.add((message.receiver, row))
    return fresh


def _progress(title: str, trace: Trace, after_rounds: Sequence[Holding]) -> str:
    last = after_rounds[-1]
    final = {row: max((held.get(row, ()) for held in last), key=len) for row in range(trace.ranks)}
    counts = [
        " ".join(str(sum(held.get(row) == value for row, value in final.items())) for held in holding)
        for holding in after_rounds
    ]
    return (
        f"{title} on {trace.ranks} ranks, {trace.rounds} rounds, {len(trace.messages)} messages. "
        f"Finished chunks on ranks 0 to {trace.ranks - 1} after each round: {', '.join(counts)}."
    )
