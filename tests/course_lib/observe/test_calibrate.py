"""Measuring this machine: every kind of row is there, and a simulator can make a device of them."""

import subprocess
import sys
import time

import psutil
import torch

from course_lib.observe import calibrate, neighbours
from simulator.predict.calibration import hardware_of

FEW = {"PASSES": 1, "MIN_SECONDS": 0.0, "LONGEST": 1e-5, "COLLECTIVE_BYTES": [2**12, 2**16, 2**20]}
together = calibrate._together


def few_together():
    for name, value in FEW.items():
        setattr(calibrate, name, value)
    return together()


def test_all_is_measured_that_a_hardware_file_needs(monkeypatch):
    for name, value in (FEW | {"_together": few_together}).items():
        monkeypatch.setattr(calibrate, name, value)
    monkeypatch.setattr(calibrate, "_rank_counts", lambda device: [2])
    lines = []
    found = calibrate.measure(lines.append)
    names = {row["what"] for row in found["measured"]}
    alone = {"launch", "matmul", "memory", "attention", "attention backward", "loss"}
    assert names == alone | {"overlap", *calibrate.COLLECTIVES}
    assert all(row["seconds"] > 0 for row in found["measured"])
    assert any("GFLOP/s" in line for line in lines)
    assert set(found["quiet"]) == {"others", "cores", "threads", "spread"}
    assert found["quiet"]["spread"] == 0  # of one pass
    hardware, sources = hardware_of(found, "here", "today")
    assert hardware.units == torch.get_num_threads() or torch.cuda.is_available()
    assert hardware.node.rate > 0
    assert found["device"]["name"] in sources["memory_bandwidth"]


def test_the_fastest_call_counts():
    rows = {}
    for seconds in (3.0, 1.0, 2.0):
        calibrate._keep_fastest(rows, {"what": "matmul", "ranks": 1, "size": 8.0, "seconds": seconds})
    assert [row["seconds"] for row in rows.values()] == [1.0]


def test_neighbours_are_told_from_this_process(monkeypatch):
    """In 10 seconds the processors worked for 18, and 4 of them were this process's own."""
    clocks = {"perf_counter": iter((100.0, 110.0)), "process_time": iter((5.0, 9.0))}
    busy = iter((50.0, 68.0))
    for name, times in clocks.items():
        monkeypatch.setattr(neighbours.time, name, lambda times=times: next(times))
    monkeypatch.setattr(neighbours, "_busy_seconds", lambda: next(busy))
    assert neighbours.Neighbours().cores() == (18 - 4) / 10


def test_a_process_that_works_is_a_neighbour():
    busy = "while True: pass"
    process = subprocess.Popen([sys.executable, "-c", busy])
    try:
        found = neighbours.Neighbours()
        before = psutil.Process(process.pid).cpu_times().user
        while psutil.Process(process.pid).cpu_times().user < before + 0.3:
            time.sleep(0.02)
        assert found.cores() > 0
    finally:
        process.kill()
        process.wait()
