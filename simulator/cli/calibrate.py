"""``python -m simulator calibrate``: this machine measured, as a hardware file for ``--gpu``."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from simulator.cli.answer import print_json
from simulator.cli.options import JSON, Command, options
from simulator.cli.parameter_types import Output

UNITS = {
    "size": "FLOP of matmul and attention, bytes of the rest",
    "seconds": "seconds",
    "rate": "size a second",
    "others": "processors",
    "spread": "part of the time",
}
MEASURE = [sys.executable, "-m", "course_lib.observe.calibrate"]


@click.command(cls=Command)
@options(
    {
        "Options": [
            click.option(
                "--out",
                type=Output(),
                default=Path("this-machine.toml"),
                show_default=True,
                help="The file to write.",
            ),
            click.option("--name", metavar="NAME", help="Of the device; the file's name if not given."),
            click.option("--overwrite", is_flag=True, help="Replace a file that is there."),
            click.option("--ask", is_flag=True, help="Ask seven questions instead of measuring."),
            JSON,
        ]
    }
)
def calibrate(out: Path, name: str | None, overwrite: bool, ask: bool, as_json: bool) -> None:
    """Measure this machine and write a hardware file: about a minute.

    It times matrix products, memory-bound kernels, attention, the loss, and collectives between ranks, on the first
    GPU or else the CPU, and needs PyTorch. Let nothing else run meanwhile: a busy machine is noticed, and the file
    says so. It serves wherever --gpu does:

    \b
    python -m simulator calibrate --ask --out cluster.toml
    python -m simulator calibrate --out mine.toml
    python -m simulator step --gpu mine.toml --precision fp32 \\
        --model gpt2 --global-batch 4
    """
    if out.suffix.lower() != ".toml":
        raise ValueError(f"a hardware file's name ends in .toml, not {out.name}")
    if out.exists() and not overwrite:
        raise ValueError(f"{out} is there already: give another --out, or --overwrite")
    from simulator.inputs.hardware_file import write_hardware
    from simulator.predict.calibration import busy_machine, hardware_of

    if ask:
        from simulator.cli.asked_hardware import ask_hardware

        write_hardware(out, *ask_hardware(name or out.stem))
        click.echo(f"wrote {out}: give it as --gpu {out}")
        return
    measurements = measure()
    today = date.today().isoformat()
    hardware, sources = hardware_of(measurements, name or out.stem, today)
    about = (
        f"{measurements['device']['name']}, in {measurements['precision']}, PyTorch {measurements['torch']}"
    )
    busy = busy_machine(measurements)
    write_hardware(out, hardware, sources, f"{about}; {busy}" if busy else about)
    if busy:
        click.echo(f"Warning: {busy}: measure again, with --overwrite, when nothing else runs.", err=True)
    if as_json:
        rows = [
            {key: row[key] for key in ("what", "ranks", "size", "seconds")}
            | {"rate": row["size"] / row["seconds"]}
            for row in measurements["measured"]
        ]
        quiet = measurements["quiet"] | {"warning": busy}
        print_json("calibrate", UNITS, {"file": str(out), "measured": rows, "quiet": quiet})
        return
    best = hardware.peak_flops * 2 / max(measurements["itemsize"], 2)
    click.echo(about)
    click.echo(
        f"products up to {best / 1e12:.4g} TFLOP/s, memory {hardware.memory_bandwidth / 1e9:.4g} GB/s, a kernel's "
        f"start {hardware.launch * 1e6:.3g} us, ranks {hardware.node.bandwidth / 1e9:.3g} GB/s and "
        f"{hardware.node.latency * 1e6:.3g} us"
    )
    click.echo(f"wrote {out}: give it as --gpu {out} --precision {_precision(measurements)}")


def measure() -> dict[str, Any]:
    """What ``course_lib.observe.calibrate`` finds, in a process of its own; its progress goes to standard error.

    Raises:
        ValueError: what it needs is not installed, or it failed.
    """
    for package in ("torch", "course_lib"):
        if find_spec(package) is None:
            raise ValueError(
                f"calibrate measures with PyTorch and course_lib, and {package} is not installed: install the course "
                "(pip install -e .), or write a hardware file by hand, as simulator/inputs/hardware_file.py shows"
            )
    done = subprocess.run(MEASURE, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ValueError(
            f"the measurement ended with exit code {done.returncode}: its last words stand above"
        )
    return json.loads(done.stdout)


def _precision(measurements: dict[str, Any]) -> str:
    """The plan's word for the numbers that the products were measured with."""
    return "fp32" if measurements["precision"] == "fp32" else "mixed"
