"""The options of the commands: one for each field of a shape and of a plan, and what becomes of them.

Every field of ``ModelShape`` and ``Plan`` is an option of the same name. A field without a text in ``HELP`` is
explained by its dataclass's docstring, so that a new field needs no change here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import Field, fields
from typing import Any

import click

from simulator.cli.parameter_types import Whole
from simulator.inputs.known_models import MODELS, PARAMETERS_ONLY
from simulator.inputs.placement import SCHEDULES
from simulator.inputs.plan import (
    ATTENTION,
    CONTEXT,
    DISPATCH,
    GRADIENTS,
    LOSS,
    OFFLOAD,
    OPTIMIZERS,
    OVERLAP,
    PRECISIONS,
    RECOMPUTE,
    SCALING,
    Plan,
)
from simulator.inputs.shape import ACTIVATIONS, ModelShape

CHOICES = {
    "activation": ACTIVATIONS,
    "schedule": tuple(SCHEDULES),
    "recompute": RECOMPUTE,
    "attention": ATTENTION,
    "optimizer": tuple(OPTIMIZERS),
    "precision": tuple(PRECISIONS),
    "offload": OFFLOAD,
    "gradients": GRADIENTS,
    "loss": LOSS,
    "context": CONTEXT,
    "dispatch": DISPATCH,
    "scaling": SCALING,
}
MOST_COLUMNS = 32  # of an option with its choices beside its text; longer lists go into the text
FLAGS = {"tied": "--tied/--untied"}  # every other flag is --name/--no-name
HELP = {
    "layers": "Layers (l).",
    "hidden": "Width of the model (h).",
    "heads": "Attention heads (a).",
    "vocab": "Tokens of the vocabulary (V).",
    "sequence": "Tokens of a sequence (s).",
    "kv_heads": "Heads of keys and values, if fewer than --heads.",
    "ffn": "Inner width of the MLP; 4 x hidden if not given.",
    "activation": "Of the MLP.",
    "tied": "Is the output matrix the token embedding's?",
    "learned_positions": "Position embeddings of sequence x hidden.",
    "biases": "Linear layers have biases, norms two vectors.",
    "dropout": "Dropout is on, so its masks are kept.",
    "experts": "Experts in every layer; 1: a dense MLP.",
    "experts_per_token": "Experts that each token visits.",
    "other_parameters": "Parameters that no other option describes.",
    "decoder_layers": "The last layers, which attend to the others' output, too (T5, BART).",
    "dense_layers": "First layers, whose MLP is dense beside --experts.",
    "q_rank": "Latent attention: numbers that queries are made of; --hidden if not given.",
    "kv_rank": "Latent attention: numbers that keys and values are made of.",
    "rope_dim": "Latent attention: rotated columns of a head.",
    "value_dim": "Latent attention: columns of a head's values.",
    "window": "Tokens that one attends to; all before it if not given.",
    "full_layers": "Layers without a window, beside those with one.",
    "next_tokens": "Tokens predicted beside the next one, each by a layer and an output more.",
    "norm_biases": "Norms have two vectors; as --biases if not given.",
    "dp": "Data-parallel ranks.",
    "tp": "Tensor-parallel ranks.",
    "pp": "Pipeline-parallel ranks.",
    "cp": "Context-parallel ranks.",
    "ep": "Expert-parallel ranks; they lie inside --dp.",
    "micro_batch": "Sequences in one microbatch (b).",
    "microbatches": "Microbatches in a step; if not given, as many as fill the pipeline. Interleaving takes any; "
    "Megatron-LM takes multiples of --pp.",
    "schedule": "Order of the pipeline's work; 1f1b, or interleaved-1f1b with --chunks.",
    "chunks": "Parts of the model on each pipeline rank (v); 1, or what the schedule is made for.",
    "stage_layers": "Layers of every chunk in the model's order: 3,4,4,3.",
    "sequence_parallel": "Split norms and dropout along the sequence.",
    "zero": "ZeRO stage: 1 shards optimizer states, 2 gradients too, 3 parameters too.",
    "shard": "Ranks that share one copy of the states; all dp x cp if not given.",
    "prefetch": "Units that ZeRO 3 gathers ahead.",
    "recompute": "What backward computes again: nothing, attention's core, or layers; offload: it waits on the host.",
    "attention": "Unfused keeps the scores; if not given, what code for --gpu uses.",
    "optimizer": "It decides how many states a parameter has.",
    "precision": "Of parameters and activations; mixed keeps fp32 master weights.",
    "offload": "What the host's memory holds.",
    "head_dim": "Width of one head; hidden / heads if not given.",
    "gradients": "fp32 keeps and sends 4 bytes a parameter beside 16-bit parameters.",
    "overlap": f"Traffic beside computation: none, or of {','.join(OVERLAP)}; gradients if not given.",
    "loss": "Fused leaves the logits in 16 bits.",
    "context": "How context-parallel ranks bring queries and keys together.",
    "ulysses": "Neighbours among the context-parallel ranks that deal out heads by all-to-all.",
    "zigzag": "A context-parallel rank has a piece from either end of the sequence, for equal work.",
    "dispatch": "How tokens travel to their experts.",
    "node_limit": "Most nodes that a token is sent to; if not given, every copy travels by itself.",
    "imbalance": "Tokens of the busiest expert-parallel rank, as a multiple of the mean.",
    "scaling": "What shares one scale in fp8.",
}


def options(groups: dict[str, list[Callable]]) -> Callable:
    """Decorate a command with options, in the groups in which ``Command`` prints their help."""

    def decorate(function: Callable) -> Callable:
        for option in reversed([option for group in groups.values() for option in group]):
            function = option(function)
        named: dict[str, list[str]] = {}
        parameters = iter(
            reversed(function.__click_params__)
        )  # the decorators ran from the last to the first
        for title, group in groups.items():
            named[title] = [next(parameters).name for _ in group]
        function.help_groups = named
        return function

    return decorate


class Command(click.Command):
    """A command whose help lists its options in groups."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.help_groups: dict[str, list[str]] = getattr(self.callback, "help_groups", {})

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.obj is not None:  # the program around it gives the model: `course simulate`
            ctx.params["traces"] = ctx.obj
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {option.name: option.get_help_record(ctx) for option in self.get_params(ctx)}
        shown = {name: record for name, record in records.items() if name and record}
        groups = dict(self.help_groups)
        named = {name for names in groups.values() for name in names}
        last = list(groups)[-1] if groups else "Options"
        groups[last] = [*groups.get(last, []), *(name for name in shown if name not in named)]
        for title, names in groups.items():
            with formatter.section(title):
                formatter.write_dl([shown[name] for name in names], col_max=26)


