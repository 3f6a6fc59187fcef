"""Which stages of the model each pipeline rank holds, and how many: what a schedule's name already decides."""

from __future__ import annotations

from simulator.inputs.checks import at_least, index, one_of

# Chunks of the model on a rank. "interleaved-1f1b" takes any number of them, 2 if the caller does not say.
CHUNKS = {
    "fill-drain": 1,
    "gpipe": 1,
    "1f1b": 1,
    "interleaved-1f1b": 2,
    "zb-h1": 1,
    "zb-h2": 1,
    "zb-v": 2,
    "dualpipe-v": 2,
}
FOLDED = ("zb-v", "dualpipe-v")


def chunks_of(name: str, v: int | None = None) -> int:
    """The chunks that each rank holds under the schedule of that name.

    Raises:
        ValueError: the schedule is unknown, or cannot have ``v`` chunks.
    """
    one_of("schedule", name, CHUNKS)
    if v is not None:
        at_least(1, chunks=v)
    only = CHUNKS[name]
    if v is None or v == only:
        return only
    if name == "interleaved-1f1b":
        return v
    if name in FOLDED:
        raise ValueError(f"{name} takes exactly 2 chunks a rank, one for each side of the V, not {v}")
    raise ValueError(
        f"{name} has {only} chunk a rank, not {v}: for more take interleaved-1f1b, zb-v or dualpipe-v"
    )


def placement_of(name: str) -> str:
    """``"loop"`` or ``"v"``: see ``rank_of``."""
    return "v" if name in FOLDED else "loop"


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
