"""A plan's pipeline stages as the engine takes them: how long each works on one microbatch.

This is the bridge from ``ModelShape``, ``Plan`` and ``Hardware`` to any ``Schedule``, zero-bubble ones included.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.pipeline.actions import Schedule
from simulator.pipeline.engine import simulate
from simulator.pipeline.execution import Execution
from simulator.pipeline.schedules import make_schedule
from simulator.predict.layer_time import LayerSeconds, embedding_seconds, layer_seconds, logits_seconds


@dataclass(frozen=True)
class UnitSeconds:
    """Seconds of what a stage is made of, on one microbatch: computed once for a plan, and passed on.

    Args:
        layer: one layer.
        embedding, logits: forward and backward together.
    """

    layer: LayerSeconds
    embedding: float
    logits: float


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of one microbatch, one entry a stage: F, B (with what it recomputes) and W."""

    forward: list[float]
    backward_input: list[float]
    backward_weight: list[float]


def unit_seconds(shape: ModelShape, plan: Plan, hardware: Hardware) -> UnitSeconds:
    """What one layer, the embedding and the logits take on one microbatch."""
    plan.check(shape)
    question = shape, plan, hardware
    return UnitSeconds(layer_seconds(*question), embedding_seconds(*question), logits_seconds(*question))


def stage_durations(
    shape: ModelShape, plan: Plan, hardware: Hardware, units: UnitSeconds | None = None
) -> StageSeconds:
    """How long each stage works. Half of the embedding's time and a third of the logits' count as forward.

    Args:
        units: as ``unit_seconds`` gives them, if they are known already.
    """
    units = units or unit_seconds(shape, plan, hardware)
    layers = plan.layers_by_stage(shape)
    last = len(layers) - 1
    stages = [one_stage_seconds(units, n, first=s == 0, last=s == last) for s, n in enumerate(layers)]
    return StageSeconds(*map(list, zip(*stages, strict=True)))


def one_stage_seconds(
    units: UnitSeconds, layers: int, *, first: bool, last: bool
) -> tuple[float, float, float]:
    """F, B and W of a stage with so many layers; the first has the embedding, and the last the logits."""
    ahead, weight = units.layer.forward_seconds, units.layer.weight
    start, end = first * units.embedding / 2, last * units.logits / 3
    return (
        layers * ahead + start + end,
        layers * (units.layer.backward_seconds - weight) + end,
        layers * weight + start + end,
    )


def plan_schedule(plan: Plan) -> Schedule:
    """The plan's schedule, as lists of actions."""
    return make_schedule(plan.schedule, plan.pp, plan.microbatches, plan.chunks)


def run_schedule(
    shape: ModelShape, plan: Plan, hardware: Hardware, units: UnitSeconds | None = None
) -> Execution:
    """The plan's microbatches through its schedule, without transfers."""
    times = stage_durations(shape, plan, hardware, units)
    return simulate(plan_schedule(plan), times.forward, times.backward_input, times.backward_weight)
