"""What peers predict beside ours: Calculon, SimuMax and mlsysim on the published rows, torch's lists on our clock.

python benchmarks/simulator_peers.py

The part with mlsysim is left out where that package is missing: pip install "mlsysim>=0.3,<0.4". It is no dependency
of the project.

Calculon and SimuMax are in no package: beside ours stand the predictions that their authors print for the same rows.

mlsysim takes the efficiency of the device as an argument: its rows are shown with its default of 0.5, and with the
one efficiency for all rows that makes their mean error least.

Prints tables of errors, one of bubbles and one of makespans, and ends with exit code 1 where our mean error of the time
is larger than a peer's. Takes about five seconds on two idle cores.
"""

from __future__ import annotations

import sys
import warnings
from importlib.util import find_spec

import click
import paired  # noqa: F401  (puts the project before this folder on the path)
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from simulator.pipeline.actions import Action, Schedule
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule
from simulator.published import PublishedRow, published_rows

DEFAULT = 0.5  # mlsysim's efficiency, where nobody says
KINDS = {
    "FORWARD": "F",
    "FULL_BACKWARD": "BW",
    "BACKWARD_INPUT": "B",
    "BACKWARD_WEIGHT": "W",
}
# torch's name: (ours, chunks a rank)
SCHEDULES = {
    "GPipe": ("gpipe", 1),
    "1F1B": ("1f1b", 1),
    "Interleaved1F1B": ("interleaved-1f1b", 2),
    "ZBVZeroBubble": ("zb-v", 2),
    "DualPipeV": ("dualpipe-v", 2),
}


# ---- Calculon and SimuMax ---------------------------------------------------------------------------------


def beside_printed(peer: str, kind: str = "time") -> bool:
    """Print both on every row of that peer; whether ours has the smaller mean error."""
    rows = [row for row in published_rows() if row.peer and row.peer[0] == peer and row.kind == kind]
    print(f"\n{f'{rows[0].source}, error of the {kind}':66}{'ours':>8}{peer:>9}")
    ours, theirs = [row.error() for row in rows], [row.error(row.peer[1]) for row in rows if row.peer]
    for row, our, their in zip(rows, ours, theirs, strict=True):
        print(f"  {row.name:64}{our:+8.1%}{their:+9.1%}")
    print(f"{'mean of the absolute errors':66}{_mean(ours):8.1%}{_mean(theirs):9.1%}")
    return _mean(ours) <= _mean(theirs)


# ---- mlsysim ----------------------------------------------------------------------------------------------


def a100_steps() -> list[PublishedRow]:
    """Rows that time a whole step on A100s: seconds, TFLOP/s or MFU."""
    steps = [row for row in published_rows() if row.quantity in ("seconds", "tflops_per_gpu", "mfu")]
    return [row for row in steps if getattr(row, "gpu", "a100-80gb") == "a100-80gb" and row.plan.zero == 0]


