"""Constants from measurements: what the model would predict for a device leads back to that device."""

import pytest

from simulator.inputs.hardware import Hardware, Link
from simulator.inputs.hardware_file import read_hardware, write_hardware
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.predict.calibration import ASSUMED, busy_machine, hardware_of
from simulator.predict.kernel_time import flash_seconds, matmul_seconds, memory_seconds
from simulator.predict.layer_time import LOSS_BYTES
from simulator.predict.step import step_cost

LINK = Link(2e-5, 1.5e9)
DEVICE = Hardware(
    "made up",
    peak_flops=4e11,
    memory=16e9,
    memory_bandwidth=2e10,
    node=LINK,
    network=LINK,
    units=2,
    matmul_sizes=((1e6, 0.25), (1e9, 1.0)),
    memory_sizes=((1e5, 0.5), (1e8, 1.0)),
    memory_efficiency=1.0,
    flash_forward=0.2,
    flash_backward=0.1,
    loss_efficiency=0.3,
    launch=2e-6,
    attention="flash",
    overlap=0.25,
)


def row(what, size, seconds, ranks=1, **more):
    return {"what": what, "ranks": ranks, "size": size, "seconds": seconds} | more


def measurements(collectives=True, **device):
    """What a machine would measure that behaves exactly as the model says ``DEVICE`` does, in fp32."""
    rows = [row("launch", 0, DEVICE.launch)]
    for n in (80, 200, 500, 800):
        rows.append(row("matmul", 2.0 * n**3, matmul_seconds(n, n, n, DEVICE, itemsize=4)))
    rows += [row("memory", size, memory_seconds(size, DEVICE)) for size in (1e5, 1e6, 1e7, 1e8)]
    ahead, back = flash_seconds(12, 1024, 1024, 64, DEVICE)
    rows.append(row("attention", 1.6e9, ahead, heads=12, queries=1024, keys=1024, width=64))
    rows.append(row("attention backward", 4e9, back))
    rows.append(row("loss", 4e6, memory_seconds(LOSS_BYTES["unfused"] * 1e6, DEVICE) / 0.3))
    if collectives:
        for ranks in (2, 4):
            for size in (1e4, 1e6, 1e8):
                for what, ways in (("all-reduce", 2), ("all-gather", 1)):
                    steps = ways * (ranks - 1)
                    rows.append(row(what, size, LINK.seconds(steps * size / ranks, steps), ranks))
            rows.append(row("overlap", 0.25, 0.1, ranks))
    known = {"kind": "cpu", "name": "made up", "memory": 16e9, "units": 2, "count": 2}
    return {"device": known | device, "itemsize": 4, "measured": rows}


def test_a_device_is_found_again_by_what_it_measures(tmp_path):
    found, sources = hardware_of(measurements(), "made up", "2026-11-21")
    assert found.peak_flops == pytest.approx(DEVICE.peak_flops, rel=0.01)
    assert found.memory_bandwidth == pytest.approx(DEVICE.memory_bandwidth, rel=0.01)
    assert found.node.latency == pytest.approx(LINK.latency, rel=0.01)
    assert found.node.rate == pytest.approx(LINK.rate, rel=0.01)
    for name in ("flash_forward", "flash_backward", "loss_efficiency", "launch", "overlap"):
        assert getattr(found, name) == pytest.approx(getattr(DEVICE, name), rel=0.01), name
    plan = Plan(dp=4, precision="fp32")
    ours, theirs = (step_cost(MODELS["gpt2"], plan, device).seconds for device in (found, DEVICE))
    assert ours == pytest.approx(theirs, rel=0.03)
    write_hardware(tmp_path / "it.toml", found, sources)
    assert read_hardware(tmp_path / "it.toml") == found
    assert "2026-11-21" in (tmp_path / "it.toml").read_text()


def test_one_device_alone_says_that_its_link_is_assumed():
    found, sources = hardware_of(measurements(collectives=False, kind="cuda", count=1), "one", "today")
    assert found.node == ASSUMED
    assert sources["node"].startswith("assumed")


def test_a_known_gpu_keeps_the_peak_that_its_maker_prints():
    found, sources = hardware_of(measurements(kind="cuda", name="NVIDIA H100 80GB HBM3"), "it", "today")
    assert found.peak_flops == GPUS["h100"].peak_flops
    assert sources["peak_flops"] == "as in h100"
    assert found.matmul_sizes[-1][1] == pytest.approx(DEVICE.peak_flops / GPUS["h100"].peak_flops, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "busy"),
    [
        ({}, False),
        ({"others": 0.2}, False),  # a little is always there
        ({"others": 1.2}, True),
        ({"others": 1.5, "threads": 1}, True),
        ({"others": 30.0, "cores": 64}, False),  # there are enough processors for both
        ({"spread": 0.2}, False),
        ({"spread": 0.3}, True),
    ],
)
def test_a_busy_machine_is_noticed(changes, busy):
    quiet = {"others": 0.0, "cores": 2, "threads": 2, "spread": 0.0} | changes
    assert bool(busy_machine({"quiet": quiet})) == busy
