"""Chapter 16's memory in blocks, drawn: which sequence has which slots, and what a reader's own lines do to tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from course_lib.attention.engine import Request
from course_lib.by_hand.paged_attention import Contiguous, Gathered, Table, generate
from course_lib.chapters.refused import Refused
from simulator.plots.picture import Picture, render
from simulator.plots.style import PARTS, TEXT, TITLE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS, SHARED, WRONG, EMPTY = (PARTS[0], PARTS[1], PARTS[3], PARTS[5]), "#777777", "#e02020", "#ececec"
SIZE, ROW = Gathered.size, 8  # slots in a block; blocks beside each other
Slot = Callable[[Sequence[int], int], int]
Before = Callable[[Gathered, Table], None]


def plot_tables(panels: Mapping[str, Mapping[str, Table]], blocks: int) -> Picture:
    """A panel for each state of a memory of so many blocks: its slots, coloured by the sequence whose token they hold.

    What several sequences hold is grey, and the letters in a block name all that list it.
    """
    states, said = {}, []
    for title, tables in panels.items():
        states[title] = _held(tables, blocks)
        lists = "; ".join(f"{name} lists {', '.join(map(str, one.blocks))}" for name, one in tables.items())
        said.append(f"{title}: {lists}." if title else f"{lists}.")
    return _plot(states, blocks, " ".join(said))


def judge_slot(slot: Slot, model: nn.Module, prompts: Sequence[list[int]], new_tokens: int = 28) -> Picture:
    """A model answers prompts, and a reader's ``slot(blocks, token)`` says where each token's key and value lie.

    Drawn is where they lie at the end, red where a token is not in its own place; once all are, the title
    counts the answers that are those of a cache in which each sequence is in one piece.

    Raises:
        Refused: it gives no slot.
    """

    class Placed(Gathered):
        def extend(self, tokens: Tensor) -> Tensor:
            positions = super().extend(tokens)
            most = max(one.length for one in self.tables)
            rows = [
                [_asked(slot, one, token) if token < one.length else 0 for token in range(most)]
                for one in self.tables
            ]
            self.slots = torch.tensor(rows)
            return positions

        def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            at = self.slots.gather(1, self.positions)
            for kept, new in zip(self.kv[layer], (k, v), strict=True):
                kept.flatten(0, 1)[at] = new.transpose(1, 2)
            k, v = (kept.flatten(0, 1)[self.slots].transpose(1, 2) for kept in self.kv[layer])
            return self.scores(q, k, 0).softmax(-1) @ v

    answer: Any = generate
    _, cache = answer(model, prompts, 1, new_tokens, kind=Gathered)
    slots: dict[int, str] = {}
    beyond: list[tuple[int, int, int]] = []
    for one, colour in zip(cache.tables, COLOURS, strict=False):
        for token in range(one.length):
            right = one.blocks[token // SIZE] * SIZE + token % SIZE
            given = _asked(slot, one, token)
            if given >= len(cache.users) * SIZE:
                beyond.append((token, given, right // SIZE))
            else:
                slots[given] = colour if given == right and given not in slots else WRONG
    names = [chr(ord("A") + i) for i in range(len(prompts))]
    users = {
        block: " ".join(n for n, one in zip(names, cache.tables, strict=True) if block in one.blocks)
        for block in range(len(cache.users))
    }
    tokens = sum(one.length for one in cache.tables)
    right = sum(colour != WRONG for colour in slots.values())
    title = f"{right} of {tokens} tokens in their places"
    if beyond:
        token, given, block = beyond[0]
        first = block * SIZE
        title += f"; token {token} gets slot {given}, but its block {block} has {first} to {first + SIZE - 1}"
    elif right == tokens:
        found, _ = answer(model, prompts, 1, new_tokens, kind=Placed)
        expected, _ = answer(model, prompts, 1, new_tokens, kind=Contiguous)
        same = sum(map(torch.equal, found, expected))
        title += f", {same} of {len(prompts)} answers right"
    return _plot({title: (slots, users)}, len(cache.users), title + ".")


def judge_copies(
    before_writing: Before, model: nn.Module, prompt: list[int], samples: int = 3, new_tokens: int = 24
) -> Picture:
    """Answers to one prompt share its blocks, and a reader's ``before_writing(cache, table)`` runs before a sequence
    writes into a block that it has already.

    Drawn are the blocks at the end, red where several answers wrote into one slot; the title counts the characters
    that are not those of answers written alone, and the blocks that were taken.

    Raises:
        Refused: the blocks run out, or a table lists what is no block.
    """

    class Mine(Gathered):
        def grow(self, table: Table, tokens: int) -> None:
            if table.length % self.places:
                try:
                    before_writing(self, table)
                except MemoryError:
                    raise
                except Exception as error:
                    raise Refused(f"before_writing stops with {type(error).__name__}: {error}") from None
                last = table.blocks[-1] if table.blocks else None
                if last not in range(len(self.users)):
                    raise Refused(f"the table's last entry is {last!r}, which is no block")
            Contiguous.grow(self, table, tokens)

    answer: Any = generate
    try:
        found, cache = answer(model, [prompt], samples, new_tokens, kind=Mine)
    except MemoryError as error:
        raise Refused(f"{error}: each copy took a block, and none was given back") from None
    expected, _ = answer(model, [prompt], samples, new_tokens, kind=Contiguous)
    names = [chr(ord("A") + i) for i in range(samples)]
    tables = dict(zip(names, cache.tables, strict=True))
    slots, users = _held(tables, len(cache.users))
    for one in cache.tables:
        for token in range(len(prompt), one.length):
            at = one.blocks[token // SIZE] * SIZE + token % SIZE
            if slots[at] == SHARED:
                slots[at] = WRONG
    wrong = int((found != expected).sum())
    title = f"{wrong} of {found.numel()} characters are wrong, {cache.most} blocks taken"
    if cache.most > (end := sum(map(bool, cache.users))):
        title += f" at one time, {end} in the end"
    if red := list(slots.values()).count(WRONG):
        title = f"{red} slots are red, {title}"
    if lost := sum(bool(cache.users[block]) and not users[block] for block in users):
        title += f", {lost} in `users`, listed by nobody"
    elif miscounted := sum(cache.users[block] != len(names.split()) for block, names in users.items()):
        title += f", {miscounted} counted wrongly in `users`"
    return _plot({title: (slots, users)}, len(cache.users), title + ".")


def _held(tables: Mapping[str, Table], blocks: int) -> tuple[dict[int, str], dict[int, str]]:
    """The colour of each slot that holds a token, and the names of all that list a block."""
    held: dict[int, list[str]] = {}
    for name, one in tables.items():
        for token in range(one.length):
            held.setdefault(one.blocks[token // SIZE] * SIZE + token % SIZE, []).append(name)
    colour = dict(zip(tables, COLOURS, strict=False))
    slots = {slot: colour[names[0]] if len(names) == 1 else SHARED for slot, names in held.items()}
    users = {
        block: " ".join(name for name, one in tables.items() if block in one.blocks)
        for block in range(blocks)
    }
    return slots, users


def _asked(slot: Slot, table: Table, token: int) -> int:
    """The reader's slot of a token, which may lie beyond the memory."""
    try:
        given = slot(list(table.blocks), token)
    except Exception as error:
        raise Refused(
            f"token {token} of the blocks {table.blocks}: {type(error).__name__}: {error}"
        ) from None
    try:
        if index(given) >= 0:
            return index(given)
    except TypeError:
        pass
    raise Refused(
        f"token {token} of the blocks {table.blocks} lies in slot {given!r}; give a whole number, 0 or more"
    )


