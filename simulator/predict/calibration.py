"""From measurements to ``Hardware``: the constants with which the predictions of kernels become what was measured.

The measurements are those of ``course_lib.observe.calibrate``, as plain data, so that the simulator needs no PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simulator.inputs.checks import at_least, not_negative, positive
from simulator.inputs.hardware import Hardware, Link
from simulator.inputs.known_devices import GPUS
from simulator.predict.kernel_time import flash_seconds, memory_seconds
from simulator.predict.layer_time import LOSS_BYTES

COLLECTIVES = {
    "all-reduce": 2,
    "all-gather": 1,
    "reduce-scatter": 1,
    "all-to-all": 1,
}  # times p - 1: messages
# A link that could not be measured, since there is only one device: PCIe 4.0 x16, in one direction.
ASSUMED = Link(5e-6, 32e9, 0.8)
CPU_NODE = 8  # processes of one machine are one node, however few cores they share
# A quiet machine: others take this much of a processor from the measured threads at most, and what is measured again
# takes at most this part longer.
QUIET_OTHERS, QUIET_SPREAD = 0.3, 0.25
Row = dict[str, Any]  # what, ranks, size, seconds


def hardware_of(measurements: dict[str, Any], name: str, date: str) -> tuple[Hardware, dict[str, str]]:
    """The device, and where each of its numbers comes from, by field, as ``write_hardware`` takes them.

    Args:
        measurements: ``device``, ``itemsize`` (bytes of a number in the products) and the rows ``measured``, each of
            what, ranks, size and seconds.
        name: what the device is to be called.
        date: when it was measured.
    """
    device, rows = measurements["device"], measurements["measured"]
    _check(measurements)
    measured = f"measured by python -m simulator calibrate on {date}: {device['name']}"
    known = _known(device["name"]) if device["kind"] == "cuda" else None
    launch = _digits(_row(rows, "launch")["seconds"])
    # The peak is of 16 bits; products of 32-bit numbers run at half of it, by the simulator's rule.
    scale = 2 / max(measurements["itemsize"], 2)
    products = [(row["size"], row["size"] / _without(launch, row)) for row in rows if row["what"] == "matmul"]
    best = max(rate for _, rate in products) / scale
    peak = max(known.peak_flops, best) if known else _digits(best)
    kernels = [(row["size"], row["size"] / row["seconds"]) for row in rows if row["what"] == "memory"]
    bandwidth = _digits(max(rate for _, rate in kernels))
    node, how = _link(rows)
    found = Hardware(
        name,
        peak,
        float(device["memory"]),
        bandwidth,
        node,
        node,
        node_size=max(device["count"], CPU_NODE if device["kind"] == "cpu" else 1),
        units=device["units"],
        matmul_sizes=_parts(products, peak * scale),
        memory_sizes=_parts(kernels, bandwidth),
        memory_efficiency=_parts(kernels, bandwidth)[-1][1],
        flash_forward=1.0,
        flash_backward=1.0,
        launch=launch,
        attention="flash",
        overlap=_overlap(rows),
    )
    found = replace(found, **_attention(rows, found), loss_efficiency=_loss(rows, found))
    fields = (
        *("peak_flops", "memory_bandwidth", "matmul_sizes", "memory_sizes", "memory_efficiency", "launch"),
        *("flash_forward", "flash_backward", "loss_efficiency", "overlap"),
    )
    told = f"as the system says on {date}"
    sources = dict.fromkeys(fields, measured) | dict.fromkeys(("units", "memory", "node_size"), told)
    sources["node"] = how or measured
    sources["network"] = f"not measured: as fast as the node ({sources['node']})"
    if known:
        sources["peak_flops"] = f"as in {known.name}"
    return found, sources


def busy_machine(measurements: dict[str, Any]) -> str | None:
    """One sentence that says the machine was busy while it was measured; None: it was quiet.

    Busy means that other programs needed processors which the measured threads wanted, or that repeated measurements
    differ, which also shows a processor that slows down when it is warm. A busy machine looks slower than it is.
    """
    quiet = measurements["quiet"]
    free = quiet["cores"] - quiet["others"]
    crowded, uneven = free < quiet["threads"] - QUIET_OTHERS, quiet["spread"] > QUIET_SPREAD
    if not (crowded or uneven):
        return None
    return (
        f"this machine was busy: other programs kept {quiet['others']:.1f} of its {quiet['cores']} processors at work, "
        f"and repeated measurements differed by {quiet['spread']:.0%} (up to {QUIET_SPREAD:.0%} is usual), so that it "
        "is faster than these figures say"
    )


def _check(measurements: dict[str, Any]) -> None:
    device = measurements["device"]
    positive(memory=device["memory"])
    at_least(1, units=device["units"], count=device["count"], itemsize=measurements["itemsize"])
    for row in measurements["measured"]:
        at_least(1, ranks=row["ranks"])
        positive(**{f"seconds of {row['what']}": row["seconds"]})
        not_negative(**{f"size of {row['what']}": row["size"]})


def _known(name: str) -> Hardware | None:
    """The preset that a GPU's name belongs to, for the maker's peak, which no measurement shows."""
    for known in ("h200", "h100", "b200", "v100"):
        if known in name.lower():
            return GPUS[known]
    return GPUS["a100-80gb"] if "a100" in name.lower() else None


def _row(rows: Sequence[Row], what: str) -> Row:
    return next(row for row in rows if row["what"] == what)


def _without(launch: float, row: Row) -> float:
    """What the kernel itself takes; of one that takes hardly longer than its start, a tenth."""
    return max(row["seconds"] - launch, 0.1 * row["seconds"])


def _parts(points: Sequence[tuple[float, float]], best: float) -> tuple[tuple[float, float], ...]:
    """(size, part of the best rate), sizes ascending."""
    return tuple((size, _part(rate / best)) for size, rate in sorted(points))


def _part(value: float) -> float:
    """A part as ``Hardware`` takes it: more than 0 and at most 1."""
    return min(1.0, max(1e-6, _digits(value)))


def _digits(value: float) -> float:
    """Three digits, which is all that was measured."""
    return float(f"{value:.3g}")


def _attention(rows: Sequence[Row], hardware: Hardware) -> dict[str, float]:
    """What the model would take at the full peak, as a part of what was measured."""
    forward, backward = _row(rows, "attention"), _row(rows, "attention backward")
    heads, queries, keys, width = (forward[name] for name in ("heads", "queries", "keys", "width"))
    ideal = [seconds - hardware.launch for seconds in flash_seconds(heads, queries, keys, width, hardware)]
    return {
        "flash_forward": _part(ideal[0] / _without(hardware.launch, forward)),
        "flash_backward": _part(ideal[1] / _without(hardware.launch, backward)),
    }


def _loss(rows: Sequence[Row], hardware: Hardware) -> float:
    """What the loss's bytes would take as those of an elementwise kernel, as a part of what was measured."""
    row = _row(rows, "loss")
    moved = LOSS_BYTES["unfused"] * row["size"] / 4  # fp32 logits
    return _part(hardware.memory_efficiency * memory_seconds(moved, hardware) / row["seconds"])


