"""One training step over time: the plan's schedule with predicted durations, then gradients and optimizer.

``step_cost`` adds up what the slowest rank does; here every pipeline rank has its spans, for a picture or a trace.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.ledgers.timeline import Span, Timeline
from simulator.pipeline.engine import simulate
from simulator.pipeline.execution import Execution
from simulator.predict.stages import plan_schedule, stage_durations, unit_seconds
from simulator.predict.step import StepCost, stage_seconds, step_cost, transfer_seconds


@dataclass(frozen=True)
class StepTimeline:
    """A step as the engine runs it.

    Args:
        pipeline: forwards and backwards of all microbatches, with their transfers, in seconds.
        timeline: the same, and behind it what follows once a step. One rank stands for all those that hold the
            same stages.
        cost: ``step_cost`` of the same plan. Its closed form of 1F1B's bubble is exact for even stages, so that its
            seconds differ a little from ``timeline.makespan`` where stages are uneven.
    """

    pipeline: Execution
    timeline: Timeline
    cost: StepCost


def step_timeline(shape: ModelShape, plan: Plan, hardware: Hardware) -> StepTimeline:
    """Predict when every rank does what in one step of ``plan``.

    A rank waits for its own transfers to end, as ``step_cost`` counts them. What a microbatch adds beside its
    kernels (exposed gathers of ZeRO, gradients added up) lengthens its forward by a third and its backward by two.
    """
    plan = plan.on(hardware)
    units = unit_seconds(shape, plan, hardware)
    times = stage_durations(shape, plan, hardware, units)
    cost = step_cost(shape, plan, hardware)
    layers = plan.layers_by_stage(shape)
    for rank in range(plan.pp):
        parts = stage_seconds(shape, plan, hardware, rank, units)
        for stage in plan.stages_of(rank):
            share = layers[stage] / plan.layers_on(shape, rank)
            times.forward[stage] += share * parts["data_parallel"] / 3
            times.backward_input[stage] += share * parts["data_parallel"] * 2 / 3
            times.backward_weight[stage] += share * parts["gradient_accumulation"]
    transfer = transfer_seconds(shape, plan, hardware) if plan.pp > 1 else 0.0
    durations = times.forward, times.backward_input, times.backward_weight
    pipeline = simulate(plan_schedule(plan), *durations, transfer, blocking=True)
    return StepTimeline(pipeline, Timeline([*pipeline.spans, *_once(plan, cost, pipeline)]), cost)


def _once(plan: Plan, cost: StepCost, pipeline: Execution) -> list[Span]:
    """What every rank does after its last microbatch; gradients wait for the last rank, since their norm does."""
    spans, begin = [], pipeline.end
    for name, lane, seconds in (
        ("gradients", "communication", cost.once["data_parallel"]),
        ("optimizer", "compute", cost.once["optimizer"]),
        ("offload", "copy", cost.once["offload"]),
    ):
        if seconds:
            spans += [Span(rank, lane, name, begin, begin + seconds) for rank in range(plan.pp)]
            begin += seconds
    return spans
