"""A plan's pipeline stages as the engine takes them: how long each works on one microbatch.

This is the bridge from ``ModelShape``, ``Plan`` and ``Hardware`` to any ``Schedule``, zero-bubble ones included.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        layers: one layer of each kind.
        embedding, logits: forward and backward together.
    """

    layers: Mapping[ModelShape, LayerSeconds]
    embedding: float
    logits: float


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of one microbatch, one entry a stage: F, B (with what it recomputes) and W."""

    forward: list[float]
    backward_input: list[float]
    backward_weight: list[float]


def unit_seconds(shape: ModelShape, plan: Plan, hardware: Hardware) -> UnitSeconds:
    """What one layer of each kind, the embedding and the logits take on one microbatch."""
    plan.check(shape)
    layers = {kind: layer_seconds(kind, plan, hardware) for kind in shape.kinds()}
    ends = embedding_seconds(shape, plan, hardware), logits_seconds(shape, plan, hardware)
    return UnitSeconds(layers, *ends)


def stage_durations(
    shape: ModelShape, plan: Plan, hardware: Hardware, units: UnitSeconds | None = None
) -> StageSeconds:
    """How long each stage works. Half of the embedding's time and a third of the logits' count as forward.

    Args:
        units: as ``unit_seconds`` gives them, if they are known already.
    """
    units = units or unit_seconds(shape, plan, hardware)
    layers = plan.kinds_by_stage(shape)
    last = len(layers) - 1
    stages = [one_stage_seconds(units, n, first=s == 0, last=s == last) for s, n in enumerate(layers)]
    return StageSeconds(*map(list, zip(*stages, strict=True)))


def one_stage_seconds(
    units: UnitSeconds, layers: Mapping[ModelShape, int], *, first: bool, last: bool
) -> tuple[float, float, float]:
    """F, B and W of a stage with so many layers of each kind; the first has the embedding, the last the logits."""
    start, end = first * units.embedding / 2, last * units.logits / 3
    each = [(n, units.layers[kind]) for kind, n in layers.items()]
    weight = sum(n * one.weight for n, one in each)
    return (
        sum(n * one.forward_seconds for n, one in each) + start + end,
        sum(n * one.backward_seconds for n, one in each) - weight + end,
        weight + start + end,
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
