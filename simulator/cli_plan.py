"""``python -m simulator memory | step | validate``: a shape and a plan in, tables or JSON out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace

import click

from simulator.memory import MemoryBreakdown, model_states, plan_memory
from simulator.plan import (
    ATTENTION,
    MODELS,
    OFFLOAD,
    OPTIMIZERS,
    PRECISIONS,
    RECOMPUTE,
    ModelShape,
    Plan,
)
from simulator.shape import ACTIVATIONS, PARAMETERS_ONLY

SHAPE_OPTIONS = [
    click.option("--model", help=f"A known shape: {', '.join([*MODELS, *PARAMETERS_ONLY])}."),
    click.option("--layers", type=int),
    click.option("--hidden", type=int),
    click.option("--heads", type=int),
    click.option("--vocab", type=int),
    click.option("--sequence", type=int),
    click.option("--kv-heads", type=int, help="Heads of keys and values, if fewer than --heads."),
    click.option("--ffn", type=int, help="Inner width of the MLP; 4 x hidden if not given."),
    click.option("--activation", type=click.Choice(ACTIVATIONS)),
    click.option("--tied/--untied", default=None, help="Is the output matrix the embedding's?"),
    click.option("--learned-positions/--no-learned-positions", default=None),
    click.option("--biases/--no-biases", default=None),
    click.option("--dropout/--no-dropout", default=None),
    click.option("--experts", type=int),
    click.option("--experts-per-token", type=int),
]
PLAN_OPTIONS = [
    click.option("--dp", type=int, help="Data-parallel ranks."),
    click.option("--tp", type=int, help="Tensor-parallel ranks."),
    click.option("--pp", type=int, help="Pipeline ranks."),
    click.option("--cp", type=int, help="Context-parallel ranks."),
    click.option("--ep", type=int, help="Expert-parallel ranks, inside --dp."),
    click.option("--micro-batch", type=int, help="Sequences in a microbatch."),
    click.option("--chunks", type=int, help="Model chunks on a pipeline rank."),
    click.option("--sequence-parallel", is_flag=True, default=None),
    click.option("--zero", type=int, help="ZeRO stage, 0 to 3."),
    click.option("--shard", type=int, help="Ranks that share one copy of the states (hybrid sharding)."),
    click.option("--prefetch", type=int, help="Units gathered ahead with ZeRO 3."),
    click.option("--recompute", type=click.Choice(RECOMPUTE)),
    click.option("--attention", type=click.Choice(ATTENTION)),
    click.option("--optimizer", type=click.Choice(list(OPTIMIZERS))),
    click.option("--precision", type=click.Choice(list(PRECISIONS))),
    click.option("--offload", type=click.Choice(OFFLOAD)),
]
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def options(*groups: list[Callable]) -> Callable:
    def decorate(command: Callable) -> Callable:
        for option in reversed([option for group in groups for option in group]):
            command = option(command)
        return command

    return decorate


def _given(cls: type, values: dict) -> dict:
    """Those of the command line's values that are fields of ``cls`` and were given."""
    names = {field.name for field in fields(cls)}
    return {name: value for name, value in values.items() if name in names and value is not None}


def read_shape(values: dict) -> ModelShape:
    given, name = _given(ModelShape, values), values["model"]
    if name is not None:
        if name not in MODELS:
            raise ValueError(f"model must be one of {', '.join(MODELS)}, not {name}")
        return replace(MODELS[name], **given)
    missing = [need for need in ("layers", "hidden", "heads", "vocab", "sequence") if need not in given]
    if missing:
        raise ValueError(f"a shape also needs --{', --'.join(missing)}, or give a --model")
    return ModelShape(**given)


@click.command()
@options(SHAPE_OPTIONS, PLAN_OPTIONS)
@click.option("--microbatches", type=int, help="In one step; as many as fill the pipeline if not given.")
@click.option("--parameters", type=float, help="Model states of this many parameters, without a shape.")
@JSON
def memory(parameters: float | None, as_json: bool, **values: object) -> None:
    """Bytes that each pipeline rank must hold, by category."""
    plan = Plan(**_given(Plan, values))
    if parameters is None:
        parameters = PARAMETERS_ONLY.get(values["model"])
    if parameters is None:
        ranks = plan_memory(read_shape(values), plan)
    elif parameters <= 0:
        raise ValueError(f"parameters must be more than 0, not {parameters:g}")
    else:
        ranks = [model_states(parameters / (plan.tp * plan.pp), plan)]
    entries = [_bytes(rank) for rank in ranks]
    if as_json:
        click.echo(json.dumps({"ranks": entries, "peak_total": max(entry["total"] for entry in entries)}))
        return
    click.echo(f"{'GB on rank':18}" + "".join(f"{rank:>9}" for rank in range(len(entries))))
    for name in entries[0]:
        numbers = "".join(f"{entry[name] / 1e9:9.2f}" for entry in entries)
        click.echo(f"{name.replace('_', ' '):18}{numbers}")


def _bytes(breakdown: MemoryBreakdown) -> dict[str, int]:
    """Whole bytes; the total is the sum of what is printed."""
    entry = {name: round(size) for name, size in breakdown.as_dict().items()}
    return entry | {"total": sum(entry.values())}
