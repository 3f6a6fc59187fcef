"""What a command was asked: a model, a plan and a device, read from its options; what is not used is refused."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any

from simulator.any_module.price import Model, check
from simulator.cli.options import flag, given
from simulator.inputs.hardware import Hardware
from simulator.inputs.huggingface import read_config
from simulator.inputs.known_devices import find_device
from simulator.inputs.known_models import MODELS, PARAMETERS_ONLY
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.inputs.traced import Traces
from simulator.planner.plan_text import read_plan_text, with_lists

# What model states depend on, where a model is known by its number of parameters alone.
STATES_ONLY = {"dp", "zero", "shard", "optimizer", "precision", "gradients", "offload"}


@dataclass(frozen=True)
class Question:
    """What is asked about.

    Args:
        model: the name of a known model, or None.
        shape: or a module's traces; None where only the number of parameters is known.
        parameters: of the whole model.
        plan: on the device, so that nothing is left open.
        hardware: None where no device was named.
    """

    model: str | None
    shape: Model | None
    parameters: float
    plan: Plan
    hardware: Hardware | None


@dataclass(frozen=True)
class StepQuestion(Question):
    """A question about time: what a step depends on is all known."""

    shape: Any  # a Model; a ModelShape for timeline and compare, to which no traces are handed
    hardware: Hardware


def read_question(values: dict[str, Any]) -> Question:
    """The question that a command's options ask.

    Raises:
        ValueError: one sentence, if a value makes no sense or an option would not be used.
    """
    values = _with_plan_text(values)
    hardware = None if values.get("gpu") is None else read_hardware(values["gpu"])
    shape, parameters = read_model(values)
    if shape is None:
        _refuse_unused(values)
    if isinstance(shape, Traces):
        own = {"micro_batch": shape.samples, "precision": shape.first.precision}
        values = values | {name: value for name, value in own.items() if values.get(name) is None}
    plan = read_plan(values, hardware)
    if shape is not None:
        check(shape, plan)
        parameters = shape.parameters
    gpus = values.get("gpus")
    if gpus is not None and plan.ranks != gpus:
        raise ValueError(
            f"dp x tp x pp x cp must be the {gpus} devices there are, not {plan.ranks}: "
            + ("the plan needs more" if plan.ranks > gpus else "the others would be idle")
        )
    return Question(values.get("model"), shape, parameters, plan, hardware)


def _with_plan_text(values: dict[str, Any]) -> dict[str, Any]:
    """The options, with those of ``--plan`` among them."""
    if values.get("plan_text") is None:
        return values
    asked = read_plan_text(values["plan_text"])
    if twice := sorted(asked.keys() & given(values, Plan)):
        raise ValueError(f"{', '.join(map(flag, twice))} is given in --plan, too")
    return values | asked


def read_model(values: dict[str, Any]) -> tuple[Model | None, float]:
    """The shape, or the module that was handed over, or None and the number of parameters."""
    sizes, name, parameters = given(values, ModelShape), values.get("model"), values.get("parameters")
    if values.get("traces") is not None:
        if unused := given(values, {*sizes, "model", "config", "parameters"}):
            raise ValueError(
                f"{', '.join(map(flag, unused))} would not be used: the module has its own sizes"
            )
        return values["traces"], 0
    if parameters is not None:
        if name is not None:
            raise ValueError("give either --model or --parameters, not both: a model knows its parameters")
        if not (isfinite(parameters) and parameters > 0):
            raise ValueError(f"parameters must be a number more than 0, not {parameters:g}")
    elif values.get("config") is not None:
        if name is not None:
            raise ValueError("give either --model or --config, not both")
        return replace(read_config(values["config"]), **sizes), 0
    elif name in PARAMETERS_ONLY:
        parameters = PARAMETERS_ONLY[name]
    elif name is not None:
        if name not in MODELS:
            raise ValueError(f"model must be one of {', '.join([*MODELS, *PARAMETERS_ONLY])}, not {name}")
        return replace(MODELS[name], **sizes), 0
    else:
        missing = [need for need in ("layers", "hidden", "heads", "vocab", "sequence") if need not in sizes]
        if missing:
            raise ValueError(
                f"a shape also needs {', '.join(map(flag, missing))}, or give a --model or a --config"
            )
        return ModelShape(**sizes), 0
    return None, parameters


def _refuse_unused(values: dict[str, Any]) -> None:
    """Of a model that is known by its parameters alone, only model states can be told."""
    used = STATES_ONLY if values.get("model") else STATES_ONLY | {"tp", "pp"}
    names = {field.name for cls in (ModelShape, Plan) for field in fields(cls)} | {"global_batch"}
    unused = [flag(name) for name in given(values, names - used)]
    if unused:
        known = values.get("model") or "--parameters"
        raise ValueError(
            f"{', '.join(unused)} would not be used: of {known} only the model states are known, which depend on "
            + ", ".join(flag(name) for name in sorted(used))
        )


def read_plan(values: dict[str, Any], hardware: Hardware | None) -> Plan:
    """The plan on its device; options that it would not use are refused."""
    asked = plan_fields(values)
    if values.get("global_batch") is not None:
        asked["microbatches"] = _microbatches(values["global_batch"], asked)
    plan = Plan(**asked)
    for name, used, needed in (
        ("sequence_parallel", plan.tp > 1, "--tp of at least 2"),
        ("prefetch", plan.zero == 3, "--zero 3"),
        ("shard", plan.zero > 0, "--zero 1, 2 or 3"),
    ):
        if asked.get(name) and not used:
            raise ValueError(f"{flag(name)} would not be used: it needs {needed}")
    return plan.on(hardware)


def plan_fields(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a plan that were given, lists as tuples."""
    return with_lists(given(values, Plan))


def _microbatches(global_batch: int, asked: dict[str, Any]) -> int:
    """Global batch / (dp x microbatch), which must come out even, and as ``microbatches`` says, if it does."""
    plan = Plan(**given(asked, ("dp", "micro_batch")))  # refuses a zero before it divides
    each = plan.dp * plan.micro_batch
    if global_batch < 1 or global_batch % each:
        raise ValueError(f"global batch must be a multiple of dp x micro-batch = {each}, not {global_batch}")
    if asked.get("microbatches") not in (None, global_batch // each):
        raise ValueError(
            f"a global batch of {global_batch} makes {global_batch // each} microbatches, "
            f"not {asked['microbatches']}"
        )
    return global_batch // each


def read_hardware(text: str) -> Hardware:
    """A known device, a file, or three numbers: FLOP/s, and bytes a second to its memory and to other devices."""
    if "," not in text:
        return find_device(text)
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != 3 or not all(isfinite(number) and number > 0 for number in numbers):
        raise ValueError(
            f"your own gpu is three numbers with commas, each finite and more than 0, not {text}"
        )
    return Hardware.of(*numbers)
