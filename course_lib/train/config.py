"""A run of ``course_lib.train`` in a TOML file: the model, its tuning, how it is spread over ranks, and its training.

    world = 2                       # ranks; may be left out where the plan says it

    [model]
    name = "bert"                   # as --model
    task = "words"
    layers = 4

    [tuning]
    method = "lora"                 # full if this table is left out
    rank = 8

    [plan]
    tp = 2                          # the fields of the simulator's Plan

    [compression]
    method = "powersgd"             # none if this table is left out
    matrix_rank = 4

    [placement]
    way = "galaxy"                  # or, for each block, where it is: attention = "heads", …
    heads = [3, 1]

    [training]
    steps = 100

An option of the command line goes before the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from simulator.inputs.galaxy import BLOCKS
from simulator.inputs.plan import Plan

# What each model can learn, its usual task first.
TASKS = {
    "gpt": ("language",),
    "bert": ("package", "words"),
    "llama": ("language",),
    "bart": ("denoising",),
}
SHIPPED = Path(__file__).parent / "configs"

# Each table's keys, and for those that are options of the command line the name of the option.
OPTIONS: dict[str, dict[str, str]] = {
    "model": {"name": "model"} | {key: key for key in ("task", "layers", "hidden", "heads", "sequence")},
    "training": {key: key for key in ("global_batch", "steps", "lr", "clip", "seed")},
    "checkpoint": {"folder": "checkpoint", "save_every": "save_every", "resume": "resume"},
}
PLACEMENT = ("way", *BLOCKS, "heads", "columns", "sequence")

# What each way of tuning takes, and of which type. ``tuning.py`` does it.
TUNING: dict[str, dict[str, type]] = {
    "full": {},
    "lora": {"rank": int, "alpha": float, "dropout": float, "targets": list},
    "adapter": {"width": int, "kind": str},
    "side": {"layers": int, "width": int, "alpha": float},
    "bias": {},
    "prompt": {"tokens": int, "start": str},
    "ptuning": {"tokens": int, "encoder": str, "width": int},
    "prefix": {"tokens": int, "width": int},
}
# How gradients are sent, and what each way takes. ``parallelize/comm_hooks.py`` does it.
SPARSE = {"density": float, "error_feedback": bool, "warmup_steps": int}
COMPRESSION: dict[str, dict[str, type]] = {
    "none": {},
    "bytegrad": {"warmup_steps": int},
    "top-k": SPARSE,
    "random-k": SPARSE,
    "powersgd": {
        "matrix_rank": int,
        "error_feedback": bool,
        "warm_start": bool,
        "min_compression": float,
        "warmup_steps": int,
    },
    "one-bit": {"warmup_steps": int},
}
VIRTUAL_TOKENS = 8  # in front of the text, where a file does not say how many


@dataclass(frozen=True)
class Config:
    """What a file says.

    Attributes:
        options: values for options of the command line, by their names.
        tuning: the method and its settings.
        placement: None: the plan alone says how layers are cut.
        compression: the method and its settings; None: gradients are sent as they are.
    """

    options: dict[str, Any] = field(default_factory=dict)
    tuning: dict[str, Any] = field(default_factory=lambda: {"method": "full"})
    placement: dict[str, Any] | None = None
    compression: dict[str, Any] | None = None


def virtual_tokens(tuning: Mapping[str, Any]) -> int:
    """How many trained vectors stand in front of a text; 0 under the other methods."""
    return tuning.get("tokens", VIRTUAL_TOKENS) if "tokens" in TUNING[tuning["method"]] else 0


def shipped() -> list[str]:
    """The names of the files that come with the course."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def read_config(name: str) -> Config:
    """A file, or one of ``shipped`` by its name.

    Raises:
        ValueError: there is no such file, or it is no TOML; a table or a key that is not known, or a value of another
            type. One sentence names it.
    """
    path = SHIPPED / f"{name}.toml" if name in shipped() else Path(name)
    if not path.is_file():
        raise ValueError(f"--config must be a file, or one of {', '.join(shipped())}, not {name}")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} is no TOML file: {error}") from None
    try:
        return _read(tables)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _read(tables: dict[str, Any]) -> Config:
    plan_keys = {plan_field.name for plan_field in fields(Plan)}
    known = {**OPTIONS, "plan": plan_keys, "placement": PLACEMENT, "tuning": None, "compression": None}
    options: dict[str, Any] = {}
    if "world" in tables:
        options["world"] = _of_type("world", tables.pop("world"), int)
    for table, values in tables.items():
        if table not in known:
            raise ValueError(
                f"there is no key {table}: the keys are world, and the tables {', '.join(known)}"
            )
        if not isinstance(values, dict):
            raise ValueError(f"{table} must be a table, [{table}], not {values!r}")
        if known[table] is not None:
            _check_keys(table, values, known[table])
        for key, value in values.items():
            if table in OPTIONS:
                options[OPTIONS[table][key]] = _scalar(f"[{table}] {key}", value)
    if "plan" in tables:
        options["plan"] = ",".join(f"{key}={_in_plan(key, value)}" for key, value in tables["plan"].items())
    tuning = _with_method("tuning", TUNING, tables.get("tuning", {}))
    compression = _with_method("compression", COMPRESSION, tables.get("compression", {}))
    sent_whole = compression["method"] == "none"
    return Config(options, tuning, _placement(tables.get("placement")), None if sent_whole else compression)


def _check_keys(
    table: str, values: Mapping[str, Any], known: Mapping[str, Any] | set[str] | tuple[str, ...]
) -> None:
    for key in values:
        if key not in known:
            raise ValueError(f"[{table}] has no key {key}; its keys are {', '.join(sorted(known))}")


def _with_method(
    table: str, methods: Mapping[str, Mapping[str, type]], values: dict[str, Any]
) -> dict[str, Any]:
    """A table whose other keys depend on its ``method``, by default the first one."""
    method = values.get("method", next(iter(methods)))
    if method not in methods:
        raise ValueError(f"[{table}] method must be one of {', '.join(methods)}, not {method!r}")
    keys = {"method": str, **methods[method]}
    for key, value in values.items():
        if key not in keys:
            raise ValueError(
                f"[{table}] has no key {key} with the method {method}; its keys are {', '.join(keys)}"
            )
        _of_type(f"[{table}] {key}", value, keys[key])
    return {"method": method} | values


def _placement(values: dict[str, Any] | None) -> dict[str, Any] | None:
    if values is None:
        return None
    for key in ("heads", "columns", "sequence"):
        for number in _of_type(f"[placement] {key}", values.get(key, []), list):
            _of_type(f"[placement] {key}", number, int)
    blocks = {key: values[key] for key in BLOCKS if key in values}
    if blocks and "way" in values:
        raise ValueError(
            f"[placement] has way and {next(iter(blocks))}: give the way, or the place of every block"
        )
    shares = {key: value for key, value in values.items() if key not in ("way", *BLOCKS)}
    return {"placement": blocks or values.get("way", "galaxy"), **shares}


def _scalar(key: str, value: Any) -> Any:
    if isinstance(value, dict | list):
        raise ValueError(f"{key} must be one value, not {value!r}")
    return value


def _of_type(key: str, value: Any, kind: type) -> Any:
    names = {int: "a whole number", float: "a number", str: "a text", list: "a list", bool: "true or false"}
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{key} must be {names[kind]}, not {value!r}")
    return value


def _in_plan(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(str(_scalar(f"[plan] {key}", item)) for item in value)
    return str(_scalar(f"[plan] {key}", value))
