"""``calibrate --ask``: a device by seven questions; what else it needs is taken from the known device nearest to it."""

from __future__ import annotations

from dataclasses import replace

import click

from simulator.inputs.hardware import Hardware, Link
from simulator.inputs.hardware_file import SETTINGS, TIERS
from simulator.inputs.known_devices import GPUS, find_device


def ask_hardware(name: str) -> tuple[Hardware, dict[str, str]]:
    """The device, and where each of its numbers comes from. Enter takes the known device's number."""
    like = find_device(
        click.prompt("Which device is it most like?", default="h100", type=click.Choice([*GPUS]))
    )

    def ask(question: str, known: float) -> float:
        return click.prompt(question, default=float(f"{known:.4g}"), type=float)

    node = Link(
        like.node.latency,
        1e9 * ask("To a device of its node, GB/s one way", like.node.bandwidth / 1e9),
        like.node.efficiency,
    )
    network = Link(
        like.network.latency,
        1e9 / 8 * ask("To another node, Gb/s a device", like.network.bandwidth * 8e-9),
        like.network.efficiency,
    )
    hardware = replace(
        like,
        name=name,
        node=node,
        network=network,
        node_size=click.prompt("Devices in a node", default=like.node_size, type=int),
        peak_flops=1e12 * ask("16-bit TFLOP/s, without sparsity", like.peak_flops / 1e12),
        memory=1e9 * ask("Memory in GB", like.memory / 1e9),
        memory_bandwidth=1e9 * ask("Memory bandwidth in GB/s", like.memory_bandwidth / 1e9),
    )
    names = [field for settings in SETTINGS.values() for field, _ in settings.values()] + [*TIERS.values()]
    asked = {name for name in names if getattr(hardware, name) != getattr(like, name)}
    return hardware, {name: "answered" if name in asked else f"as {like.name}" for name in names}
