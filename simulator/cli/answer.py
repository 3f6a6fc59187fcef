"""The JSON of every command: the same envelope, in which the question is echoed; ``answers.schema.json`` holds it.

``version`` changes when a key goes, or means something else; a key may be added without a new version.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isfinite
from typing import Any

import click

from simulator.cli.question import Question
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape

VERSION = 1


def print_json(
    command: str, units: dict[str, str], answer: dict[str, Any], question: Question | None = None
) -> None:
    """Print the answer, with the model, the plan and the hardware that it is about.

    Args:
        units: of every quantity in ``answer``, by its key.
    """
    asked = {"model": None, "plan": None, "hardware": None}
    if question is not None:
        asked = {
            "model": _model(question),
            "plan": _plan(question.plan),
            "hardware": _hardware(question.hardware),
        }
    envelope = {"version": VERSION, "command": command, "units": units} | asked | answer
    click.echo(json.dumps(finite(envelope), allow_nan=False))


def finite(value: Any) -> Any:
    """The same without infinities, which JSON has no word for: null."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _model(question: Question) -> dict[str, Any]:
    """The same keys for every model; sizes are null where only the number of parameters is known, or a trace."""
    names = ModelShape.__dataclass_fields__
    sizes = asdict(question.shape) if isinstance(question.shape, ModelShape) else dict.fromkeys(names)
    return {"name": question.model, "parameters": question.parameters} | sizes


def _plan(plan: Plan) -> dict[str, Any]:
    return asdict(plan) | {"ranks": plan.ranks, "global_batch": plan.global_batch}


def _hardware(hardware: Hardware | None) -> dict[str, Any] | None:
    """In bytes, seconds and FLOP/s, as ``simulator.inputs.hardware`` explains each."""
    return None if hardware is None else asdict(hardware)
