"""A planned split beside the even one on ranks of unequal speed, measured and predicted: training steps of a BERT.

python benchmarks/unequal_devices.py [--way galaxy] [--slowness 1,3] [--rounds 9]

Ranks are slowed on purpose (``course_lib.runtime.slowed``): what a rank computes takes --base times its processor time,
times its slowness. All ranks time the blocks of a layer for some shares, forward and backward apart, and by itself what
a rank computes to prepare the messages between the blocks and to take them apart. From these times the simulator plans
a split. Then rounds follow: all is timed again, and a step of the even split and one of the planned split are run. Each
step is held against the prediction from the times of its own round, as the speed of a busy computer changes.

Prints both splits, their predicted and measured steps, and how much faster the planned one is. Ends with exit code 1
where the median of these ratios is not within 15 % of 1 for the planned split, or where the planned split is faster
than the even one by a factor that is more than 15 % away from the predicted one. Takes about a minute on two idle
cores.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable

import click
import torch
import torch.distributed as dist
from paired import list_of, rounds
from torch.distributed.device_mesh import DeviceMesh

from course_lib.models.bert import Bert, BertConfig
from course_lib.observe.handling_seconds import Handling
from course_lib.observe.share_seconds import PAUSE, BothWays, block_work
from course_lib.runtime import launch
from course_lib.runtime.slowed import slowed
from course_lib.tensor_parallel.galaxy import apply_galaxy
from simulator.inputs.galaxy import WAYS
from simulator.inputs.hardware import Hardware, Link
from simulator.inputs.shape import ModelShape
from simulator.planner.layer_split import TIMED_AS, even_layer, plan_layer, price_layer
from simulator.predict.shares import BLOCKS, ShareSeconds, measured_seconds

WITHIN = 0.15
HIDDEN, HEADS, LAYERS, BATCH, SEQUENCE, VOCAB = 256, 8, 2, 4, 128, 100
COLUMNS = 4 * HIDDEN
SHAPE = ModelShape(LAYERS, HIDDEN, HEADS, VOCAB, SEQUENCE, dropout=False)
SHARES = {"heads": (1, 4, 8), "columns": (128, 512, 1024), "positions": (16, 64, 128)}  # that are timed


def model() -> Bert:
    torch.manual_seed(0)
    return Bert(
        BertConfig.tiny(
            hidden_size=HIDDEN,
            num_attention_heads=HEADS,
            intermediate_size=COLUMNS,
            num_hidden_layers=LAYERS,
            max_position_embeddings=SEQUENCE,
            vocab_size=VOCAB,
        )
    )


# ---- what the planner is told: seconds of shares, and of messages -------------------------------------------


def ends_of_the_model() -> BothWays:
    """What is no layer: the embedding and the loss."""
    embeddings, tokens = model().embeddings, torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
    return BothWays(lambda: embeddings(tokens).square().mean(), list(embeddings.parameters()))


class Timed:
    """The blocks that a way has, ready to be timed on this rank."""

    def __init__(self, way: str) -> None:
        kinds = {TIMED_AS[block.partition("_")[0], placed] for block, placed in WAYS[way].items()}
        self.work = {
            (kind, n): block_work(SHAPE, kind, n, BATCH)
            for kind in sorted(kinds)
            for n in SHARES[BLOCKS[kind]]
        }
        self.ends = ends_of_the_model()

    def __call__(self, calls: int = 3) -> tuple[Points, Pair]:
        """(block -> share -> seconds, seconds of what is no layer)."""
        points: Points = {}
        for (kind, n), work in self.work.items():
            points.setdefault(kind, {})[n] = work.seconds(calls)
        return points, self.ends.seconds(calls)


Pair = tuple[float, float]  # seconds of forward, of backward
Points = dict[str, dict[int, Pair]]  # block -> share -> seconds
# points; seconds of what is no layer; for each split, block -> seconds around its messages
OfRank = tuple[Points, Pair, list[dict[str, Pair]]]


def mean_of_ranks(timed: list[OfRank]) -> OfRank:
    def mean(pairs: Iterable[Pair]) -> Pair:
        forward, backward = map(statistics.fmean, zip(*pairs, strict=True))
        return forward, backward

    points = {
        kind: {n: mean(of_rank[0][kind][n] for of_rank in timed) for n in shares}
        for kind, shares in timed[0][0].items()
    }
    handling = [
        {kind: mean(split[kind] for split in of_ranks) for kind in of_ranks[0]}
        for of_ranks in zip(*(of_rank[2] for of_rank in timed), strict=True)
    ]
    return points, mean(of_rank[1] for of_rank in timed), handling


def what_the_planner_is_told(mesh: DeviceMesh, way: str) -> tuple[Link, OfRank]:
    torch.set_num_threads(1)
    return measured_link(mesh), (*Timed(way)(7), [Handling(SHAPE, mesh, way, {}, BATCH)(7)])


def measured_link(mesh: DeviceMesh) -> Link:
    """Latency and bandwidth from the fastest of several exchanges of a small and of a large message."""
    fastest = []
    for elements in (1, BATCH * SEQUENCE * HIDDEN):
        sent, received, seconds = torch.zeros(elements), torch.zeros(elements), []
        for _ in range(15):
            dist.barrier()
            time.sleep(PAUSE)
            start = time.perf_counter()
            p, me = mesh.size(), dist.get_rank()
            operations = [
                dist.P2POp(dist.isend, sent, (me + 1) % p),
                dist.P2POp(dist.irecv, received, (me - 1) % p),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            seconds.append(time.perf_counter() - start)
        fastest.append(statistics.median(seconds))
    rate = 4 * BATCH * SEQUENCE * HIDDEN / max(fastest[1] - fastest[0], 1e-6)
    return Link(fastest[0], rate)


# ---- the run ------------------------------------------------------------------------------------------------


def run(
    mesh: DeviceMesh, way: str, shares: list[dict[str, list[int]]], factors: list[float], rounds: int
) -> tuple[list[OfRank], list[list[float]]]:
    """(this rank's times of blocks, seconds of the steps of each split), one entry a round."""
    torch.set_num_threads(1)
    models = [apply_galaxy(model(), mesh, way, **lists) for lists in shares]
    tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
    timed, timer = [], Timed(way)
    handled = [Handling(SHAPE, mesh, way, lists, BATCH) for lists in shares]
    times: list[list[float]] = [[] for _ in shares]
    for turn in range(rounds + 1):
        timed.append((*timer(), [handle() for handle in handled]))
        for which in range(len(models)) if turn % 2 else reversed(range(len(models))):
            models[which].zero_grad()
            dist.barrier()
            start = time.perf_counter()
            with slowed(factors[dist.get_rank()]):
                models[which](tokens).square().mean().backward()
            dist.barrier()
            times[which].append(time.perf_counter() - start)
    return timed[1:], [seconds[1:] for seconds in times]


@click.command(help=__doc__)
@click.option(
    "--way",
    type=click.Choice(list(WAYS)),
    default="galaxy",
    show_default=True,
    help="How a layer is divided.",
)
@click.option("--slowness", type=list_of(float), default="1,3", show_default=True, help="Of each rank.")
@click.option(
    "--base",
    type=click.FloatRange(min=0, min_open=True),
    default=16.0,
    show_default=True,
    help="How much slower than this computer slowness 1 is.",
)
@rounds(9)
def main(way: str, slowness: list[float], base: float, rounds: int) -> None:
    factors = [base * number for number in slowness]
    mesh = {"tp": len(factors)}
    told = launch(what_the_planner_is_told, mesh=mesh, args=(way,), timeout=None)
    link = told[0][0]
    device = Hardware("here", 1e12, float("inf"), 1e10, link, link)

    def seconds_from(timed: list[OfRank]) -> tuple[list[ShareSeconds], float]:
        """For each split, seconds of shares; and seconds of what is no layer."""
        points, ends, handling = mean_of_ranks(timed)
        return [measured_seconds(points, factors, each) for each in handling], sum(ends) * max(factors)

    question = SHAPE, [device] * len(factors), way
    [timed], _ = seconds_from([of_rank for _, of_rank in told])
    shares = [split(*question, seconds=timed).shares for split in (even_layer, plan_layer)]
    found = launch(run, mesh=mesh, args=(way, shares, factors, rounds), timeout=None)
    steps = found[0][1]
    predicted: list[list[float]] = [[], []]
    for of_round in zip(*(timed for timed, _ in found), strict=True):
        of_splits, ends = seconds_from(list(of_round))
        for lists, seconds, timed in zip(shares, predicted, of_splits, strict=True):
            seconds.append(LAYERS * price_layer(*question, **lists, seconds=timed).seconds + ends)

    ratios = [[s / p for s, p in zip(*both, strict=True)] for both in zip(steps, predicted, strict=True)]
    for name, lists, real, expected, ratio in zip(
        ("even", "planned"), shares, steps, predicted, ratios, strict=True
    ):
        print(
            f"{name} {lists}: predicted {1e3 * statistics.median(expected):.0f} ms, measured "
            f"{1e3 * statistics.median(real):.0f} ms; ratios {' '.join(f'{r:.2f}' for r in sorted(ratio))}"
        )
    gains = [statistics.median(a / b for a, b in zip(*sides, strict=True)) for sides in (predicted, steps)]
    print(f"the planned step is {gains[1]:.2f} times as fast as the even one; predicted {gains[0]:.2f}")
    missed = False
    for what, ratio in (
        ("planned step, measured / predicted", statistics.median(ratios[1])),
        ("how much faster than the even step, measured / predicted", gains[1] / gains[0]),
    ):
        met = abs(ratio - 1) <= WITHIN
        missed |= not met
        print(f"{what}: {ratio:.2f}; target 0.85 to 1.15: {'met' if met else 'MISSED'}")
    sys.exit(missed)


if __name__ == "__main__":
    main()
