"""Pipeline parallelism by hand beside ``torch.distributed.pipelining``: forward and backward of a GPT's microbatches.

python benchmarks/pipeline.py [--ranks 2] [--hidden 256] [--microbatches 8] [--rounds 25]

The two take turns. Both run the same stages, so only what executes the schedule differs.

Prints for each of three schedules the median ratio of their times beside its target, and ends with exit code 1 where
one is missed. Takes about half a minute on two idle cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import click
import torch
import torch.distributed as dist
from paired import count, report, rounds
from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.one_device.loop import cross_entropy
from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.microbatches import cut_batch
from course_lib.pipeline.stages import Stage, rank_stages
from course_lib.runtime import current_device, launch
from simulator.pipeline.actions import Schedule
from simulator.pipeline.schedules import make_schedule

OFFICIAL = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved-1f1b": pipelining.ScheduleInterleaved1F1B,
}
WARM_UP = 3
ROWS, TOKENS = 2, 64  # of a microbatch
LAYERS = 8


def stages_of(schedule: Schedule, mesh: DeviceMesh, hidden: int) -> dict[int, Stage]:
    torch.manual_seed(0)
    config = GPTConfig.tiny(num_layers=LAYERS, hidden_size=hidden, tie_embeddings=False)
    return rank_stages(GPT(config).to(current_device()), schedule, mesh)


def official(
    schedule: Schedule, mesh: DeviceMesh, stages: Mapping[int, Stage], inputs: Tensor, targets: Tensor
) -> Callable[[], Tensor | None]:
    """One step of torch's schedule of that name. It returns the loss where the last stage is."""
    held = [
        pipelining.PipelineStage(stage, index, schedule.stages, current_device(), group=mesh.get_group())
        for index, stage in stages.items()
    ]
    held = held[0] if schedule.chunks == 1 else held
    theirs = OFFICIAL[schedule.name](held, schedule.microbatches, loss_fn=cross_entropy)
    given = {"target": targets} if schedule.stages - 1 in stages else {}

    def step() -> Tensor | None:
        losses: list[Tensor] = []
        if given:
            given["losses"] = losses
        theirs.step(*([inputs] if 0 in stages else []), **given)
        return torch.stack(losses).mean() if losses else None

    return step


def measure(
    mesh: DeviceMesh, name: str, hidden: int, microbatches: int, rounds: int
) -> tuple[list[float], list[float]]:
    schedule = make_schedule(name, mesh.size(), microbatches)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(256, (ROWS * microbatches, TOKENS + 1), generator=generator).to(current_device())
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    ours, theirs = stages_of(schedule, mesh, hidden), stages_of(schedule, mesh, hidden)
    pipeline = Pipeline(ours, schedule, mesh)
    steps = (
        lambda: pipeline.step(cut_batch((inputs, targets), microbatches)),
        official(schedule, mesh, theirs, inputs, targets),
    )
    times: tuple[list[float], list[float]] = [], []
    for turn in range(WARM_UP + rounds):
        losses = {}
        for which, stages in ((0, ours), (1, theirs))[:: 1 if turn % 2 else -1]:
            for stage in stages.values():
                stage.zero_grad()
            dist.barrier()
            start = time.perf_counter()
            losses[which] = steps[which]()
            if current_device().type == "cuda":
                torch.cuda.synchronize()
            dist.barrier()
            if turn >= WARM_UP:
                times[which].append(time.perf_counter() - start)
        if turn == 0:
            torch.testing.assert_close(losses[0], losses[1])
            for index in ours:
                mine, other = ours[index].parameters(), theirs[index].parameters()
                for a, b in zip(mine, other, strict=True):
                    torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    return times


@click.command(help=__doc__)
@count("--ranks", 2, "Processes; each holds some of the stages.")
@count("--hidden", 256, "Hidden size of the GPT.")
@count("--microbatches", 8, "Microbatches of a step.")
@rounds(25)
def main(ranks: int, hidden: int, microbatches: int, rounds: int) -> None:
    for name in OFFICIAL:
        ours, theirs = launch(
            measure, mesh={"pp": ranks}, args=(name, hidden, microbatches, rounds), timeout=None
        )[0]
        report(f"{name}: ours / torch.distributed.pipelining", ours, theirs, at_most=1.05)


if __name__ == "__main__":
    main()
