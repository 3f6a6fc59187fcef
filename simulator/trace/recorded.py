"""The files of one run, told apart: traces of PyTorch's profiler and dumps of its Flight Recorder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.trace.files.flight_recorder import Recorded, is_dump, rank_in, read_dump
from simulator.trace.files.rank import RankTrace, read_rank


def read_files(files: Sequence[Path]) -> tuple[list[RankTrace], list[Recorded]]:
    """What the files hold, traces and dumps. A rank's dump says which group each collective of its trace serves.

    Raises:
        ValueError: a file is neither, or breaks off.
    """
    dumps = {d.rank: d for i, path in enumerate(filter(is_dump, files)) for d in [read_dump(path, i)]}
    traces = []
    for i, path in enumerate(path for path in files if not is_dump(path)):
        dump = dumps.get(rank_in(path.name, i))
        traces.append(read_rank(path, rank_in(path.name, i), dump.issued() if dump else ()))
    return traces, list(dumps.values())
