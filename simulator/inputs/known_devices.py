"""The devices that the course knows, by name, each read from a file in ``simulator/inputs/devices``.

Every number in such a file has its unit and its source, and the file lists the measured rows that its numbers were
fitted to and those that they were not. ``python -m simulator validate`` shows how far the numbers carry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from simulator.inputs.hardware import Hardware

FOLDER = Path(__file__).parent / "devices"
ALIASES = {"a100-sxm": "a100-80gb"}


class _Devices(Mapping[str, Hardware]):
    """Name -> device. A device's file is read when it is asked for, and once."""

    names = ("v100", "a100-40gb", "a100-80gb", "a100-pcie", "h100", "h800", "h200", "b200", "laptop-cpu")

    def __getitem__(self, name: str) -> Hardware:
        if name not in self.names:
            raise KeyError(name)
        return _known(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


GPUS = _Devices()


def find_device(name: str) -> Hardware:
    """A device's file (``"my_cluster.toml"``), or a known device by an unmistakable part of its name (``"H100"``)."""
    if name.lower().endswith(".toml"):
        from simulator.inputs.hardware_file import read_hardware  # here, because most uses read no device

        return read_hardware(name)
    wanted = ALIASES.get(name.lower(), name.lower())
    found = [wanted] if wanted in GPUS else [known for known in GPUS if wanted in known]
    if len(found) == 1:
        return GPUS[found[0]]
    raise ValueError(
        f"gpu must be one of {', '.join(GPUS)}, a .toml file, or three numbers with commas, not {name}"
    )


def fitted_rows(name: str) -> dict[str, list[str]]:
    """``fitted`` and ``held_out``: what the file of a known device says of the rows behind its numbers."""
    return {"fitted": [], "held_out": []} | _content(name).get("fit", {})


@cache
def _known(name: str) -> Hardware:
    from simulator.inputs.hardware_file import hardware_in

    return hardware_in(_content(name))


def _content(name: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
