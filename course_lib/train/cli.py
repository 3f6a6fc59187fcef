"""The command line: reads and checks everything before a rank is started."""

from __future__ import annotations

import os
import sys
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from course_lib.train.config import TASKS, Config, read_config, shipped
from course_lib.train.terminals import ADDRESS, become_rank, check_rank
from simulator.cli.options import Command, flag, options
from simulator.cli.parameter_types import AtLeast, Output, PositiveNumber, Whole
from simulator.cli.question import read_hardware, read_plan
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.planner.plan_text import read_plan_text

if TYPE_CHECKING:  # torch takes seconds to import: help and bad input do without
    from course_lib.train.job import Job

DEFAULT_BATCH = 16
SIZES = ("layers", "hidden", "heads")


def use_config(ctx: click.Context, _option: click.Option, name: str | None) -> Config:
    """What the file says becomes the default of the options, so the command line goes before the file."""
    try:
        config = Config() if name is None else read_config(name)
    except ValueError as error:
        _end(str(error), 2)
    ctx.default_map = config.options
    return config


CONFIG = click.option(
    "--config",
    metavar="FILE",
    is_eager=True,
    callback=use_config,
    help="A TOML file that says all of this, and the tuning, placement and compression; options go before it. Or the "
    f"name of one that comes with the course: {', '.join(shipped())}.",
)
MODEL_OPTIONS = [
    click.option(
        "--model", type=click.Choice(list(TASKS)), default="gpt", show_default=True, help="What to train."
    ),
    click.option(
        "--task",
        type=click.Choice(list(dict.fromkeys(task for tasks in TASKS.values() for task in tasks))),
        help="What it learns: bert from which package a docstring comes, the words that are masked, or whether two "
        "words were swapped.",
    ),
    click.option(
        "--weights",
        metavar="FOLDER",
        help="Start from pretrained weights, which say what model it is and how large: a folder as Hugging Face "
        "saves it, a name on the hub, or minilm, the installed package.",
    ),
    click.option("--layers", type=AtLeast(1), metavar="N", default=4, show_default=True, help="Layers."),
    click.option(
        "--hidden",
        type=AtLeast(1),
        metavar="N",
        default=128,
        show_default=True,
        help="Width of the model.",
    ),
    click.option(
        "--heads", type=AtLeast(1), metavar="N", default=4, show_default=True, help="Attention heads."
    ),
    click.option(
        "--sequence",
        type=AtLeast(3),
        metavar="N",
        default=64,
        show_default=True,
        help="Tokens of a sample.",
    ),
]
PLAN = click.option(
    "--plan",
    metavar="KEY=VALUE,…",
    help="The keys are the fields of the simulator's Plan: dp=2,tp=2,pp=2,zero=1,sequence_parallel=yes, "
    "schedule=zb-h1,recompute=full. One rank if not given. On a CPU precision is fp32 unless the plan says otherwise.",
)
BATCH = click.option(
    "--global-batch",
    type=Whole(),
    metavar="N",
    help=f"Samples in a step, on all ranks: {DEFAULT_BATCH}, or what the plan's microbatches make.",
)
TRAINING_OPTIONS = [
    click.option(
        "--steps", type=AtLeast(1), metavar="N", default=20, show_default=True, help="Steps in all."
    ),
    click.option(
        "--lr",
        type=PositiveNumber(),
        metavar="X",
        default=1e-3,
        show_default=True,
        help="Learning rate.",
    ),
    click.option(
        "--clip",
        type=PositiveNumber(infinite=True),
        metavar="X",
        default=1.0,
        show_default=True,
        help="Largest gradient norm; inf clips nothing.",
    ),
    click.option(
        "--balance-loss",
        type=PositiveNumber(),
        metavar="X",
        help="Weight of the loss that keeps experts equally busy; without it there is none. DeepSeek-V3 took 0.0001.",
    ),
    click.option(
        "--capacity-factor",
        type=PositiveNumber(),
        metavar="X",
        help="An expert takes at most X times its fair share of a sequence, the first tokens; without it all.",
    ),
    click.option(
        "--seed",
        type=AtLeast(0),
        metavar="N",
        default=0,
        show_default=True,
        help="Of the model and of the samples' order; the losses are the same under every plan.",
    ),
]
CHECKPOINT_OPTIONS = [
    click.option(
        "--checkpoint",
        type=Output(folder=True),
        metavar="FOLDER",
        help="Save the last step here. All machines must see it.",
    ),
    click.option("--save-every", type=AtLeast(1), metavar="N", help="Save every N steps, too."),
    click.option(
        "--resume",
        is_flag=True,
        help="Go on from the newest whole save in --checkpoint, under this plan or another.",
    ),
]
RANK_OPTIONS = [
    click.option(
        "--world",
        type=AtLeast(1),
        metavar="N",
        help="Ranks in all: what the plan makes, or dp if it is empty.",
    ),
    click.option(
        "--rank",
        type=AtLeast(0),
        metavar="R",
        help="This process is rank R; start the others yourself, in other terminals or on other machines.",
    ),
    click.option(
        "--address", default=ADDRESS, show_default=True, metavar="HOST:PORT", help="Where --rank 0 is found."
    ),
]
OTHER_OPTIONS = [
    click.option(
        "--gpu",
        metavar="NAME",
        help="The device that MFU is a part of; found out if not given. As in python -m simulator.",
    ),
    click.option(
        "--log-every",
        type=AtLeast(1),
        metavar="N",
        help="Steps between two lines; about twenty lines if not given.",
    ),
    click.option(
        "--profile", type=Output(folder=True), metavar="FOLDER", help="Write each rank's trace here."
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="A line of JSON a step: step, loss, grad_norm, tokens; a last line with the peak memory and traffic of "
        "every rank.",
    ),
]


