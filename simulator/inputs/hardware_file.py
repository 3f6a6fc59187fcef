"""Hardware in a file: TOML in which every number has its unit and its source.

A file looks like this; ``simulator/inputs/devices`` has complete ones, ``hardware.schema.json`` the JSON schema::

    format = 1
    name = "my-cluster"
    about = "eight devices a node, measured on 2026-11-21"

    [compute]
    peak = { value = 989, unit = "TFLOP/s", source = "the maker's data sheet" }
    matmul_efficiency = { value = 0.8, unit = "1", source = "python -m simulator calibrate" }

    [memory]
    capacity = { value = 80, unit = "GB", source = "the maker's data sheet" }
    bandwidth = { value = 3350, unit = "GB/s", source = "the maker's data sheet" }

    [links.node]
    bandwidth = { value = 450, unit = "GB/s", source = "the maker's data sheet" }
    latency = { value = 3, unit = "us", source = "python -m simulator calibrate" }

    [links.rail]
    bandwidth = { value = 50, unit = "GB/s", source = "one card of 400 Gb/s a device" }
    latency = { value = 6, unit = "us", source = "python -m simulator calibrate" }

    [fit]
    fitted = ["rows that the numbers were fitted to"]
    held_out = ["rows that they were only compared with"]

Where one efficiency does not carry over all sizes, ``value`` is a list of points ``[size, part]``, sizes ascending:
``matmul_sizes = { value = [[1e9, 0.3], [1e12, 0.7]], unit = "FLOP", source = "…" }``. Between two points the part
is interpolated over the logarithm of the size. ``SETTINGS`` lists every key, where it stands and its unit.
"""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from simulator.inputs.hardware import Hardware, Link, Sizes

FORMAT = 1

# Unit -> how much of the simulator's unit (bytes, seconds, FLOP/s, counts and parts) it is.
UNITS = {
    "FLOP/s": {"FLOP/s": 1, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15},
    "B": {"B": 1, "MB": 1e6, "GB": 1e9, "MiB": 2**20, "GiB": 2**30},
    "B/s": {"B/s": 1, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "Gb/s": 1e9 / 8},
    "s": {"s": 1, "ms": 1e-3, "us": 1e-6},
    "1": {"1": 1},
    "FLOP": {"FLOP": 1, "GFLOP": 1e9, "TFLOP": 1e12},
}

# Section -> key -> (field of Hardware, dimension). A link's keys are those of Link.
SETTINGS = {
    "compute": {
        "peak": ("peak_flops", "FLOP/s"),
        "peak_fp8": ("fp8_flops", "FLOP/s"),
        "units": ("units", "1"),
        "matmul_efficiency": ("matmul_efficiency", "1"),
        "sustained": ("sustained", "1"),
        "sustained_fp8": ("sustained_fp8", "1"),
        "matmul_sizes": ("matmul_sizes", "FLOP"),
        "tile_start": ("tile_start", "1"),
        "flash_forward": ("flash_forward", "1"),
        "flash_backward": ("flash_backward", "1"),
        "launch": ("launch", "s"),
    },
    "memory": {
        "capacity": ("memory", "B"),
        "bandwidth": ("memory_bandwidth", "B/s"),
        "efficiency": ("memory_efficiency", "1"),
        "sizes": ("memory_sizes", "B"),
        "loss_efficiency": ("loss_efficiency", "1"),
        "context": ("context", "B"),
        "fragmentation": ("fragmentation", "1"),
    },
    "links": {
        "node_size": ("node_size", "1"),
        "rail_size": ("rail_size", "1"),
        "flat_ring": ("flat_ring", "1"),
        "overlap": ("overlap", "1"),
        "data_overlap": ("data_overlap", "1"),
    },
}
TIERS = {"node": "node", "rail": "network", "spine": "spine"}  # [links.rail] is Hardware.network
LINK = {"bandwidth": "B/s", "latency": "s", "efficiency": "1"}
WHOLE = ("units", "tile_start", "node_size", "rail_size")
REQUIRED = {"compute": ("peak",), "memory": ("capacity", "bandwidth"), "links": ("node",)}