def _overlap(rows: Sequence[Row]) -> float:
    """The mean over the rank counts; half where there is only one device."""
    found = [row["size"] for row in rows if row["what"] == "overlap"]
    return max(0.01, _part(sum(found) / len(found))) if found else 0.5


def _link(rows: Sequence[Row]) -> tuple[Link, str | None]:
    """The latency and rate that fit all collectives of all sizes and rank counts best, by relative error.

    A ring takes k messages of n / p bytes: k (latency + n / p / rate) seconds.
    """
    points = [
        (COLLECTIVES[row["what"]] * (row["ranks"] - 1), row["size"] / row["ranks"], row["seconds"])
        for row in rows
        if row["what"] in COLLECTIVES
    ]
    if not points:
        return ASSUMED, "assumed, PCIe 4.0 x16: there is only one device to measure"
    # Least squares for latency a + slowness b = 1, where a = k / seconds and b = k n / p / seconds.
    a, b = [k / t for k, _, t in points], [k * size / t for k, size, t in points]
    aa, ab, bb = (sum(x * y for x, y in zip(u, v, strict=True)) for u, v in ((a, a), (a, b), (b, b)))
    determinant = aa * bb - ab * ab
    latency = (bb * sum(a) - ab * sum(b)) / determinant if determinant else 0.0
    slowness = (aa * sum(b) - ab * sum(a)) / determinant if determinant else sum(b) / bb
    if latency < 0 or slowness <= 0:  # one of the two explains everything
        latency, slowness = (0.0, sum(b) / bb) if latency < 0 else (sum(a) / aa, 1e-15)
    return Link(_digits(latency), _digits(1 / slowness)), None
