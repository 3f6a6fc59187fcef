"""Chapter 12's copies of weights: on which ranks they are, and the runs in which they come apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from course_lib.chapters.refused import Refused
from course_lib.chapters.three_dimensions import SIZES, TIED, Weights, groups_along
from course_lib.observe.show.shown import Shown, headed
from course_lib.observe.show.tables import table

Axes = Mapping[str, Sequence[str]]  # kind of weight -> axes
# Along which axes other ranks hold copies. The biases and the positions that are not cut are as LayerNorms.
COPIES = {"matrix": ["dp"], "LayerNorm": ["tp", "dp"], "embedding": ["tp", "dp", "pp"]}


def _known(given: Axes) -> None:
    kinds, axes = set(given), {axis for listed in given.values() for axis in listed}
    for some, known in ((kinds, set(COPIES)), (axes, set(SIZES))):
        if some - known:
            raise Refused(f"{sorted(some - known)[0]!r} is none of {', '.join(map(repr, sorted(known)))}")


def runs_apart(saved: Mapping[str, list[Weights]], copies: Axes) -> dict[str, tuple[list[str], list[str]]]:
    """Along each axis: which kinds of weights were compared there, and the runs in which two copies differ.

    Args:
        saved: run -> what each rank held.
        copies: kind of weight -> the axes along which other ranks are said to hold copies of it. Where they do not,
            nothing is compared, and the kind's name says so.

    Raises:
        Refused: there is no such kind, or no such axis.
    """
    copies = {kind: [axes] if isinstance(axes, str) else axes for kind, axes in copies.items()}
    _known(copies)
    found = {}
    for axis in SIZES:
        listed = [kind for kind in copies if axis in copies[kind]]
        copied = [kind for kind in listed if axis in COPIES[kind]]
        apart = [
            run
            for run, ranks in saved.items()
            if any(not torch.equal(w, other) for w, other in _copies_along(axis, ranks, copied))
        ]
        other = "halves, not copies" if axis == "tp" else "no copies there"
        found[axis] = [kind if kind in copied else f"{kind} ({other})" for kind in listed], apart
    return found


def _copies_along(axis: str, ranks: list[Weights], kinds: Sequence[str]) -> Iterator[tuple[Tensor, Tensor]]:
    for first, *others in groups_along(axis, SIZES):
        for name, (w, cut) in ranks[first].items():
            kind = "matrix" if cut is not None else "embedding" if name in TIED else "LayerNorm"
            names = TIED if kind == "embedding" else (name,)
            copies = [ranks[other][twin][0] for other in others for twin in names if twin in ranks[other]]
            yield from ((w, copy) for copy in copies if kind in kinds)


def show_apart(saved: Mapping[str, list[Weights]], copies: Axes) -> Shown:
    """``runs_apart`` as a table, with a row for each axis, below what is to be said of these copies."""
    found = runs_apart(saved, copies)
    rows = [
        [
            f"along {axis}",
            ", ".join(kinds) or "nothing",
            ", ".join(apart) or ("none" if set(kinds) & set(COPIES) else "?"),
        ]
        for axis, (kinds, apart) in found.items()
    ]
    shown = table(["", "you compare", "runs whose copies come apart"], rows)
    said = [kind for kinds, _ in found.values() for kind in kinds]
    lacks = [a for a, (kinds, _) in found.items() if any(a in COPIES[k] and k not in kinds for k in COPIES)]
    if not said:
        return shown
    sentences = [f"There are more copies along {' and '.join(lacks)}."] if lacks else []
    if "matrix (halves, not copies)" in said:
        sentences += ["In one run, though, both halves of each matrix are equal: which bug is that?"]
    return headed(" ".join(sentences) or "These are all the copies.", shown)
