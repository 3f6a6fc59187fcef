"""The command line.

Files in ``--out``: ``runs.jsonl``, a line for each finished run, ``TASK.md``, the table, and with ``--time``
``times.json``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from course_lib.comparison.command import checked_names, ended_in_one_sentence, parsed_rates, progress_bar
from simulator.cli.parameter_types import AtLeast, Output

if TYPE_CHECKING:  # torch takes seconds to import: help does without
    from course_lib.comparison.finetuning.run import Setting
    from course_lib.data.finetuning_tasks import Task
    from course_lib.models.bert import Bert


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--task",
    type=click.Choice(["word-order", "docstring-package"]),
    default="word-order",
    show_default=True,
    help="What is learned.",
)
@click.option("--methods", default="all", show_default=True, metavar="NAME,…", help="Which are compared.")
@click.option("--seeds", type=AtLeast(1), default=3, show_default=True, help="Seeds of each method.")
@click.option("--steps", type=AtLeast(1), default=250, show_default=True, help="Steps of each run.")
@click.option("--batch", type=AtLeast(1), default=32, show_default=True, help="Samples in a step.")
@click.option(
    "--lrs", metavar="X,…", help="Learning rates to try; each method has its own five if not given."
)
@click.option("--every-rate", is_flag=True, help="Try each start with each learning rate, without a walk.")
@click.option(
    "--finer", is_flag=True, help="After the walk, try the rates halfway to the neighbours of the best."
)
@click.option("--samples", type=AtLeast(1), metavar="N", help="At most N samples of each part.")
@click.option(
    "--model",
    type=click.Choice(["minilm", "tiny"]),
    default="minilm",
    show_default=True,
    help="The pretrained MiniLM, or two narrow layers with random weights, to try the command.",
)
@click.option("--device", default="cpu", show_default=True, help="Where to train: cpu, cuda…")
@click.option(
    "--matmul",
    type=click.Choice(["highest", "high", "medium"]),
    default="highest",
    show_default=True,
    help="How exact matrix products are; medium rounds their inputs to bf16, and may be much faster.",
)
@click.option(
    "--time",
    "timing",
    is_flag=True,
    help="Train nothing; take steps of all the methods in turns, and keep their times in --out.",
)
@click.option(
    "--out",
    type=Output(folder=True),
    default=Path("runs/finetuning"),
    show_default=True,
    help="Folder of the results.",
)
def main(
    out: Path,
    methods: str,
    seeds: int,
    lrs: str | None,
    every_rate: bool,
    finer: bool,
    timing: bool,
    **values: object,
) -> None:
    """Compare ways of fine-tuning a pretrained BERT, each at its own best learning rate.

    Under seed 0 each method is trained from each of its starts at its middle learning
    rate. With the best start, higher and lower rates are tried until the accuracy has
    fallen on both sides. The start and the rate that are best on the validation part
    are trained under the other seeds, too. The table shows the accuracy of all seeds
    on the test part, on which nothing is chosen.

    A finished run is kept and is not computed again, so the command can be stopped at
    any time and given again. With 3 seeds a method takes 5 runs or more. All methods
    are run under seed 0 first, and those first that say most.

    \b
    python -m course_lib.comparison.finetuning --methods probe,full,lora-all-r8 --out results
    """
    with ended_in_one_sentence():
        if timing:
            _time(out, methods, values)
        else:
            _compare(out, methods, range(seeds), lrs, every_rate, finer, values)


def _compare(
    out: Path, methods: str, seeds: range, lrs: str | None, every: bool, finer: bool, values: dict
) -> None:
    rates = None if lrs is None else parsed_rates(lrs)
    from course_lib.comparison.finetuning.compare import Comparison
    from course_lib.comparison.finetuning.methods import BY_IMPORTANCE, NAMES
    from course_lib.comparison.finetuning.results import Runs, markdown
    from course_lib.comparison.finetuning.run import Setting

    names = checked_names(methods, NAMES, BY_IMPORTANCE)
    like = Setting(method="", start="", lr=0, seed=0, **values)
    _check_device(like.device)
    runs = Runs(out / "runs.jsonl")
    comparison = Comparison(like, lambda: load(like), runs, names, seeds, rates, every, finer)
    with progress_bar("reading the texts") as told:
        found = comparison.run(told)
    table = markdown(found, names)
    (out / f"{like.task}.md").write_text(table + "\n", encoding="utf-8")
    click.echo(table)


def _time(out: Path, methods: str, values: dict) -> None:
    from course_lib.comparison.finetuning.methods import BY_IMPORTANCE, NAMES
    from course_lib.comparison.finetuning.run import Setting
    from course_lib.comparison.finetuning.timing import keep_times, read_times, time_steps

    names = checked_names(methods, NAMES, BY_IMPORTANCE)
    like = Setting(method="", start="", lr=0, seed=0, **values)
    _check_device(like.device)
    keep_times(out / "times.json", time_steps(like, *load(like), names))
    times = read_times(out / "times.json")
    click.echo(f"a step of full fine-tuning takes {1e3 * times['full_seconds']:.0f} ms; in relation to it:")
    for name, ratio in times["ratios"].items():
        click.echo(f"{name:14} {ratio:.2f}")


def load(setting: Setting) -> tuple[Bert, Task]:
    """The model and the task that a setting names; the task's split does not depend on the run's seed.

    Raises:
        ValueError: the batch is larger than the training part.
    """
    import torch

    from course_lib.data.finetuning_tasks import TASKS
    from course_lib.models.bert import Bert, BertConfig
    from course_lib.models.pretrained import load_minilm

    task = TASKS[setting.task](seed=0).first(setting.samples)
    if setting.batch > len(task.train.labels):
        raise ValueError(f"batch is {setting.batch}; the training part has {len(task.train.labels)} samples.")
    if setting.model == "minilm":
        return load_minilm()[0], task
    torch.manual_seed(0)
    return Bert(BertConfig.tiny(vocab_size=30522, max_position_embeddings=128), pooler=True), task


def _check_device(name: str) -> None:
    import torch

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device is {name!r}, which torch cannot use here; choose cpu.") from error