def as_requests(texts: Sequence[tuple[str, int]], most: int) -> list[Request]:
    """A reader's texts, each with the bytes to write after it.

    Raises:
        Refused: there is no text, or one of them is empty, asks for nothing, or has no place in ``most`` bytes.
    """
    requests = [Request(list(text.encode()), new) for text, new in texts]
    for number, one in enumerate(requests):
        if not one.prompt or one.new_tokens < 1:
            raise Refused(f"text {number} needs a letter or more, and a byte or more to write")
        if (both := len(one.prompt) + one.new_tokens) > most:
            asked = f"text {number} has {len(one.prompt)} bytes and asks for {one.new_tokens}"
            raise Refused(f"{asked}: {both} together, more than {most}")
    if not requests:
        raise Refused("there is no text; give one or more")
    return requests


def _plot(
    panels: Mapping[str, tuple[Mapping[int, str], Mapping[int, str]]], blocks: int, alt: str
) -> Picture:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = -(-blocks // ROW)
    figure = Figure(
        figsize=(WIDTH, 0.25 + len(panels) * (0.5 * rows + 0.2 * any(panels))), layout="constrained"
    )
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, (title, (slots, users)) in zip(axes, panels.items(), strict=True):
        axis.set_title(title, loc="left", fontsize=TITLE)
        for block in range(blocks):
            _draw(axis, block, slots, users[block])
        axis.set(xlim=(-0.1, min(blocks, ROW) * (SIZE + 1)), ylim=(-rows * 2.4 + 1.1, 1.0))
        axis.axis("off")
    looks = {SHARED: "shared", WRONG: "wrong", EMPTY: "in a block, empty"}
    drawn = {colour for slots, _ in panels.values() for colour in (*slots.values(), EMPTY)}
    keys = [Patch(color=colour, label=name) for colour, name in looks.items() if colour in drawn]
    figure.legend(
        handles=keys, loc="outside lower right", ncols=3, fontsize=TEXT, frameon=False, handlelength=1.2
    )
    return render(figure, alt)


def _draw(axis: Axes, block: int, slots: Mapping[int, str], users: str) -> None:
    from matplotlib.patches import Rectangle

    row, column = divmod(block, ROW)
    left, low = column * (SIZE + 1), -2.4 * row
    for place in range(SIZE):
        colour = slots.get(block * SIZE + place, EMPTY if users else "white")
        axis.add_patch(
            Rectangle((left + place, low), 1, 0.9, facecolor=colour, edgecolor="white", linewidth=0.7)
        )
    axis.add_patch(Rectangle((left, low), SIZE, 0.9, fill=False, edgecolor="#999999", linewidth=0.8))
    axis.text(left, low - 0.2, f"{block}", fontsize=TEXT, va="top", color="#666666")
    axis.text(left + SIZE / 2, low - 0.15, users, fontsize=TEXT, va="top", ha="center")
