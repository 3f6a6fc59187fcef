"""A run of ``course_lib.train`` in a TOML file: the model, its tuning, how it is spread over ranks, and its training.

    world = 2                       # ranks; may be left out where the plan says it

    [model]
    name = "bert"                   # as --model
    task = "words"
    layers = 4                      # or: weights = "a folder", which says how large the model is

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

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from course_lib.compression.methods import HOOKED
from course_lib.finetuning.methods import TUNINGS
from simulator.inputs.galaxy import BLOCKS
from simulator.inputs.typed import (
    Count,
    CountOrZero,
    Positive,
    PositiveOrInfinite,
    Text,
    check_types,
    read_toml,
    table,
)
from simulator.planner.plan_text import plan_types

# What each model can learn, its usual task first.
TASKS = {
    "gpt": ("language",),
    "bert": ("package", "words", "word-order"),
    "llama": ("language",),
    "mixtral": ("language",),
    "deepseek": ("language",),
    "bart": ("denoising",),
}
SHIPPED = Path(__file__).parent / "configs"

# Keys of the tables that are options of the command line by another name.
OTHER_NAME = {"model": {"name": "model"}, "checkpoint": {"folder": "checkpoint"}}
MODEL = {"name": Literal[tuple(TASKS)], "task": Text, "weights": Text} | dict.fromkeys(
    ("layers", "hidden", "heads", "sequence"), Count
)
TRAINING = {
    "global_batch": Count,
    "steps": Count,
    "lr": Positive,
    "clip": PositiveOrInfinite,
    "balance_loss": Positive,
    "capacity_factor": Positive,
    "seed": CountOrZero,
}
CHECKPOINT = {"folder": Text, "save_every": Count, "resume": bool}
PLACEMENT = {"way": Text} | dict.fromkeys(BLOCKS, Text)
PLACEMENT |= dict.fromkeys(("heads", "columns", "sequence"), list[CountOrZero])
KINDS = {
    "int": Count,
    "float": Positive,
    "bool": bool,
    "str": Text,
    "tuple[int, ...]": list[Count],
    "tuple[str, ...]": Text | list[Text],
}
PLAN = {name: KINDS[kind] for name, kind in plan_types().items()} | {
    "zero": CountOrZero,
    "prefetch": CountOrZero,
}
FILE = table(
    "file",
    {
        "world": Count,
        "model": table("model", MODEL),
        "plan": table("plan", PLAN),
        "training": table("training", TRAINING),
        "checkpoint": table("checkpoint", CHECKPOINT),
        "placement": table("placement", PLACEMENT),
        "tuning": dict[str, Any],
        "compression": dict[str, Any],
    },
)


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
    tables = read_toml(path)
    try:
        check_types(FILE, tables)
        return _config(tables)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _config(tables: dict[str, Any]) -> Config:
    """From tables whose types are right."""
    options = {"world": tables["world"]} if "world" in tables else {}
    for name in ("model", "training", "checkpoint"):
        others = OTHER_NAME.get(name, {})
        options |= {others.get(key, key): value for key, value in tables.get(name, {}).items()}
    if "plan" in tables:
        options["plan"] = ",".join(f"{key}={_in_plan(value)}" for key, value in tables["plan"].items())
    tuning = _with_method(
        "tuning", {name: tuning.settings for name, tuning in TUNINGS.items()}, tables.get("tuning", {})
    )
    compression = _with_method("compression", HOOKED, tables.get("compression", {}))
    sent_whole = compression["method"] == "none"
    return Config(options, tuning, _placement(tables.get("placement")), None if sent_whole else compression)


def _with_method(
    name: str, methods: Mapping[str, Mapping[str, Any]], values: dict[str, Any]
) -> dict[str, Any]:
    """A table whose other keys depend on its ``method``, by default the first one."""
    method = values.get("method", next(iter(methods)))
    if not isinstance(method, str) or method not in methods:
        raise ValueError(f"{name}.method must be one of {', '.join(methods)}, not {method!r}")
    check_types(table(name, {"method": str, **methods[method]}), values, name)
    return {"method": method} | values


def _placement(values: dict[str, Any] | None) -> dict[str, Any] | None:
    if values is None:
        return None
    blocks = {key: values[key] for key in BLOCKS if key in values}
    if blocks and "way" in values:
        raise ValueError(
            f"placement has way and {next(iter(blocks))}: give the way, or the place of every block"
        )
    shares = {key: value for key, value in values.items() if key not in ("way", *BLOCKS)}
    return {"placement": blocks or values.get("way", "galaxy"), **shares}


def _in_plan(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
