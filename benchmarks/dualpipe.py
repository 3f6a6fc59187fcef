"""DualPipe-V with experts: the all-to-all of one microbatch beside the computation of another, predicted and measured.

python benchmarks/dualpipe.py [--rounds 5] [--svg dualpipe.svg]

Four ranks on Gloo: two stages' ranks, two ranks of experts, a Mixtral of 4 layers, 12 microbatches. All messages of a
rank pass one slow link. A step runs the pairs of the schedule one action after the other, and then at once; the two
take turns. From the first kind's computing and waiting alone the simulator says how long a pair takes at once, and
with it the step.

Prints the ratio of the two steps' times, as predicted and as measured, and with --svg draws the prediction above the
run. Exit code 1 where running at once does not save a tenth, or the prediction is wrong by more than a tenth. Takes
about half a minute on two idle cores.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from paired import report, rounds
from torch import Tensor

from course_lib.models.mixtral import Mixtral, MixtralConfig
from course_lib.observe.ledgers.timeline import TimelineLog, gather_timeline, record_timeline
from course_lib.parallelize import parallelize
from course_lib.runtime import launch, trace
from course_lib.runtime.mesh import make_mesh
from course_lib.runtime.slow_link import slow_link
from simulator.inputs.plan import Plan
from simulator.ledgers.timeline import Timeline
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule
from simulator.pipeline.together import seconds_together
from simulator.plots.timeline import plot_timeline

AXES = {"pp": 2, "dp": 2, "tp": 1}
ROWS, SEQ, M, LATENCY = 24, 16, 12, 0.008
ATTENTION = 0.01, 0.02  # seconds of a layer, forward and backward
SCHEDULE = make_schedule("dualpipe-v", AXES["pp"], M)
WAYS = {"one after the other": (), "at once": ("experts",)}
Parts = dict[str, list[list[float]]]  # kind of action -> of each one: computing and waiting in turn


def run(rounds: int) -> tuple[dict[str, list[float]], Parts, Timeline]:
    torch.set_num_threads(1)
    Busy.device = threading.Lock()
    mesh, models = make_mesh(AXES), {}
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_local_experts": 8}
    for way, overlap in WAYS.items():
        torch.manual_seed(0)
        model = Mixtral(MixtralConfig.tiny(**sizes, num_hidden_layers=4))
        for layer in model.model.layers:
            layer.input_layernorm.register_forward_hook(lambda module, args, y: Busy.apply(y))
        plan = Plan(2, 1, 2, ep=2, microbatches=M, schedule="dualpipe-v", overlap=overlap, precision="fp32")
        models[way] = parallelize(model, plan, mesh)
    seconds, parts = defaultdict(list), defaultdict(list)
    tokens = torch.randint(
        64, (2, ROWS, SEQ), generator=torch.Generator().manual_seed(models[way][0].data_rank)
    )
    for step in range(rounds + 1):
        for way, (model, optimizer) in models.items():
            dist.barrier()
            with record_timeline() as log, slow_link(float("inf"), LATENCY):
                began = time.monotonic()
                model.forward_backward(*tokens)
                dist.all_reduce(took := torch.tensor(time.monotonic() - began), dist.ReduceOp.MAX)
                log.marks[:] = [mark for mark in log.marks if mark.lane != trace.WAITING]  # whole actions
                if step and not WAYS[way]:
                    add_parts(log, parts)
            optimizer.zero_grad()
            if step:  # the first one warms up
                seconds[way].append(took.item())
    return dict(seconds), dict(parts), gather_timeline(log)


class Busy(torch.autograd.Function):
    """Keeps the rank's device busy as attention would. A sleeping rank needs no core, so four of them on two cores
    compute side by side as they would on four."""

    device: threading.Lock  # it computes for one action at a time

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with Busy.device:
            time.sleep(ATTENTION[0])
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        with Busy.device:
            time.sleep(ATTENTION[1])
        return gradient


def add_parts(log: TimelineLog, parts: Parts) -> None:
    """Of each action, what its all-to-alls leave of it, and how long each of them took."""
    waits = [m for m in log.marks if m.name == "all-to-all"]
    for action in (m for m in log.marks if m.lane == "compute" and m.name[0] in "FBW"):
        inside = [m for m in waits if action.start <= m.start and m.end <= action.end]
        edges = [action.start, *(edge for m in inside for edge in (m.start, m.end)), action.end]
        parts[action.name[0]].append([b - a for a, b in pairwise(edges)])


def middle(parts: list[list[float]]) -> list[float]:
    """The median of each part, among the actions that have as many parts as most."""
    usual = statistics.mode(map(len, parts))
    return [statistics.median(each) for each in zip(*(p for p in parts if len(p) == usual), strict=True)]


@click.command(help=__doc__)
@rounds(5)
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Where to draw both timelines.")
def main(rounds: int, svg: Path | None) -> None:
    found = launch(run, 4, args=(rounds,), backend="gloo", timeout=None, quiet=True)
    seconds, _, timeline = found[0]
    F, B = (middle([part for _, parts, _ in found for part in parts[kind]]) for kind in "FB")
    pair = seconds_together(B, F)  # the backward begins first
    times = {
        "forward": sum(F),
        "backward_input": sum(B) / 2,
        "backward_weight": sum(B) / 2,
        "transfer": LATENCY,
    }
    alone, at_once = simulate(SCHEDULE, **times), simulate(SCHEDULE, **times, overlapped=pair)
    predicted = at_once.makespan / alone.makespan
    print(f"a forward {sum(F):.3f} s, a backward {sum(B):.3f} s; at once {pair:.3f} s, as predicted")
    print(f"a step at once / one after the other: {predicted:.3f} predicted")
    if svg is not None:
        one_of_each = Timeline(s._replace(rank=s.rank // 2) for s in timeline.spans if s.rank % 2 == 0)
        picture = plot_timeline(at_once, one_of_each, titles=["predicted", "measured"], unit="seconds")
        svg.write_text(picture.svg)
    measured = report("measured", seconds["at once"], seconds["one after the other"], at_most=0.9)
    error = predicted / measured - 1
    print(f"prediction: {error:+.1%}; target at most 10 %: {'met' if abs(error) <= 0.1 else 'MISSED'}")
    sys.exit(abs(error) > 0.1)


if __name__ == "__main__":
    main()
