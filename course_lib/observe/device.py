"""The device that this process sees, by the name that the simulator has for it."""

from __future__ import annotations

import torch

from simulator.inputs.known_devices import GPUS

CPU = "laptop-cpu"


def device_name() -> str | None:
    """What the simulator calls the devices here; None where it does not know them."""
    if not torch.cuda.is_available():
        return CPU
    found = torch.cuda.get_device_name().lower()
    alike = [name for name in GPUS if name.split("-")[0] in found]
    memory = torch.cuda.get_device_properties(0).total_memory
    return min(alike, key=lambda name: abs(GPUS[name].memory - memory), default=None)
