"""Memory and time of whatever can be priced: a transformer by its shape, any other module by its traces."""

from __future__ import annotations

from dataclasses import replace

from simulator.any_module.memory import traced_memory
from simulator.any_module.stages import stage_pieces
from simulator.any_module.step import traced_step
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.inputs.traced import TracedModel, Traces
from simulator.ledgers.memory import MemoryBreakdown
from simulator.predict.memory import plan_memory
from simulator.predict.step import StepCost, step_cost

Model = ModelShape | Traces


def check(model: Model, plan: Plan) -> None:
    """Raise a ValueError if the model cannot be split as the plan says."""
    if isinstance(model, Traces):
        stage_pieces(_under(model, plan), plan)
    else:
        plan.check(model)


def memory_of(model: Model, plan: Plan, hardware: Hardware | None = None) -> list[MemoryBreakdown]:
    """The peak of every pipeline rank."""
    if isinstance(model, Traces):
        return traced_memory(_under(model, plan), plan, hardware)
    return plan_memory(model, plan, hardware)


def step_of(model: Model, plan: Plan, hardware: Hardware) -> StepCost:
    """Seconds of a step, by part."""
    if isinstance(model, Traces):
        cost = traced_step(_under(model, plan), plan, hardware)
        whole = sum(model(plan.micro_batch).flops)  # what every tensor-parallel rank repeats counts once
        return replace(cost, model_flops=plan.dp * plan.microbatches * whole)
    return step_cost(model, plan, hardware)


def _under(model: Traces, plan: Plan) -> TracedModel:
    return model(plan.micro_batch, plan.tp, plan.itemsize)
