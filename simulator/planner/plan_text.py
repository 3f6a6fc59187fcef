"""A plan in one line, ``dp=2,tp=2,pp=2,zero=1``: the keys are the fields of ``Plan``. What is priced here can be run.

``python -m course_lib.train --plan`` takes the same line.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from simulator.inputs.plan import Plan

WORDS = {"true": True, "yes": True, "false": False, "no": False}


def plan_types() -> dict[str, str]:
    """Key -> type, as it is written in ``Plan``, without None."""
    return {field.name: str(field.type).removesuffix(" | None") for field in fields(Plan)}


def read_plan_text(text: str) -> dict[str, Any]:
    """The values that the options of the same names would have.

    >>> read_plan_text("pp=2,stage_layers=3,1,sequence_parallel=yes,zero=1")
    {'pp': 2, 'stage_layers': '3,1', 'sequence_parallel': True, 'zero': 1}

    Raises:
        ValueError: a key that no field has, one that stands twice, or a value of another type.
    """
    types = plan_types()
    asked: dict[str, str] = {}
    last = None
    for part in (part.strip() for part in text.split(",")):
        key, equals, value = part.partition("=")
        if part and not equals and last is not None and types[last].startswith("tuple"):
            asked[last] += f",{part}"  # a list goes on: stage_layers=3,1
            continue
        last = key.strip().replace("-", "_")
        if last not in types or not equals:
            raise ValueError(f"a plan is KEY=VALUE,… with the keys {', '.join(types)}, not {shown(part)}")
        if last in asked:
            raise ValueError(f"{last} stands twice in the plan {text}")
        asked[last] = value.strip()
    return {name: _value(name, types[name], value) for name, value in asked.items()}


def with_lists(asked: dict[str, Any]) -> dict[str, Any]:
    """Values of options as fields of a plan: ``"3,4,4,3"`` and ``"gradients,tensor"`` as tuples, ``"none"`` as ().

    Raises:
        ValueError: numbers are asked for, and there is something else.
    """
    kinds = plan_types().items()
    lists = [n for n, kind in kinds if kind.startswith("tuple") and isinstance(asked.get(n), str)]
    return asked | {n: _numbers(n, asked[n]) if n == "stage_layers" else _words(asked[n]) for n in lists}


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise ValueError(f"{name.replace('_', ' ')} must be numbers with commas, not {text}") from None


def _words(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(word.strip() for word in text.split(","))


def _value(name: str, kind: str, value: str) -> Any:
    if kind == "bool":
        if value.lower() not in WORDS:
            raise ValueError(f"{name} must be one of {', '.join(WORDS)}, not {value}")
        return WORDS[value.lower()]
    if kind == "int":
        if not re.fullmatch(r"[-+]?\d{1,15}", value):
            few = " of at most 15 digits" if len(value) > 15 else ""
            raise ValueError(f"{name} must be a whole number{few}, not {shown(value)}")
        return int(value)
    if kind == "float":
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{name} must be a number, not {shown(value)}") from None
    if not value:
        raise ValueError(f"{name} has no value in the plan: {name}=…")
    return value


def shown(text: str) -> str:
    """A word of the command line in a sentence: quoted where it is empty, and cut where it is long."""
    return text if 0 < len(text) <= 60 else f"{text[:40]!r}" + "…" * bool(text)


def plan_text(plan: Plan, names: list[str] | None = None) -> str:
    """The line that gives this plan: its fields that differ from the defaults, and those that ``names`` adds.

    >>> plan_text(Plan(dp=2, zero=1, overlap=()))
    'dp=2,zero=1,overlap=none'
    """
    plain = Plan(**{axis: getattr(plan, axis) for axis in ("dp", "tp", "pp", "cp", "chunks", "schedule")})
    axes = [name for name in ("dp", "tp", "pp", "cp") if getattr(plan, name) > 1]
    named = [field.name for field in fields(Plan) if getattr(plan, field.name) != getattr(plain, field.name)]
    schedule = [
        name
        for name in ("schedule", "chunks")
        if plan.pp > 1 and getattr(plan, name) != getattr(Plan(), name)
    ]
    wanted: dict[str, None] = dict.fromkeys([*axes, *schedule, *named, *(names or [])])
    return ",".join(f"{name}={_shown(getattr(plan, name))}" for name in wanted)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value)
