"""The command that makes ``course_lib/data/task_gpt.safetensors``: one model, trained once on all known tasks.

The result depends on the seed and on the documentation of the Python that runs it, which differs between versions.
"""

from __future__ import annotations

from pathlib import Path

import click

from course_lib.comparison.command import ended_in_one_sentence, progress_bar
from simulator.cli.parameter_types import AtLeast, Output


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--steps", type=AtLeast(1), default=2000, show_default=True, help="Steps of training.")
@click.option("--batch", type=AtLeast(1), default=64, show_default=True, help="Lines in a step.")
@click.option("--lr", type=float, default=2e-3, show_default=True, help="The highest learning rate.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the weights and of the lines.")
@click.option(
    "--out",
    type=Output(),
    default=Path("task_gpt.safetensors"),
    show_default=True,
    help="File of the weights.",
)
def main(steps: int, batch: int, lr: float, seed: int, out: Path) -> None:
    """Train a small GPT on all known text tasks, and write its weights.

    It takes about ten minutes on one core. At the end stand the shares of right
    answers on texts that were not trained on, for each task after its instruction, and
    the file's SHA-256, which course_lib/data/task_gpt.py has to name.
    """
    with ended_in_one_sentence():
        import torch

        from course_lib.comparison.finetuning.selection.instruct import train
        from course_lib.comparison.finetuning.selection.run import right_answers
        from course_lib.data.task_gpt import CONFIG, load_into, save, sha256
        from course_lib.data.text_tasks import KNOWN, samples
        from course_lib.models.gpt import GPT

        torch.set_num_threads(1)  # one order of adding up, whatever the machine
        torch.manual_seed(seed)
        model = GPT(CONFIG)
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
        with progress_bar("reading the texts") as told:
            for done, loss in enumerate(train(model, optimizer, steps, batch, seed), 1):
                told(f"loss {loss:.2f}", done, steps)
        save(model, out)
        load_into(model, out)  # what is kept has 16 bits
        for task in KNOWN:
            share = right_answers(model, samples(task, "test", instruction=task))
            click.echo(f"{task:8} {100 * share:5.1f} %")
        click.echo(f"{out} {sha256(out)}")


if __name__ == "__main__":
    main(prog_name="python -m course_lib.comparison.finetuning.selection.pretrain")
