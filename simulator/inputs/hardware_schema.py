"""The JSON schema of a hardware file, made from the same tables that its reader goes by.

``hardware.schema.json`` beside this file is what ``hardware_schema()`` returns; editors that know TOML can use it.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from simulator.inputs.hardware import Hardware, Link
from simulator.inputs.hardware_file import FORMAT, LINK, SETTINGS, TIERS, UNITS


def hardware_schema() -> dict[str, Any]:
    """What ``simulator.inputs.hardware_file.read_hardware`` accepts."""
    sections = {}
    for section, settings in SETTINGS.items():
        keys = {key: _entry(field, dimension) for key, (field, dimension) in settings.items()}
        sections[section] = _object(
            keys, {"compute": ["peak"], "memory": ["capacity", "bandwidth"]}.get(section, [])
        )
    link = _object(
        {key: _entry(key, dimension, Link) for key, dimension in LINK.items()}, ["bandwidth", "latency"]
    )
    sections["links"]["properties"] |= {tier: {"$ref": "#/$defs/link"} for tier in TIERS}
    sections["links"]["required"] = ["node"]
    rows = {"type": "array", "items": {"type": "string"}}
    top = {
        "format": {"const": FORMAT},
        "name": {"type": "string", "minLength": 1},
        "about": {"type": "string"},
        "attention": {"enum": ["unfused", "flash"], "description": _explained(Hardware, "attention")},
        **sections,
        "fit": _object({"fitted": rows, "held_out": rows}, []),
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A device and its links, as --gpu mine.toml reads it",
        "$defs": {"link": link},
    }
    return schema | _object(top, ["format", "name", "compute", "memory", "links"])


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required,
        "properties": properties,
    }


def _entry(field: str, dimension: str, cls: type = Hardware) -> dict[str, Any]:
    point = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    value = (
        {"type": "array", "items": point, "minItems": 1} if field.endswith("_sizes") else {"type": "number"}
    )
    source = {"type": "string", "minLength": 1}
    entry = _object({"value": value, "unit": {"enum": list(UNITS[dimension])}, "source": source}, [])
    entry["required"] = ["value", "unit", "source"]
    return entry | {"description": _explained(cls, field)}


def _explained(cls: type, name: str) -> str:
    """What the class's docstring says of a field, on one line."""
    for part in re.split(r"\n {4}(?=\w)", (inspect.getdoc(cls) or "").partition("Args:")[2]):
        names, _, text = part.partition(":")
        if name in [one.strip() for one in names.split(",")]:
            return " ".join(text.replace("``", "").split())
    return {
        "bandwidth": "What one rank can send, in one direction, as the maker prints it.",
        "latency": "Time before the first byte of a message arrives.",
        "efficiency": "Part of the bandwidth that collectives reach.",
    }.get(name, "")