@click.command(cls=Command, context_settings={"help_option_names": ["-h", "--help"]})
@options(
    {
        "File": [CONFIG],
        "Model": MODEL_OPTIONS,
        "Plan": [PLAN, BATCH],
        "Training": TRAINING_OPTIONS,
        "Checkpoints": CHECKPOINT_OPTIONS,
        "Ranks": RANK_OPTIONS,
        "Other": OTHER_OPTIONS,
    }
)
@click.pass_context
def main(ctx: click.Context, **values: Any) -> None:
    """Train a model of the course on real text, spread over ranks as a plan says.

    gpt, llama, mixtral and deepseek learn the next byte of Python's
    documentation, bert from which package a docstring comes or which words are
    masked, bart to undo noise. mixtral and deepseek have experts, which ep deals
    out. The command starts its own ranks. Under torchrun its processes are the
    ranks, on one machine or on many. With --rank each of your terminals is one.

    \b
    python -m course_lib.train --model gpt --plan dp=2,tp=2,pp=2
    python -m course_lib.train --config bart-denoising
    python -m course_lib.train --config bart-denoising --world 2 --rank 0
    python -m course_lib.train --weights minilm --task word-order --plan dp=2
    torchrun --nproc-per-node 8 -m course_lib.train --plan dp=2,tp=2,pp=2

    The exit code is 0 when all steps are done, 1 when a rank failed, and 2 when
    there is something that cannot be trained.
    """
    try:
        _take_from_weights(ctx, values)
        job, hardware = _read(values)
    except ValueError as error:
        _end(str(error), 2)
    if values["rank"] is not None:
        become_rank(job.plan.ranks, values["rank"], values["address"])
    from course_lib.train.start import start

    try:
        sys.exit(start(job, hardware, as_json=values["as_json"], log_every=values["log_every"]))
    except KeyboardInterrupt:
        _end("stopped; nothing is left running", 130)


def _take_from_weights(ctx: click.Context, values: dict[str, Any]) -> None:
    """The model is what the folder says, so nobody else may say how large it is."""
    if values["weights"] is None:
        return
    said = {
        name for name in ("model", *SIZES) if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    if sizes := said & {*SIZES}:
        raise ValueError(f"{flag(min(sizes))} is what the folder in --weights says: leave it out")
    from course_lib.train.material.pretrained import open_weights  # imports torch

    model = open_weights(values["weights"]).model
    if "model" in said and values["model"] != model:
        raise ValueError(f"--weights {values['weights']} holds a {model}, and --model is {values['model']}")
    values["model"] = model


def _read(values: dict[str, Any]) -> tuple[Job, Hardware | None]:
    """What is to be done, checked as far as it can be without ranks."""
    config, world = values["config"], values["world"]
    asked = {} if values["plan"] is None else read_plan_text(values["plan"])
    if world is not None and not asked.keys() & {"dp", "tp", "pp", "cp"}:
        asked["tp" if config.placement else "dp"] = world
    plan = _plan(asked, values["global_batch"])
    if world is not None and plan.ranks != world:
        raise ValueError(f"world must be the {plan.ranks} ranks of the plan, not {world}")
    if values["rank"] is not None:
        check_rank(world, values["rank"], values["address"])
    tasks = TASKS[values["model"]]
    if values["task"] not in (None, *tasks):
        raise ValueError(f"--task must be {' or '.join(tasks)} for {values['model']}, not {values['task']}")
    hardware = None if values["gpu"] is None else read_hardware(values["gpu"])
    for name in ("resume", "save_every"):
        if values[name] and values["checkpoint"] is None:
            raise ValueError(f"{flag(name)} needs --checkpoint, the folder that it is about")
    from course_lib.train.job import Job  # imports torch
    from course_lib.train.start import checked_job

    settings = {field.name: values[field.name] for field in fields(Job) if field.name in values}
    del settings["plan"]
    settings |= {"task": values["task"] or tasks[0], "tuning": config.tuning}
    settings |= {"placement": config.placement, "compression": config.compression}
    return checked_job(plan, settings, "precision" in asked), hardware


def _plan(asked: dict[str, Any], global_batch: int | None) -> Plan:
    """As ``python -m simulator step`` reads it, with a batch that is the same under every plan."""
    if global_batch is None and "microbatches" not in asked:
        global_batch = DEFAULT_BATCH
    plan = read_plan({**asked, "global_batch": global_batch}, None)
    return replace(plan, attention=asked.get("attention"))  # what a device would use is left open


def _end(sentence: str, code: int) -> NoReturn:
    """Under torchrun all ranks come here, and rank 0 prints for all of them."""
    if os.environ.get("RANK", "0") == "0":
        click.echo(f"Error: {sentence}" if code == 2 else sentence, err=True)
    sys.exit(code)
