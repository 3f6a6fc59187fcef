"""``python -m simulator memory``: what each rank must hold, and whether it fits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import click

from simulator.any_module.price import memory_of
from simulator.cli.answer import print_json
from simulator.cli.options import (
    BATCH,
    HARDWARE_OPTIONS,
    JSON,
    PLAN,
    PLAN_OPTIONS,
    SHAPE_OPTIONS,
    Command,
    flag,
    options,
)
from simulator.cli.question import Question, read_question
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.ledgers.memory import MemoryBreakdown
from simulator.planner.fitting import changes_that_fit, largest_micro_batch
from simulator.predict.memory import model_states

UNITS = {"ranks": "bytes", "peak_total": "bytes", "capacity": "bytes", "largest_micro_batch": "sequences"}
PARAMETERS = click.option(
    "--parameters", type=float, metavar="X", help="Model states of this many parameters, without a shape."
)


@click.command(cls=Command)
@options(
    {
        "Model": [*SHAPE_OPTIONS, PARAMETERS],
        "Plan": [PLAN, BATCH, *PLAN_OPTIONS],
        "Device": HARDWARE_OPTIONS,
        "Other": [JSON],
    }
)
def memory(as_json: bool, **values: Any) -> None:
    """Bytes that each pipeline rank must hold, by category, and whether they fit.

    With --gpu it also says how large a microbatch fits, or which one change would make the plan fit.

    \b
    python -m simulator memory --model llama-3-8b --dp 8 --zero 3 --gpu h100
    python -m simulator memory --parameters 7.5e9 --dp 64 --zero 1
    """
    question = read_question(values)
    ranks = ledger(question)
    peak = max(rank.occupied for rank in ranks)
    hardware = question.hardware
    fits = None if hardware is None else peak <= hardware.memory
    largest = _largest_micro_batch(question, hardware) if hardware and fits else None
    remedies = _remedies(question, hardware) if hardware and not fits else []
    entries = [_bytes(rank) for rank in ranks]
    if as_json:
        answer = {
            "ranks": entries,
            "peak_total": max(entry["total"] for entry in entries),
            "capacity": hardware.memory if hardware else None,
            "fits": fits,
            "largest_micro_batch": largest,
            "fits_with": remedies,
        }
        print_json("memory", UNITS, answer, question)
        return
    unit, size = ("GB", 1e9) if peak >= 1e9 else ("MB", 1e6)
    click.echo(f"{unit + ' on rank':18}" + "".join(f"{rank:>9}" for rank in range(len(entries))))
    for name in entries[0]:
        numbers = "".join(f"{entry[name] / size:9.2f}" for entry in entries)
        click.echo(f"{name.replace('_', ' '):18}{numbers}")
    if hardware is not None:
        click.echo(_verdict(hardware, peak, largest, remedies))


def ledger(question: Question) -> list[MemoryBreakdown]:
    """One entry a pipeline rank; of a model known by its parameters alone, one device's model states."""
    plan = question.plan
    if question.shape is None:
        return [model_states(question.parameters / (plan.tp * plan.pp), plan)]
    return memory_of(question.shape, plan, question.hardware)


def _bytes(breakdown: MemoryBreakdown) -> dict[str, int]:
    """Whole bytes; the total is the sum of the tensors' bytes, without what is reserved beyond them."""
    entry = {name: round(size) for name, size in breakdown.as_dict().items()}
    return entry | {"total": sum(entry.values()) - entry["reserved"]}


def _verdict(hardware: Hardware, peak: float, largest: int | None, remedies: list[str]) -> str:
    name, capacity = hardware.name, hardware.memory
    if peak <= capacity:
        more = f"; the largest --micro-batch that fits is {largest}" if largest else ""
        return f"fits: {peak / 1e9:.1f} GB of the {capacity / 1e9:.0f} GB of {name}{more}"
    how = f"it would with {' or '.join(remedies)}" if remedies else "no single change of the plan helps"
    return f"does not fit: {peak / 1e9:.1f} GB, and {name} has {capacity / 1e9:.0f} GB; {how}"


def _largest_micro_batch(question: Question, hardware: Hardware) -> int | None:
    """The most sequences in a microbatch that fit; None where their number plays no part, or costs a trace each."""
    if not isinstance(question.shape, ModelShape):
        return None
    return largest_micro_batch(question.plan, partial(_changed, question), hardware.memory)


def _remedies(question: Question, hardware: Hardware) -> list[str]:
    """Single changes after which the plan fits, the smallest of each kind, as options."""
    known = question.shape is not None
    changes = changes_that_fit(question.plan, partial(_changed, question), hardware.memory, activations=known)
    return [f"{flag(name)} {value}" for name, value in (next(iter(change.items())) for change in changes)]


def _changed(question: Question, plan: Plan) -> list[MemoryBreakdown]:
    return ledger(replace(question, plan=plan))