def read_hardware(path: str | Path) -> Hardware:
    """The device that a file describes; a ValueError of one sentence names the key that is wrong."""
    from simulator.inputs.typed import read_toml

    content = read_toml(path)
    try:
        return parse_hardware(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_hardware(content: dict[str, Any]) -> Hardware:
    """The same from the content of a file as ``tomllib`` gives it."""
    from simulator.inputs.typed import check_types

    check_types(_file_type(), content)
    return hardware_in(content)


def hardware_in(content: dict[str, Any]) -> Hardware:
    """The same from content whose types are right: the files of the known devices, which tests read."""
    values: dict[str, Any] = {key: content[key] for key in ("name", "attention") if key in content}
    for section, settings in SETTINGS.items():
        for key, (field, dimension) in settings.items():
            if key in content[section]:
                values[field] = _entry(f"{section}.{key}", content[section][key], dimension)
    for tier, field in TIERS.items():
        if tier in content["links"]:
            values[field] = _link(f"links.{tier}", content["links"][tier])
    values.setdefault("network", values.get("node"))  # one node alone
    return Hardware(**values)


def write_hardware(path: str | Path, hardware: Hardware, sources: dict[str, str], about: str = "") -> None:
    """Write ``hardware`` as a file that ``read_hardware`` reads back.

    Args:
        sources: where each number comes from, by field of ``Hardware`` (``"peak_flops"``) or by tier of the
            network (``"node"``, ``"network"``, ``"spine"``). Fields without a source that hold their default are
            left out; other fields without one are an error.
    """
    lines = [f"format = {FORMAT}", f"name = {json.dumps(hardware.name)}"]
    lines += [f"about = {json.dumps(about, ensure_ascii=False)}"] if about else []
    lines.append(f"attention = {json.dumps(hardware.attention)}")
    defaults = {field.name: field.default for field in fields(Hardware)}
    for section, settings in SETTINGS.items():
        lines += ["", f"[{section}]"]
        for key, (field, dimension) in settings.items():
            value = getattr(hardware, field)
            if value == () or (field not in sources and value == defaults[field]):
                continue
            lines.append(f"{key} = {_format(value, dimension, _source_of(field, sources))}")
    for tier, field in TIERS.items():
        link = getattr(hardware, field)
        if link is not None:
            source = _source_of(field, sources)
            lines += ["", f"[links.{tier}]"]
            lines += [f"{key} = {_format(getattr(link, key), LINK[key], source)}" for key in LINK]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _source_of(field: str, sources: dict[str, str]) -> str:
    if field not in sources:
        raise ValueError(f"{field} needs a source: say where the number comes from")
    return sources[field]


def _format(value: float | Sizes, unit: str, source: str) -> str:
    number = [list(point) for point in value] if isinstance(value, tuple) else value
    return f"{{ value = {number!r}, unit = {json.dumps(unit)}, source = {json.dumps(source, ensure_ascii=False)} }}"


@cache
def _file_type() -> type:
    """What a file must hold, from the tables above. A browser, which has no msgspec, reads known devices alone."""
    from simulator.inputs.typed import Finite, Points, Text, Whole, table

    @cache
    def entry(kind: Any, dimension: str) -> type:
        keys = {"value": kind, "unit": Literal[tuple(UNITS[dimension])], "source": Text}
        return table("entry", keys, tuple(keys))

    def kind_of(field: str) -> Any:
        return Points if field.endswith("_sizes") else Whole if field in WHOLE else Finite

    sections = {
        name: {key: entry(kind_of(field), dimension) for key, (field, dimension) in settings.items()}
        for name, settings in SETTINGS.items()
    }
    link = table("link", {key: entry(Finite, of) for key, of in LINK.items()}, ("bandwidth", "latency"))
    sections["links"] |= dict.fromkeys(TIERS, link)
    rows = {"fitted": list[str], "held_out": list[str]}
    top = {"format": Literal[FORMAT], "name": Text, "about": str, "attention": Literal["unfused", "flash"]}
    top |= {name: table(name, keys, REQUIRED[name]) for name, keys in sections.items()} | {
        "fit": table("fit", rows)
    }
    return table("file", top, ("format", "name", *sections))


# ---- one entry --------------------------------------------------------------------------------------------


def _entry(key: str, entry: dict[str, Any], dimension: str) -> Any:
    """A number, or ``Sizes``, of ``{ value, unit, source }`` in the simulator's units."""
    value, scale = entry["value"], UNITS[dimension][entry["unit"]]
    if not isinstance(value, list):
        number = value if scale == 1 else _scaled(value, scale)
        return int(number) if number == int(number) and dimension == "1" else number
    points = []
    for size, part in value:
        if not 0 < part <= 1 or (points and _scaled(size, scale) <= points[-1][0]):
            raise ValueError(
                f"{key}.value needs ascending sizes above 0 and parts in (0, 1], not {[size, part]}"
            )
        points.append((_scaled(size, scale), part))
    return tuple(points)


def _link(key: str, entries: dict[str, Any]) -> Link:
    return Link(**{name: _entry(f"{key}.{name}", entry, LINK[name]) for name, entry in entries.items()})


def _scaled(value: float, scale: float) -> float:
    """``value * scale`` without the last digit's noise: 5 us is 5e-06 s."""
    return float(f"{value * scale:.12g}")
