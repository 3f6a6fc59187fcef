"""The command line of the profiler."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from simulator.cli.parameter_types import AtLeast

if TYPE_CHECKING:
    from course_lib.observe.profile import Profile

NAMES = ("bert", "gpt", "llama", "bart", "resnet")  # of MODELS, which imports torch: help does without


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", type=click.Choice(NAMES), default="bert", show_default=True, help="What to profile.")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The model's sizes: a TOML file, with or without a table [model], or a config.json of Hugging Face. "
    "The published base model if not given.",
)
@click.option("--batch", type=AtLeast(1), default=1, show_default=True, metavar="N", help="Samples.")
@click.option(
    "--sequence",
    type=AtLeast(1),
    metavar="N",
    help="Tokens of a sample; 128 if not given, or as many as the model can.",
)
@click.option(
    "--depth",
    type=AtLeast(0),
    default=2,
    show_default=True,
    metavar="N",
    help="Levels of submodules that are shown.",
)
@click.option("--count", is_flag=True, help="Count only: no seconds, and nothing is computed.")
@click.option(
    "--repeats",
    type=AtLeast(1),
    default=5,
    show_default=True,
    metavar="N",
    help="Steps that are timed.",
)
@click.option("--device", default="cpu", show_default=True, help="Where to run: cpu, cuda…")
@click.option("--json", "as_json", is_flag=True, help="All modules as JSON: bytes, seconds and FLOPs.")
def main(
    model: str,
    config: Path | None,
    batch: int,
    sequence: int | None,
    depth: int,
    count: bool,
    repeats: int,
    device: str,
    as_json: bool,
) -> None:
    """FLOPs, MACs, parameters, memory and time of each module of a model.

    One training step, forward and backward. FLOPs are those of matrix products and
    convolutions, two for each multiply-accumulate (MAC); MACs are the forward's.
    Elementwise operations are counted as DeepSpeed's flops profiler counts them.
    "bytes" is what the parameters take, "saved" what is kept for backward.

    \b
    python -m course_lib.profile --model bert --depth 3
    python -m course_lib.profile --model llama --count --sequence 4096
    """
    try:
        found = _profile(model, config, batch, sequence, depth, count, repeats, device)
    except ValueError as error:
        _end(f"Error: {error}", 2)
    except KeyboardInterrupt:
        _end("stopped", 130)
    click.echo(json.dumps(found.as_json()) if as_json else found.text)


def _profile(
    name: str,
    file: Path | None,
    batch: int,
    sequence: int | None,
    depth: int,
    count: bool,
    repeats: int,
    device: str,
) -> Profile:
    import torch

    from course_lib.observe.profile import profile
    from course_lib.profile.models import MODELS, make_inputs, read_config

    config = read_config(name, file)
    inputs = make_inputs(name, config, batch, sequence)
    with torch.device("meta"):
        model = MODELS[name].make(config)
    if not count:
        _check_device(device, 4 * sum(p.nbytes for p in model.parameters()))
        with torch.device(device):
            model = MODELS[name].make(config)
        inputs = tuple(t.to(device) for t in inputs)
    return profile(model.train(), *inputs, depth=depth, run=not count, repeats=repeats)


def _check_device(name: str, needed: int) -> None:
    """Raise a ValueError if the device is not there, or has no room for parameters and gradients, each twice."""
    import psutil
    import torch

    try:
        device = torch.empty(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device is {name!r}, which torch cannot use here; choose cpu.") from error
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        raise ValueError(
            f"this model needs about {needed / 1e9:.1f} GB to run, and {name} has {free / 1e9:.1f} GB free; "
            "--count counts without running it"
        )


def _end(sentence: str, code: int) -> NoReturn:
    click.echo(sentence, err=True)
    sys.exit(code)
