"""Dumps of the Flight Recorder: who never came, and pickles that are read without running anything."""

import json
import os
import pickle

import pytest

from simulator.trace.files.flight_recorder import is_dump, rank_in, read_dump, stragglers


def entries(count, group=("1", "mesh_dp"), name="nccl:all_reduce"):
    return [
        {
            "record_id": n,
            "collective_seq_id": n + 1,
            "profiling_name": name,
            "time_created_ns": n,
            "process_group": group,
            "is_p2p": False,
        }
        for n in range(count)
    ]


def dumped(path, some, ranks="[0, 1, 2]"):
    dump = {"version": "2.10", "pg_config": {"1": {"desc": "mesh_dp", "ranks": ranks}}, "entries": some}
    path.write_bytes(json.dumps(dump).encode() if path.suffix == ".json" else pickle.dumps(dump))
    return path


@pytest.mark.parametrize("name", ["rank{}.json", "nccl_trace_rank_{}"])
def test_the_rank_that_never_came(tmp_path, name):
    counts = {0: 5, 1: 3, 2: 0}
    paths = [dumped(tmp_path / name.format(rank), entries(count)) for rank, count in counts.items()]
    assert all(map(is_dump, paths))
    assert stragglers([read_dump(path, 9) for path in paths]) == [
        "mesh_dp: rank 1 (at 3), rank 2 (at 0) never came to call 5, the all-reduce that rank 0 asked for"
    ]
    together = [read_dump(dumped(tmp_path / name.format(rank), entries(4)), 9) for rank in counts]
    assert stragglers(together) == []


def test_a_pickle_runs_nothing(tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    path = tmp_path / "rank0"
    path.write_bytes(pickle.dumps({"entries": [Harm()]}))
    with pytest.raises(ValueError, match="no whole dump of the Flight Recorder: it would import"):
        read_dump(path, 0)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "data", [b"\x80", b'{"entries": [', b'{"entries": [{"record_id": 0}]}', b'{"entries": 3}']
)
def test_a_broken_dump(tmp_path, data):
    path = tmp_path / "rank0"
    path.write_bytes(data)
    assert is_dump(path)
    with pytest.raises(ValueError, match="no whole dump"):
        read_dump(path, 0)


def test_a_rank_is_in_the_name():
    assert (
        rank_in("rank12.json.gz", 0)
        == rank_in("nccl_trace_rank_12", 0)
        == rank_in("t_12.flight.json", 0)
        == 12
    )
    assert rank_in("trace.json", 4) == 4
