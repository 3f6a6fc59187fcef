"""Runs that save all the time, killed at random moments: is the last save that was told of still there, and whole?

python benchmarks/checkpoint_kills.py [--kills 20] [--seed 0]

Three writers take turns: course_lib.train on two ranks, which resumes and saves every step; save_checkpoint of
parallelize on two ranks, always over the same folder; and elastic's Checkpoints, every other save in a thread. All
processes of a writer get SIGKILL at a random moment after its first save. Then every byte of the newest save is read:
it must be whole, and no older than the last one of which the writer has told, and nothing unfinished may stay.

Prints a line for each writer: kills, how many were in the middle of a save, saves that were lost or damaged, and what
the killed left behind before the next run. Ends with exit code 1 if anything was lost. Takes about 1 s a kill.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click
import torch
import torch.distributed as dist
from paired import count
from torch import nn

from course_lib.checkpoints.folders import recover
from course_lib.checkpoints.saves import checked, newest_first, newest_whole
from course_lib.checkpoints.tensors import load_tensors, saved_tensors
from course_lib.elastic.checkpoints import Checkpoints
from course_lib.parallelize import load_checkpoint, mesh_axes, parallelize, save_checkpoint
from course_lib.runtime.mesh import make_mesh
from course_lib.train.job import Job
from course_lib.train.material.samples import Samples
from course_lib.train.run import train
from simulator.inputs.plan import Plan

PLAN = Plan(dp=2, zero=1, precision="fp32")
BAD = ("lost", "damaged", "never removed")
Tell = Callable[[int], None]  # of the step whose save has come back


def train_and_save(folder: Path, tell: Tell) -> None:
    tokens = torch.zeros(64, 9, dtype=torch.uint8)
    samples = Samples((tokens[:, :-1], tokens[:, 1:]), torch.full((64,), 8))
    sizes = {"layers": 1, "hidden": 128, "heads": 2, "sequence": 8, "steps": 10**6}
    job = Job("gpt", PLAN, checkpoint=folder, save_every=1, resume=bool(newest_first(folder)), **sizes)
    train(make_mesh(mesh_axes(PLAN)), job, lambda told: tell(told.get("step", 1) - 1), samples)


def save_over(folder: Path, tell: Tell) -> None:
    model, optimizer = parallelize(
        nn.Linear(512, 512), PLAN, make_mesh(mesh_axes(PLAN)), torch.optim.SGD, lr=1.0
    )
    step = 0
    if (folder / "last").exists():
        step = load_checkpoint(folder / "last", model, optimizer)["step"]
    while True:
        step += 1
        model.load_state_dict({name: torch.full_like(t, step) for name, t in model.state_dict().items()})
        save_checkpoint(folder / "last", model, optimizer, step=step)
        tell(step)


def save_elastic(folder: Path, tell: Tell) -> None:
    saves = Checkpoints(folder)
    step = saves.load()["step"] if saves.steps() else 0
    while True:
        step += 1
        (saves.save, saves.save_async)[step % 2]({"x": torch.full((300_000,), step), "step": step}, step)
        saves.wait()
        tell(step)


def newest_step(folder: Path) -> int:
    """Of the newest save, after a look at every byte; a save that has to be skipped is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save = checked(folder / "last") if (folder / "last").exists() else newest_whole(folder)
    about = save.about.get("extra", save.about)
    if save.folder.name == "last":
        values = load_tensors(save, [name for name in saved_tensors(save) if name.startswith("model/")])
    else:
        values = Checkpoints(folder).read(save) if "state.pt" in save.files else {}
    if any((value != about["step"]).any() for value in values.values() if torch.is_tensor(value)):
        raise ValueError(f"{save.folder} is a mixture of several saves")
    return about["step"]


WRITERS = {
    "course_lib.train": (train_and_save, 2),
    "save_checkpoint": (save_over, 2),
    "elastic": (save_elastic, 1),
}


def start(writer: Callable[[Path, Tell], None], rank: int, ranks: int, folder: Path, pipe: int) -> int:
    """A forked rank; rank 0 tells of its saves through ``pipe``."""
    if pid := os.fork():
        return pid
    try:
        if ranks > 1:
            dist.init_process_group("gloo", f"file://{folder}.meet", rank=rank, world_size=ranks)
        writer(folder, lambda step: os.write(pipe, b"%d\n" % step) if rank == 0 and step else None)
    finally:
        os._exit(1)


def kill_once(name: str, folder: Path, chance: random.Random) -> Counter[str]:
    writer, ranks = WRITERS[name]
    Path(f"{folder}.meet").unlink(missing_ok=True)
    told, pipe = os.pipe()
    pids = [start(writer, rank, ranks, folder, pipe) for rank in range(ranks)]
    os.close(pipe)
    with open(told, "rb") as lines:
        last = lines.readline()
        time.sleep(chance.random() * 0.3)
        for pid in chance.sample(pids, ranks):
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        last = [last, *lines.read().splitlines()][-1]
    found = Counter(kills=1)
    left = [path for path in folder.glob(".*") for path in path.rglob("*")]
    found["in a save"] += any(folder.glob(".*"))
    found["bytes"] += sum(path.stat().st_size for path in left)
    try:
        found["lost"] += not last or newest_step(folder) < int(last)
    except (ValueError, UserWarning) as error:
        print(f"{name}: {error}", file=sys.stderr)
        found["damaged"] += 1
    recover(folder)
    found["never removed"] += any(folder.glob(".*"))
    return found


@click.command(help=__doc__)
@count("--kills", 20, "How many times, over all writers.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the moments.")
def main(kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings(
        "ignore", "torch.distributed is disabled"
    )  # what ranks have saved is read by one process
    chance, found = random.Random(seed), {name: Counter() for name in WRITERS}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(kills):
            name = list(WRITERS)[i % len(WRITERS)]
            (Path(folder) / name).mkdir(exist_ok=True)
            found[name] += kill_once(name, Path(folder) / name, chance)
    for name, counted in found.items():
        texts = [f"{what} {counted[what]}" for what in BAD]
        print(
            f"{name + ':':17} {counted['kills']} kills, {counted['in a save']} in the middle of a save; "
            f"{', '.join(texts)}; {counted['bytes'] / 1e6:.1f} MB were left for the next run to remove"
        )
    bad = sum(counted[what] for counted in found.values() for what in BAD)
    print(f"{kills} kills, {bad} saves lost, damaged or never removed")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
