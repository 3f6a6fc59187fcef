"""MiniLM fine-tuned on word order under four plans: the losses and the accuracy of one device.

python benchmarks/pretrained_plans.py [--steps 60]

Is this sentence in order, or were two neighbouring words swapped? All ways train the same 32 sentences a step, and each
rank reads only its own part of the weights. Prints for each plan the last loss, the largest difference of a step's loss
from one device, the accuracy on 1,500 sentences that were not trained on, and what a rank has read. Ends with exit code
1 where a loss differs by more than a hundredth, or an accuracy by more than one point. Takes about five minutes of two
cores.
"""

from __future__ import annotations

import json
import subprocess
import sys

import click

PLANS = {
    "one device": "micro_batch=32",
    "dp=2": "dp=2,micro_batch=16",
    "tp=2": "tp=2,micro_batch=32",
    "pp=2": "pp=2,micro_batch=8",
}
LOSS, ACCURACY = 1e-2, 0.01


def run(plan: str, steps: int) -> tuple[list[float], dict]:
    words = ["--weights", "minilm", "--task", "word-order", "--sequence", "40", "--global-batch", "32"]
    words += ["--lr", "1e-4", "--steps", str(steps), "--plan", plan, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "course_lib.train", *words], capture_output=True, text=True, check=True
    )
    *lines, last = map(json.loads, done.stdout.splitlines())
    return [line["loss"] for line in lines], last["ranks"]


@click.command(help=__doc__)
@click.option("--steps", default=60, show_default=True)
def main(steps: int) -> None:
    missed, alone = False, None
    print("| plan | last loss | furthest from one device | accuracy | read by a rank |")
    print("| --- | --- | --- | --- | --- |")
    for name, plan in PLANS.items():
        losses, ranks = run(plan, steps)
        accuracy = ranks[0]["accuracy"]
        alone = alone or (losses, accuracy)
        apart = max(abs(a - b) for a, b in zip(losses, alone[0], strict=True))
        missed |= apart > LOSS or abs(accuracy - alone[1]) > ACCURACY
        read = max(rank["weights_read"] for rank in ranks) / 1e6
        print(f"| {name} | {losses[-1]:.4f} | {apart:.1e} | {accuracy:.1%} | {read:.1f} MB |", flush=True)
    sys.exit(missed)


if __name__ == "__main__":
    main()
