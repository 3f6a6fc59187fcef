"""A plan's pipeline stages as the engine and the replay take them: how long each works, what each keeps.

This is the bridge from ``ModelShape``, ``Plan`` and ``Hardware`` to any ``Schedule``, zero-bubble ones included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.ledgers.memory import MemoryBreakdown
from simulator.pipeline.engine import simulate
from simulator.pipeline.execution import Execution
from simulator.pipeline.schedules import make_schedule
from simulator.predict.layer_time import (
    embedding_seconds,
    layer_seconds,
    logits_seconds,
    recompute_seconds,
    weight_seconds,
)
from simulator.predict.memory import embedding_bytes, head_bytes, kept_layer_bytes, rank_memory, weight_bytes
from simulator.predict.memory_over_time import replay


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of one microbatch, one entry a stage: F, B (with what it recomputes) and W."""

    forward: list[float]
    backward_input: list[float]
    backward_weight: list[float]


def stage_durations(shape: ModelShape, plan: Plan, hardware: Hardware) -> StageSeconds:
    """How long each stage works, embedding and logits included: of their time a half and a third are forward."""
    plan.check(shape)
    ahead, back = (sum(parts.values()) for parts in layer_seconds(shape, plan, hardware))
    weight = weight_seconds(shape, plan, hardware)
    of_input = back - weight + recompute_seconds(shape, plan, hardware)
    layers = plan.layers_by_stage(shape)
    seconds = StageSeconds(
        [n * ahead for n in layers], [n * of_input for n in layers], [n * weight for n in layers]
    )
    embedding, logits = embedding_seconds(shape, plan, hardware), logits_seconds(shape, plan, hardware)
    seconds.forward[0] += embedding / 2
    seconds.backward_weight[0] += embedding / 2
    for part in (seconds.forward, seconds.backward_input, seconds.backward_weight):
        part[-1] += logits / 3
    return seconds


def stage_bytes(shape: ModelShape, plan: Plan) -> tuple[list[float], list[float]]:
    """(saved by F, of that kept from B until W) of one microbatch, one entry a stage."""
    plan.check(shape)
    layers = plan.layers_by_stage(shape)
    saved = [n * kept_layer_bytes(shape, plan) for n in layers]
    kept = [n * weight_bytes(shape, plan) for n in layers]
    saved[0] += embedding_bytes(shape, plan)
    saved[-1] += head_bytes(shape, plan)
    kept[-1] += head_bytes(shape, plan)
    return saved, kept


def run_schedule(shape: ModelShape, plan: Plan, hardware: Hardware, name: str) -> Execution:
    """The plan's microbatches through the schedule of that name, without transfers."""
    schedule = make_schedule(name, plan.pp, plan.microbatches, plan.chunks)
    times = stage_durations(shape, plan, hardware)
    return simulate(schedule, times.forward, times.backward_input, times.backward_weight)


def schedule_memory(shape: ModelShape, plan: Plan, name: str) -> list[MemoryBreakdown]:
    """The peak of every pipeline rank under the schedule of that name, F, B and W taking equally long."""
    saved, kept = stage_bytes(shape, plan)
    execution = simulate(make_schedule(name, plan.pp, plan.microbatches, plan.chunks))
    peaks = [history.peak.bytes for history in replay(execution, saved, kept)]
    rest = [rank_memory(shape, plan, rank) for rank in range(plan.pp)]
    return [replace(states, activations=peak) for states, peak in zip(rest, peaks, strict=True)]
