"""Several modules in a row that are alike, drawn once: ``layer.0 to layer.11`` instead of twelve boxes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby, pairwise

from course_lib.observe.networks.render import Box, Frame

AT_LEAST = 3  # two alike are drawn both
Edges = dict[tuple[object, object], None]
Run = dict[
    object, tuple[object, int]
]  # a box in a run of alike modules -> (the box that stands for it, which copy)


def fold_repeats(frame: Frame, edges: Edges) -> Edges:
    """Keep the first of each run of at least three neighbours that are alike, and say how many there are.

    Two neighbours are alike if they have the same classes, shapes, sizes and holders, and differ in a number in
    their names only. ``frame`` is changed in place.

    Returns:
        The edges of what is left: those to and from a module that is left out end at the one that stands for it.
    """
    runs: list[Run] = []
    _fold(frame, runs)

    def end(key: object) -> tuple[object, dict[int, int]]:
        """The box that stands for ``key``, and which copy ``key`` was in: {run: number of the copy}."""
        copies = {}
        for number, run in enumerate(runs):
            if key in run:
                key, copies[number] = run[key]
        return key, copies

    folded: Edges = {}
    for tail, head in edges:
        (a, a_copies), (b, b_copies) = end(tail), end(head)
        # An arrow from one copy to the next would lead back into the same picture.
        between_copies = any(a_copies[run] != b_copies[run] for run in a_copies.keys() & b_copies.keys())
        if not between_copies and a is not b:
            folded[a, b] = None
    return folded


def _fold(frame: Frame, runs: list[Run]) -> None:
    """Fold the inside of ``frame``, innermost frames first, and append each run to ``runs``."""
    for item in frame.inside:
        if isinstance(item, Frame):
            _fold(item, runs)
    inside: list[Box | Frame] = []
    for _, group in groupby(_numbered(frame.inside), key=lambda pair: pair[0]):
        alike = [item for _, item in group]
        if len(alike) < AT_LEAST or not _name(alike[0]):
            inside += alike
            continue
        run: Run = {}
        for copy, item in enumerate(alike):
            pairs = zip(_boxes(item), _boxes(alike[0]), strict=True)
            run.update({box.key: (kept.key, copy) for box, kept in pairs})
        runs.append(run)
        inside.append(_titled(alike))
    frame.inside = inside


def _numbered(items: Iterable[Box | Frame]) -> Iterator[tuple[object, Box | Frame]]:
    """Each item with a key that is equal for neighbours that are alike and numbered one after the other."""
    items = list(items)
    run = 0
    for before, item in pairwise([None, *items]):
        alike = before is not None and _signature(before) == _signature(item) and _follows(before, item)
        run += not alike
        yield run, item


def _signature(item: Box | Frame) -> tuple:
    name = re.sub(r"\d+", "#", _name(item))
    if isinstance(item, Box):
        return name, item.lines, item.colours, item.is_function
    # Inside, names have to agree to the letter.
    return name, tuple((box.name, box.lines, box.colours, box.is_function) for box in item.boxes())


def _follows(before: Box | Frame, after: Box | Frame) -> bool:
    numbers = [[int(n) for n in re.findall(r"\d+", _name(item))] for item in (before, after)]
    return bool(numbers[0]) and numbers[1] == [*numbers[0][:-1], numbers[0][-1] + 1]


def _name(item: Box | Frame) -> str:
    """A function has no number of its own, so several in a row are never folded."""
    if isinstance(item, Box):
        return "" if item.is_function else item.name
    return item.title


def _boxes(item: Box | Frame) -> Iterator[Box]:
    return iter([item]) if isinstance(item, Box) else item.boxes()


def _titled(run: list[Box | Frame]) -> Box | Frame:
    first, last = run[0], run[-1]
    count = f"{len(run)} ×"
    if isinstance(first, Box):
        return replace(first, name=f"{first.name} to {last.name}", lines=(f"{count}, each:", *first.lines))
    (name, _, kind), (end, *_) = first.title.partition(" · "), last.title.partition(" · ")
    return Frame(f"{name} to {end} · {count} {kind}", first.inside)
