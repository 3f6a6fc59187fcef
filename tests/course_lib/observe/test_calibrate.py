"""Measuring this machine: every kind of row is there, and a simulator can make a device of them."""

import torch

from course_lib.observe import calibrate
from simulator.predict.calibration import hardware_of


def test_all_is_measured_that_a_hardware_file_needs(monkeypatch):
    monkeypatch.setattr(calibrate, "PASSES", 1)
    monkeypatch.setattr(calibrate, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(calibrate, "LONGEST", 1e-5)
    monkeypatch.setattr(calibrate, "_rank_counts", lambda device: [2])
    lines = []
    found = calibrate.measure(lines.append)
    names = {row["what"] for row in found["measured"]}
    alone = {"launch", "matmul", "memory", "attention", "attention backward", "loss"}
    assert names == alone | {"overlap", *calibrate.COLLECTIVES}
    assert all(row["seconds"] > 0 for row in found["measured"])
    assert any("GFLOP/s" in line for line in lines)
    hardware, sources = hardware_of(found, "here", "today")
    assert hardware.units == torch.get_num_threads() or torch.cuda.is_available()
    assert hardware.node.rate > 0
    assert found["device"]["name"] in sources["memory_bandwidth"]


def test_the_fastest_call_counts():
    rows = {}
    for seconds in (3.0, 1.0, 2.0):
        calibrate._keep_fastest(rows, {"what": "matmul", "ranks": 1, "size": 8.0, "seconds": seconds})
    assert [row["seconds"] for row in rows.values()] == [1.0]
