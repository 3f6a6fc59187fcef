"""``python -m simulator memory | step | validate``: a shape and a plan in, tables or JSON out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from math import inf

import click

from simulator.inputs.hardware import GPUS, Hardware, find_device
from simulator.inputs.plan import ATTENTION, OFFLOAD, OPTIMIZERS, PRECISIONS, RECOMPUTE, Plan
from simulator.inputs.shape import ACTIVATIONS, MODELS, PARAMETERS_ONLY, ModelShape
from simulator.ledgers.memory import MemoryBreakdown
from simulator.predict.memory import model_states, plan_memory

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
    click.option("--microbatches", type=int, help="In a step; if not given, as many as fill the pipeline."),
    click.option("--schedule", help="As in timeline; 1f1b, or interleaved-1f1b with --chunks, if not given."),
    click.option("--chunks", type=int, help="Model chunks on a pipeline rank."),
    click.option("--stage-layers", help="Layers of every chunk in the model's order: 3,4,4,3."),
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


def _plan_values(values: dict) -> dict:
    given = _given(Plan, values)
    if "stage_layers" in given:
        try:
            given["stage_layers"] = tuple(int(number) for number in given["stage_layers"].split(","))
        except ValueError:
            raise ValueError(
                f"stage layers must be numbers with commas, not {given['stage_layers']}"
            ) from None
    return given


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
@click.option("--parameters", type=float, help="Model states of this many parameters, without a shape.")
@JSON
def memory(parameters: float | None, as_json: bool, **values: object) -> None:
    """Bytes that each pipeline rank must hold, by category."""
    plan = Plan(**_plan_values(values))
    if parameters is None:
        parameters = PARAMETERS_ONLY.get(values["model"])
    if parameters is None:
        shape = read_shape(values)
        ranks = plan_memory(shape, plan)
    elif not 0 < parameters < inf:
        raise ValueError(f"parameters must be a number more than 0, not {parameters:g}")
    else:
        ranks = [model_states(parameters / (plan.tp * plan.pp), plan)]
    entries = [_bytes(rank) for rank in ranks]
    if as_json:
        click.echo(json.dumps({"ranks": entries, "peak_total": max(entry["total"] for entry in entries)}))
        return
    unit, size = ("GB", 1e9) if max(entry["total"] for entry in entries) >= 1e9 else ("MB", 1e6)
    click.echo(f"{unit + ' on rank':18}" + "".join(f"{rank:>9}" for rank in range(len(entries))))
    for name in entries[0]:
        numbers = "".join(f"{entry[name] / size:9.2f}" for entry in entries)
        click.echo(f"{name.replace('_', ' '):18}{numbers}")


def _bytes(breakdown: MemoryBreakdown) -> dict[str, int]:
    """Whole bytes; the total is the sum of what is printed."""
    entry = {name: round(size) for name, size in breakdown.as_dict().items()}
    return entry | {"total": sum(entry.values())}


@click.command()
@options(SHAPE_OPTIONS, PLAN_OPTIONS)
@click.option("--gpu", required=True, help=f"{', '.join(GPUS)}, or your own: FLOP/s,memory B/s,link B/s.")
@click.option("--gpus", type=int, help="How many devices there are; the plan must not need more.")
@click.option("--global-batch", type=int, required=True, help="Sequences in one step, on all ranks.")
@JSON
def step(gpu: str, gpus: int | None, global_batch: int, as_json: bool, **values: object) -> None:
    """Seconds of one training step, by part, with MFU and HFU."""
    from simulator.predict.step import check_fits, step_cost

    hardware, shape = read_hardware(gpu), read_shape(values)
    given = {"attention": hardware.attention} | _plan_values(values)
    plan = Plan(**(given | {"microbatches": _microbatches(global_batch, **given)}))
    if gpus is not None and plan.ranks > gpus:
        raise ValueError(f"dp x tp x pp x cp must be at most the {gpus} devices there are, not {plan.ranks}")
    plan.check(shape)
    check_fits(shape, plan, hardware)
    cost = step_cost(shape, plan, hardware)
    numbers = {name: getattr(cost, name) for name in ("seconds", "tflops_per_gpu", "mfu", "hfu")}
    if as_json:
        click.echo(json.dumps(numbers | {"parts": cost.parts}))
        return
    click.echo(f"{plan.ranks} x {hardware.name}: {cost.seconds:.4g} s a step of {global_batch} sequences")
    click.echo(f"MFU {cost.mfu:.1%}, HFU {cost.hfu:.1%}, {cost.tflops_per_gpu:.4g} TFLOP/s on each device")
    for name, seconds in sorted(cost.parts.items(), key=lambda part: -part[1]):
        if not seconds:
            continue
        click.echo(f"  {name.replace('_', ' '):22}{seconds:10.4g} s {seconds / cost.seconds:7.1%}")


def read_hardware(text: str) -> Hardware:
    """A known device, or three numbers: FLOP/s, bytes a second to its memory, bytes a second to the others."""
    if "," not in text:
        return find_device(text)
    try:
        flops, memory_bandwidth, link_bandwidth = (float(number) for number in text.split(","))
    except ValueError:
        raise ValueError(f"your own gpu is three numbers with commas, not {text}") from None
    return Hardware.of(flops, memory_bandwidth, link_bandwidth)


def _microbatches(
    global_batch: int, dp: int = 1, micro_batch: int = 1, microbatches: int | None = None, **_: object
) -> int:
    """Global batch / (dp x microbatch), which must come out even, and as ``microbatches`` says, if it does."""
    each = Plan(dp=dp, micro_batch=micro_batch).dp * micro_batch  # refuses a zero before it divides
    if global_batch < 1 or global_batch % each:
        raise ValueError(f"global batch must be a multiple of dp x micro-batch = {each}, not {global_batch}")
    if microbatches not in (None, global_batch // each):
        raise ValueError(
            f"a global batch of {global_batch} makes {global_batch // each} microbatches, not {microbatches}"
        )
    return global_batch // each


@click.command()
@JSON
def validate(as_json: bool) -> None:
    """Every published row beside its prediction; exit code 1 if the errors are above their targets."""
    from simulator.published import TARGETS, published_rows

    rows = [
        {
            "source": row.source,
            "name": row.name,
            "kind": row.kind,
            "quantity": row.quantity,
            "printed": row.printed,
            "predicted": row.predicted(),
            "error": row.error(),
        }
        for row in published_rows()
    ]
    summary = {}
    for kind in TARGETS:
        errors = [abs(row["error"]) for row in rows if row["kind"] == kind]
        summary[kind] = {"rows": len(errors), "mean": sum(errors) / len(errors), "worst": max(errors)}
    if as_json:
        click.echo(json.dumps({"rows": rows, "summary": summary}))
    else:
        for row in rows:
            click.echo(
                f"{row['source']:31}{row['name']:37}{row['quantity']:15}"
                f"{row['printed']:>11.4g}{row['predicted']:>11.4g}{row['error']:>+8.1%}"
            )
        for kind, found in summary.items():
            mean, worst = TARGETS[kind]
            click.echo(
                f"{kind}: {found['rows']} rows, mean error {found['mean']:.1%} (at most {mean:.0%}), "
                f"worst {found['worst']:.1%} (at most {worst:.0%})"
            )
    if any(s["mean"] > TARGETS[kind][0] or s["worst"] > TARGETS[kind][1] for kind, s in summary.items()):
        raise SystemExit(1)
