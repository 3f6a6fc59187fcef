"""The command line.

Files in ``--out``: ``runs.jsonl``, a line for each finished run, and ``TASK.md``, the table.
"""

from __future__ import annotations

from pathlib import Path

import click

from course_lib.comparison.command import checked_names, ended_in_one_sentence, parsed_rates, progress_bar
from simulator.cli.parameter_types import AtLeast, Output


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--task",
    type=click.Choice(["docs", "digits"]),
    default="docs",
    show_default=True,
    help="The next byte of Python's documentation, by a small LLaMA; or handwritten digits.",
)
@click.option("--methods", default="all", show_default=True, metavar="NAME,…", help="Which are compared.")
@click.option("--seeds", type=AtLeast(1), default=3, show_default=True, help="Seeds of each method.")
@click.option("--steps", type=AtLeast(1), default=160, show_default=True, help="Steps of each run.")
@click.option(
    "--batch",
    type=AtLeast(1),
    default=16,
    show_default=True,
    help="Samples in a step, of all ranks together.",
)
@click.option("--ranks", type=AtLeast(2), default=4, show_default=True, help="Processes that train.")
@click.option("--lrs", metavar="X,…", help="Learning rates that may be tried, in place of the course's five.")
@click.option(
    "--out",
    type=Output(folder=True),
    default=Path("runs/compression"),
    show_default=True,
    help="Folder of the results.",
)
def main(
    out: Path, task: str, methods: str, seeds: int, steps: int, batch: int, ranks: int, lrs: str | None
) -> None:
    """Compare DDP with methods that send less, over equal samples.

    Each method is trained under seed 0 at its middle learning rate, then at higher and
    lower ones until the loss on the validation part is higher on both sides. The rate
    that is best there is run under the other seeds, too. The table shows the loss of
    all seeds on the test part, on which nothing is chosen, and the bytes that a rank
    sends.

    A finished run is kept and is not computed again, so the command can be stopped at
    any time and given again. With 3 seeds a method takes 5 runs or more. All methods
    are run under seed 0 first.

    \b
    python -m course_lib.comparison.compression --methods none,top-k,diloco --out results
    """
    with ended_in_one_sentence():
        rates = None if lrs is None else parsed_rates(lrs)
        with progress_bar("reading the data") as told:
            from course_lib.comparison.compression.compare import compare
            from course_lib.comparison.compression.methods import LRS, NAMES
            from course_lib.comparison.compression.results import Runs, markdown
            from course_lib.comparison.compression.run import Setting

            names, like = checked_names(methods, NAMES), Setting(task, "", 0, 0, steps, batch, ranks)
            runs = Runs(out / "runs.jsonl")
            found = compare(like, runs, names, range(seeds), rates or LRS, told)
        table = markdown(found)
        (out / f"{task}.md").write_text(table + "\n", encoding="utf-8")
        click.echo(table)
