"""Which stages of the model each pipeline rank holds, and how many: what a schedule's name already decides."""

from __future__ import annotations

from typing import NamedTuple

from simulator.inputs.checks import at_least, index, one_of


class Form(NamedTuple):
    """What a schedule's name decides: the chunks of the model on a rank, and where its stages lie (``rank_of``)."""

    chunks: int
    placement: str = "loop"


# Every schedule there is; the explorer's page reads the same table (``simulator.explorer.bundle``).
SCHEDULES = {
    "one-at-a-time": Form(1),
    "gpipe": Form(1),
    "1f1b": Form(1),
    "interleaved-1f1b": Form(2),  # if the caller does not say: it takes any number
    "zb-h1": Form(1),
    "zb-h2": Form(1),
    "zb-v": Form(2, "v"),
    "dualpipe-v": Form(2, "v"),
}


def chunks_of(name: str, v: int | None = None) -> int:
    """The chunks that each rank holds under the schedule of that name.

    Raises:
        ValueError: the schedule is unknown, or cannot have ``v`` chunks.
    """
    one_of("schedule", name, SCHEDULES)
    if v is not None:
        at_least(1, chunks=v)
    only = SCHEDULES[name].chunks
    if v is None or v == only:
        return only
    if name == "interleaved-1f1b":
        return v
    if placement_of(name) == "v":
        raise ValueError(f"{name} takes exactly 2 chunks a rank, one for each side of the V, not {v}")
    raise ValueError(
        f"{name} has {only} chunk a rank, not {v}: for more take interleaved-1f1b, zb-v or dualpipe-v"
    )


def placement_of(name: str) -> str:
    """``"loop"`` or ``"v"``: see ``rank_of``."""
    return SCHEDULES[name].placement


def rank_of(stage: int, ranks: int, placement: str) -> int:
    """The pipeline rank that holds ``stage``.

    ``"loop"``: stage s lives on rank s mod p. ``"v"``: down the ranks and back up again, so that with two chunks
    rank r holds stages r and 2p - 1 - r, and rank 0 the first and the last.

    >>> [rank_of(stage, 2, "loop") for stage in range(4)], [rank_of(stage, 2, "v") for stage in range(4)]
    ([0, 1, 0, 1], [0, 1, 1, 0])
    """
    at_least(1, ranks=ranks)
    at_least(0, stage=stage)
    one_of("placement", placement, ("loop", "v"))
    lap, place = divmod(stage, ranks)
    return ranks - 1 - place if placement == "v" and lap % 2 else place


def stages_of(rank: int, ranks: int, chunks: int, placement: str) -> list[int]:
    """The stages that this rank holds, in the model's order: the inverse of ``rank_of``.

    >>> stages_of(0, 2, 2, "loop"), stages_of(0, 2, 2, "v")
    ([0, 2], [0, 3])
    """
    at_least(1, ranks=ranks, chunks=chunks)
    index(ranks, rank=rank)
    one_of("placement", placement, ("loop", "v"))
    back = ranks - 1 - rank if placement == "v" else rank
    return [lap * ranks + (back if lap % 2 else rank) for lap in range(chunks)]