# ---- options from fields ----------------------------------------------------------------------------------


def field_options(cls: type) -> list[Callable]:
    """One option for each field of a dataclass."""
    return [_option(cls, field) for field in fields(cls)]


def _option(cls: type, field: Field) -> Callable:
    flag, kind = "--" + field.name.replace("_", "-"), str(field.type).removesuffix(" | None")
    text = HELP.get(field.name) or _explained(cls, field.name)
    if kind == "bool":
        names = FLAGS.get(field.name, f"{flag}/--no-{flag[2:]}")
        shown = names.split("/")[0 if field.default else 1][2:]
        return click.option(names, field.name, default=None, help=f"{text}  [default: {shown}]")
    if isinstance(field.default, str | int):
        text += f"  [default: {field.default}]"
    if field.name in CHOICES:
        choice = click.Choice(CHOICES[field.name])
        short = len("|".join(choice.choices)) + len(flag) <= MOST_COLUMNS
        text = text if short else f"{', '.join(choice.choices)}. {text}"
        return click.option(flag, type=choice, metavar=None if short else "NAME", help=text)
    types = {"int": (Whole(), "N"), "float": (float, "X"), "str": (str, "NAME")}
    type_, metavar = types.get(kind, (str, "A,B,…"))
    return click.option(flag, type=type_, metavar=metavar, help=text)


def _explained(cls: type, name: str) -> str:
    """What the Args section of the class's docstring says of a field, on one line and without its markup."""
    for entry in re.split(r"\n {4}(?=\w)", (inspect.getdoc(cls) or "").partition("Args:")[2]):
        names, _, text = entry.partition(":")
        if name in [part.strip() for part in names.split(",")]:
            return " ".join(text.replace("``", "").replace('"', "").split())
    return ""


SHAPE_OPTIONS = [
    click.option("--model", metavar="NAME", help=f"A known model: {', '.join([*MODELS, *PARAMETERS_ONLY])}."),
    click.option(
        "--config", metavar="FILE", help="A model's config.json, as Hugging Face's transformers writes it."
    ),
    *field_options(ModelShape),
]
PLAN_OPTIONS = field_options(Plan)
PLAN = click.option(
    "--plan",
    "plan_text",
    metavar="KEY=VALUE,…",
    help="A plan in one line, as course_lib.train takes it: dp=2,tp=2,zero=1.",
)
GPU = click.option(
    "--gpu",
    metavar="NAME",
    help="A known device (h100), a hardware file (mine.toml), or its FLOP/s,memory B/s,link B/s.",
)
HARDWARE_OPTIONS = [
    GPU,
    click.option("--gpus", type=Whole(), metavar="N", help="Devices there are; the plan must use them all."),
]
BATCH = click.option("--global-batch", type=Whole(), metavar="N", help="Sequences in a step, on all ranks.")
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, as answers.schema.json describes it."
)


def given(values: dict[str, Any], names: Iterable[str] | type) -> dict[str, Any]:
    """The values of the command line that were given, out of ``names`` or of a dataclass's fields."""
    names = {field.name for field in fields(names)} if isinstance(names, type) else set(names)
    return {name: value for name, value in values.items() if name in names and value is not None}


def flag(name: str) -> str:
    """``micro_batch`` -> ``--micro-batch``."""
    return "--" + name.replace("_", "-")
