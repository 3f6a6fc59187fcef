"""The command line.

Files in ``--out``: ``runs.jsonl``, a line for each finished run, and ``table.md``.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import click

from course_lib.comparison.command import checked_names, ended_in_one_sentence, progress_bar
from simulator.cli.parameter_types import AtLeast, Output


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--tasks", default="reverse,stars", show_default=True, metavar="NAME,…")
@click.option("--methods", default="all", show_default=True, metavar="NAME,…", help="Which are compared.")
@click.option("--seeds", type=AtLeast(1), default=3, show_default=True, help="Seeds of each rate.")
@click.option("--steps", type=AtLeast(1), default=100, show_default=True, help="Steps of each run.")
@click.option("--batch", type=AtLeast(1), default=16, show_default=True, help="Lines in a step.")
@click.option(
    "--out",
    type=Output(folder=True),
    default=Path("runs/selection"),
    show_default=True,
    help="Folder of the results.",
)
def main(tasks: str, methods: str, seeds: int, steps: int, batch: int, out: Path) -> None:
    """Tune a frozen GPT that knows some text tasks, without telling it the task.

    Each method is trained at each of its three learning rates under each seed. The rate
    with the highest mean on the validation part is chosen; the table shows the share of
    right answers on the test part, for tasks that the model knows and for new ones.

    A finished run is kept and is not computed again, so the command can be stopped at
    any time and given again.

    \b
    python -m course_lib.comparison.finetuning.selection --tasks reverse --methods prompt,lora-r8
    """
    with ended_in_one_sentence():
        import torch

        from course_lib.comparison.finetuning.selection.kept import Runs, lines, markdown
        from course_lib.comparison.finetuning.selection.methods import METHODS
        from course_lib.comparison.finetuning.selection.run import Setting, right_answers, train_one
        from course_lib.data.task_gpt import load_task_gpt
        from course_lib.data.text_tasks import KNOWN, TASKS, samples

        names, asked = checked_names(methods, [*METHODS]), checked_names(tasks, [*TASKS])
        torch.set_num_threads(1)  # small tensors
        plain, runs = load_task_gpt(), Runs(out / "runs.jsonl")
        wanted = [
            Setting(task, method, lr, seed, steps, batch)
            for seed, task, method in product(range(seeds), asked, names)
            for lr in METHODS[method].lrs
        ]
        missing = [setting for setting in wanted if setting not in runs.rows]
        with progress_bar("reading the texts") as told:
            for done, setting in enumerate(missing):
                runs.add(train_one(setting, plain))
                told(f"{setting.task}, {setting.method} at {setting.lr:g}", done + 1, len(missing))
        table = markdown(lines(runs.rows[setting] for setting in wanted), asked, names)
        (out / "table.md").write_text(table + "\n", encoding="utf-8")
        click.echo(table)
        for task in asked:
            before = {"": "nothing", task: "its instruction"} if task in KNOWN else {"": "nothing"}
            for text, name in before.items():
                share = right_answers(plain, samples(task, "test", instruction=text))
                click.echo(f"{task} after {name}, nothing trained: {100 * share:.1f} %")
