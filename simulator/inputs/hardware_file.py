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
from dataclasses import MISSING, fields
from math import isfinite
from pathlib import Path
from typing import Any

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
TOP = {"format", "name", "about", "attention", "compute", "memory", "links", "fit"}


def read_hardware(path: str | Path) -> Hardware:
    """The device that a file describes; a ValueError of one sentence names the key that is wrong."""
    import tomllib

    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no hardware file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None
    try:
        return parse_hardware(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_hardware(content: dict[str, Any]) -> Hardware:
    """The same from the content of a file as ``tomllib`` gives it."""
    _known_keys("the file", content, TOP)
    if content.get("format") != FORMAT:
        raise ValueError(f"format must be {FORMAT}, not {content.get('format')}")
    for key in ("name", "compute", "memory", "links"):
        if key not in content:
            raise ValueError(f"{key} is missing")
    values: dict[str, Any] = {"name": _text("name", content["name"])}
    if "attention" in content:
        values["attention"] = _one_of("attention", content["attention"], ("unfused", "flash"))
    for section, settings in SETTINGS.items():
        table = _table(section, content[section])
        _known_keys(section, table, {*settings, *(TIERS if section == "links" else ())})
        for key, (field, dimension) in settings.items():
            if key in table:
                values[field] = _entry(f"{section}.{key}", table[key], dimension, field.endswith("_sizes"))
    for tier, field in TIERS.items():
        if tier in content["links"]:
            values[field] = _link(f"links.{tier}", content["links"][tier])
    values.setdefault("network", values.get("node"))  # one node alone
    for name in ("units", "tile_start", "node_size", "rail_size"):
        if name in values:
            values[name] = _whole(name, values[name])
    required = [field.name for field in fields(Hardware) if field.default is MISSING]
    places = {
        field: f"{section}.{key}" for section, keys in SETTINGS.items() for key, (field, _) in keys.items()
    }
    for name in required:
        if values.get(name) is None:
            raise ValueError(f"{places.get(name, 'links.node')} is missing")
    _fit(content.get("fit", {}))
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


# ---- one entry --------------------------------------------------------------------------------------------


def _entry(key: str, entry: Any, dimension: str, points: bool) -> float | Sizes:
    """``{ value, unit, source }`` in the simulator's units."""
    table = _table(key, entry)
    _known_keys(key, table, {"value", "unit", "source"})
    for need in ("value", "unit", "source"):
        if need not in table:
            raise ValueError(f"{key} needs a {need}: {{ value = …, unit = …, source = … }}")
    scale = UNITS[dimension][_one_of(f"{key}.unit", table["unit"], UNITS[dimension])]
    _text(f"{key}.source", table["source"])
    if not points:
        return _scaled(_number(f"{key}.value", table["value"]), scale)
    return _points(f"{key}.value", table["value"], scale)


def _points(key: str, value: Any, scale: float) -> Sizes:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{key} must be a list of points [size, part of the peak], not {value}")
    points = []
    for point in value:
        if not isinstance(point, list) or len(point) != 2:
            raise ValueError(f"{key} must hold points [size, part of the peak], not {point}")
        size, part = _number(key, point[0]), _number(key, point[1])
        if size <= 0 or not 0 < part <= 1 or (points and _scaled(size, scale) <= points[-1][0]):
            raise ValueError(f"{key} needs ascending sizes above 0 and parts in (0, 1], not {point}")
        points.append((_scaled(size, scale), part))
    return tuple(points)


def _link(key: str, value: Any) -> Link:
    table = _table(key, value)
    _known_keys(key, table, LINK)
    for need in ("bandwidth", "latency"):
        if need not in table:
            raise ValueError(f"{key}.{need} is missing")
    return Link(**{name: _entry(f"{key}.{name}", entry, LINK[name], False) for name, entry in table.items()})


def _fit(value: Any) -> None:
    table = _table("fit", value)
    _known_keys("fit", table, {"fitted", "held_out"})
    for key, rows in table.items():
        if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
            raise ValueError(f"fit.{key} must be a list of sentences, not {rows}")


def _known_keys(where: str, table: dict[str, Any], accepted: Any) -> None:
    for key in table:
        if key not in accepted:
            raise ValueError(f"{where} has no key {key!r}; it accepts {', '.join(sorted(accepted))}")


def _table(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{key} must be a table, not {value}")
    return value


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} must be a text that is not empty, not {value!r}")
    return value


def _one_of(key: str, value: Any, accepted: Any) -> str:
    if value not in accepted:
        raise ValueError(f"{key} must be one of {', '.join(accepted)}, not {value}")
    return value


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{key} must be a finite number, not {value}")
    return value


def _whole(name: str, value: float) -> int:
    if value != int(value):
        raise ValueError(f"{name.replace('_', ' ')} must be a whole number, not {value:g}")
    return int(value)


def _scaled(value: float, scale: float) -> float:
    """``value * scale`` without the last digit's noise: 5 us is 5e-06 s."""
    return float(f"{value * scale:.12g}")
