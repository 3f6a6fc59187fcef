"""How far a calibrated machine's prediction is from a real training step: a GPT of course_lib, on the CPU, in fp32.

python benchmarks/calibrate.py [--rounds 5]

The machine is measured as ``python -m simulator calibrate`` measures it, the file is written and read back, and steps
of three shapes are predicted from it and run: forward, backward, clipping and Adam. All is measured on one thread, by
the clock of this process, which stands still while other programs have the processor: so the ratio means something on
a busy machine, too, where only the caches and the memory are shared.

Prints for each shape the predicted and the measured step and their ratio, and ends with exit code 1 where a ratio is
outside 0.5 to 2. Takes about a minute on two idle cores.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import paired
import torch
import torch.nn.functional as F

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe import calibrate
from simulator.inputs.hardware_file import read_hardware, write_hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.calibration import busy_machine, hardware_of
from simulator.predict.step import step_cost

LEAST, MOST = 0.5, 2.0
CONFIGS = {  # layers, hidden, heads, vocabulary, sequence, batch
    "narrow, 1 x 256 tokens": (4, 256, 4, 8192, 256, 1),
    "narrow, 4 x 256 tokens": (4, 256, 4, 8192, 256, 4),
    "wide, 2 x 256 tokens": (4, 768, 12, 8192, 256, 2),
}


def real_step(
    layers: int, hidden: int, heads: int, vocab: int, sequence: int, batch: int
) -> dict[str, Callable[[], object]]:
    """The parts of a step, to be called one after the other."""
    model = GPT(GPTConfig(vocab, sequence, layers, heads, hidden))
    parameters = list(model.parameters())
    adam = torch.optim.Adam(parameters, lr=1e-4, foreach=True)
    tokens = torch.randint(vocab, (batch, sequence + 1))
    held = {}

    def forward() -> None:
        logits = model(tokens[:, :-1])
        held["loss"] = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()
        adam.zero_grad()

    return {"forward": forward, "backward": lambda: held["loss"].backward(), "update": update}


def measured_step(*sizes: int, rounds: int) -> float:
    """Seconds of the fastest of so many steps, part by part."""
    parts = real_step(*sizes)
    fastest = dict.fromkeys(parts, float("inf"))
    for number in range(rounds + 1):
        for name, part in parts.items():
            start = calibrate.CLOCK()
            part()
            if number:  # the first step makes Adam's states
                fastest[name] = min(fastest[name], calibrate.CLOCK() - start)
    return sum(fastest.values())


def predicted_step(
    device: Path, layers: int, hidden: int, heads: int, vocab: int, sequence: int, batch: int
) -> float:
    shape = ModelShape(layers, hidden, heads, vocab, sequence, dropout=False)
    plan = Plan(micro_batch=batch, precision="fp32", attention="flash")
    return step_cost(shape, plan, read_hardware(device)).seconds


@click.command(help=__doc__)
@paired.count("--rounds", 5, "Steps of each shape; the fastest counts.")
def main(rounds: int) -> None:
    torch.set_num_threads(1)
    calibrate.CLOCK = time.process_time
    calibrate._rank_counts = lambda device: []  # the step has one rank
    measurements = calibrate.measure(lambda line: print(line, file=sys.stderr, flush=True))
    if busy := busy_machine(measurements):
        print(busy)
    hardware, sources = hardware_of(measurements, "here", "today")
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "here.toml"
        write_hardware(file, hardware, sources)
        for name, sizes in CONFIGS.items():
            predicted, measured = predicted_step(file, *sizes), measured_step(*sizes, rounds=rounds)
            ratio = predicted / measured
            missed |= not LEAST <= ratio <= MOST
            print(
                f"{name}: predicted {predicted * 1e3:.0f} ms, measured {measured * 1e3:.0f} ms, ratio {ratio:.2f}"
            )
    print(f"target: ratios from {LEAST:g} to {MOST:g}: {'MISSED' if missed else 'met'}")
    sys.exit(missed)


if __name__ == "__main__":
    main()