def mlsysim_seconds(row: PublishedRow, efficiency: float) -> float:
    """The step time of mlsysim's DistributedModel for the row's model and plan on its own DGX A100 and its fabric."""
    from mlsysim.core.units import Q_
    from mlsysim.models.types import TransformerWorkload
    from mlsysim.solvers import DistributedModel
    from mlsysim.systems.registry import Systems
    from mlsysim.systems.types import Fleet

    shape, plan = row.shape, row.plan
    model = TransformerWorkload(
        name=row.name,
        architecture="transformer",
        parameters=Q_(shape.parameters, "count"),
        layers=shape.layers,
        hidden_dim=shape.hidden,
        heads=shape.heads,
        vocab_size=shape.vocab,
    )
    known = Systems.Clusters.Training_1K_A100
    nodes = -(-plan.ranks // known.node.accelerators_per_node)
    node = known.node.model_copy(update={"accelerators_per_node": min(plan.ranks, 8)})
    fleet = Fleet(name="published", node=node, count=nodes, fabric=known.fabric)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = DistributedModel().solve(
            model,
            fleet,
            batch_size=plan.global_batch,
            efficiency=efficiency,
            tp_size=plan.tp,
            pp_size=plan.pp,
            v_stages=plan.chunks,
            microbatch_count=plan.microbatches,
            activation_recomputation=plan.recompute == "full",
            seq_len=shape.sequence,
        )
    return found.step_latency_total.m_as("s")


def printed_seconds(row: PublishedRow) -> float:
    """The printed figure as seconds: a rate and its error mean the same step."""
    from simulator.inputs.known_devices import GPUS
    from simulator.predict.step import step_cost

    return step_cost(row.shape, row.plan, GPUS["a100-80gb"]).seconds / (1 + row.error())


def beside_mlsysim() -> bool:
    """Print both on every row; whether ours has the smaller mean error."""
    rows = a100_steps()
    printed = [printed_seconds(row) for row in rows]

    def errors(efficiency: float) -> list[float]:
        pairs = zip(rows, printed, strict=True)
        return [mlsysim_seconds(row, efficiency) / seconds - 1 for row, seconds in pairs]

    ours, default = [row.error() for row in rows], errors(DEFAULT)
    candidates = [efficiency / 100 for efficiency in range(30, 100, 5)]
    best = min(candidates, key=lambda efficiency: _mean(errors(efficiency)))
    fitted = errors(best)
    print(
        f"{'step on A100s, error of the time':52}{'printed s':>10}{'ours':>8}{'mlsysim':>9}{f'at {best:g}':>9}"
    )
    for row, seconds, *found in zip(rows, printed, ours, default, fitted, strict=True):
        print(
            f"{row.source + ', ' + row.name:52.52}{seconds:10.4g}"
            + "".join(f"{error:+9.1%}" for error in found)
        )
    means = [_mean(errors) for errors in (ours, default, fitted)]
    print(f"{'mean of the absolute errors':62}" + "".join(f"{mean:9.1%}" for mean in means))
    return means[0] <= min(means[1:])


def bubbles_beside_mlsysim() -> None:
    """Its closed form of the bubble beside what our engine finds, action by action."""
    from mlsysim.physics import calc_pipeline_bubble

    print("\nbubble, idle / total            mlsysim    engine")
    for name, p, m, v in (
        ("1f1b", 8, 32, 1),
        ("interleaved-1f1b", 8, 64, 3),
        ("zb-h1", 8, 32, 1),
        ("zb-v", 8, 32, 2),
    ):
        execution = simulate(make_schedule(name, p, m, v))
        print(f"{name:18}{p:3} x {m:3} x {v}{calc_pipeline_bubble(p, m, v):12.2%}{execution.bubble():10.2%}")


def _mean(errors: list[float]) -> float:
    return sum(map(abs, errors)) / len(errors)


# ---- torch ------------------------------------------------------------------------------------------------


def torchs(name: str, ranks: int, microbatches: int, chunks: int) -> Schedule:
    """torch's list of a schedule as one of ours."""
    actions = []
    for steps in get_schedule_ops(name, ranks, microbatches, num_stages_per_rank=chunks):
        halves = [half for step in steps if step is not None for half in step.sub_actions or (step,)]
        actions.append(
            tuple(
                Action(KINDS[half.computation_type.name], half.stage_index, half.microbatch_index)
                for half in halves
                if half.computation_type.name in KINDS  # the rest are reductions of gradients
            )
        )
    placement = "v" if chunks == 2 and name in ("ZBVZeroBubble", "DualPipeV") else "loop"
    return Schedule(f"torch's {name}", ranks, microbatches, chunks, tuple(actions), placement)


def beside_torch(ranks: int = 4, microbatches: int = 16) -> None:
    """Both lists on the same clock, F, B and W taking 1 each."""
    print(
        f"\n{ranks} ranks, {microbatches} microbatches, F = B = W = 1: makespan and peak in flight on rank 0"
    )
    for name, (our_name, chunks) in SCHEDULES.items():
        ours = simulate(make_schedule(our_name, ranks, microbatches, chunks))
        mine = f"ours {ours.makespan:5g}, {ours.peak_in_flight[0]:2}"
        try:
            theirs = simulate(torchs(name, ranks, microbatches, chunks))
        except ValueError as error:  # its list of 1F1B is known to be wrong on the last rank
            print(f"{name:18}{mine}; torch's list cannot run: {error}")
            continue
        print(f"{name:18}{mine}; torch's {theirs.makespan:5g}, {theirs.peak_in_flight[0]:2}")


@click.command(help=__doc__)
def main() -> None:
    beside_torch()
    better = [beside_printed("Calculon"), beside_printed("SimuMax")]
    beside_printed("SimuMax", "memory")
    if find_spec("mlsysim") is None:
        print('\nmlsysim is not installed, so its part is left out: pip install "mlsysim>=0.3,<0.4"')
    else:
        print()
        better.append(beside_mlsysim())
        bubbles_beside_mlsysim()
    if not all(better):
        sys.exit("our mean error is larger: MISSED")


if __name__ == "__main__":
    main()
