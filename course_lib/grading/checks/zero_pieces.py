"""Exercise 06.1: the right pieces, likely mistakes as programs, and what no program explains told as what it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from course_lib.grading.report import Report
from simulator.inputs.chunks import chunk_sizes

Pieces = list[list[tuple[int, int, int]]]


def cut(
    sizes: Sequence[int],
    lengths: Sequence[int],
    past: int = 0,
    from_buffer: bool = False,
    third_is_length: bool = False,
) -> Pieces:
    """Shards of these lengths, one after the other. As it stands, it is right for equal lengths.

    Args:
        past: added to where a shard ends.
        from_buffer: count from the beginning of the buffer, and not of the tensor.
        third_is_length: the third number of a piece is how many elements it has.
    """
    owned: Pieces = []
    begin = 0
    for length in lengths:
        mine, place = [], 0
        for index, size in enumerate(sizes):
            start, stop = max(begin, place), min(begin + length + past, place + size)
            if start < stop:
                shift = 0 if from_buffer else place
                mine.append((index, start - shift, stop - (start if third_is_length else shift)))
            place += size
        owned.append(mine)
        begin += length
    return owned


def right_pieces(sizes: Sequence[int], ranks: int) -> Pieces:
    return cut(sizes, [-(-sum(sizes) // ranks)] * ranks)


def _each_tensor(sizes: Sequence[int], ranks: int) -> Pieces:
    owned: Pieces = [[] for _ in range(ranks)]
    for index, size in enumerate(sizes):
        length = -(-size // ranks)
        for rank in range(ranks):
            if rank * length < min(size, (rank + 1) * length):
                owned[rank].append((index, rank * length, min(size, (rank + 1) * length)))
    return owned


def _whole_tensors(sizes: Sequence[int], ranks: int) -> Pieces:
    owned: Pieces = [[] for _ in range(ranks)]
    for index, size in enumerate(sizes):
        if size:
            owned[index % ranks].append((index, 0, size))
    return owned


def _last_takes_the_rest(sizes: Sequence[int], ranks: int) -> Pieces:
    total = sum(sizes)
    short = total // ranks
    return cut(sizes, [short] * (ranks - 1) + [total - short * (ranks - 1)])


PIECES: dict[str, Callable[[Sequence[int], int], Pieces]] = {
    "when the length of a shard is rounded down, so that the last elements have no owner": (
        lambda sizes, ranks: cut(sizes, [sum(sizes) // ranks] * ranks)
    ),
    "when the length of a shard is rounded down and the last rank takes the rest": _last_takes_the_rest,
    "when the length of a shard is the division plus one, also where it divides evenly": (
        lambda sizes, ranks: cut(sizes, [sum(sizes) // ranks + 1] * ranks)
    ),
    "when the first ranks take one element more and the shards are not equally long": (
        lambda sizes, ranks: cut(sizes, chunk_sizes(sum(sizes), ranks))
    ),
    "when every tensor is cut by itself, and not the buffer": _each_tensor,
    "when whole tensors are dealt out": _whole_tensors,
    "when pieces are counted from the beginning of the buffer, and not of their tensor": (
        lambda sizes, ranks: cut(sizes, [-(-sum(sizes) // ranks)] * ranks, from_buffer=True)
    ),
    "when the third number of a piece is its length, and not its stop": (
        lambda sizes, ranks: cut(sizes, [-(-sum(sizes) // ranks)] * ranks, third_is_length=True)
    ),
    "when the element at `stop` is included": (
        lambda sizes, ranks: cut(sizes, [-(-sum(sizes) // ranks)] * ranks, past=1)
    ),
    "when `stop` is the last element of the piece, and not the one behind it": (
        lambda sizes, ranks: cut(sizes, [-(-sum(sizes) // ranks)] * ranks, past=-1)
    ),
}


def as_pieces(report: Report, got: Any, task: str) -> Pieces:
    """The answer in plain lists, tuples and ints, whatever sequences and numbers it used."""
    try:
        return [[tuple(int(n) for n in (i, start, stop)) for i, start, stop in own] for own in got]
    except (TypeError, ValueError):
        return report.fail(f"the result is {got!r:.80}, not a list of lists of three numbers", task=task)


def check_lengths(report: Report, owned: Pieces, sizes: list[int], ranks: int) -> None:
    """What cannot be in any answer, told as what it is: a piece or a shard of a wrong length."""
    length = -(-sum(sizes) // ranks)
    for rank, own in enumerate(owned):
        held = sum(max(0, stop - start) for _, start, stop in own)
        if held > length:
            rest = [
                i
                for i, start, stop in own
                if 0 <= i < len(sizes) and 0 < start < stop - length and stop == sizes[i]
            ]
            report.fail(
                f"rank {rank} has {own}: {held} elements, and a shard of {sum(sizes)} elements on {ranks} ranks has "
                f"{length}",
                likely=f"all that is left of tensor {rest[0]} is put on this rank, and it is more than one shard"
                if rest
                else None,
                task="`ranks` ranks (1 or more) get equally long shards of it, as short as possible",
            )
        if empty := next((piece for piece in own if piece[1] >= piece[2]), None):
            report.fail(
                f"rank {rank} has the piece {empty}, in which `stop` is not above `start`",
                task="Pieces are never empty, and padding is in no piece",
            )


def merged(own: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Pieces that continue each other as one: right, though not what the target asks for."""
    found: list[tuple[int, int, int]] = []
    for index, start, stop in own:
        if found and found[-1][0] == index and found[-1][2] == start < stop:
            found[-1] = (index, found[-1][1], stop)
        else:
            found.append((index, start, stop))
    return found
