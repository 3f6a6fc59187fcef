"""A model on GPUs of two kinds: what a stage of ZeRO and the number of passes cost in seconds (chapter 06).

Computing is what the simulator predicts. A message hides beside the forward or backward that it belongs to, as far as
the simulator says that computing hides it; all else is what the pictures show, so that a reader can check their sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.chapters.zero_step import COLOURS
from simulator.inputs.checks import at_least, one_of, positive
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.ledgers.memory import MemoryBreakdown
from simulator.plots.picture import Picture, render
from simulator.plots.style import CATEGORIES, TEXT, WIDTH, bare, label_of, plain_axes
from simulator.predict.memory import model_states, plan_memory
from simulator.predict.step import step_cost

LLAMA = "llama-13b"
FILES = {"A100": "a100-80gb", "H100": "h100"}
STAGES = (1, 2, 3)
COMPUTING = "#333333"
ONCE = ("gradient_accumulation", "optimizer")  # of a step's parts; the others are forward and backward


@dataclass(frozen=True)
class Cluster:
    """A model, and the GPUs that train it.

    Args:
        gpu: ``"A100"``, ``"H100"``, or the name of a device's file.
        speed: GB a second that leave a machine.
        gpus: how many.
        sequences: on each GPU in a step.
        model: a known model's name.
    """

    gpu: str
    speed: float
    gpus: int = 64
    sequences: int = 4
    model: str = LLAMA

    def __post_init__(self) -> None:
        one_of("the GPU", self.gpu, (*FILES, *GPUS))
        one_of("the model", self.model, MODELS)
        positive(speed=self.speed)
        at_least(2, gpus=self.gpus)
        at_least(1, sequences=self.sequences)

    @property
    def half(self) -> float:
        """Seconds in which all gradients, or all weights, leave a machine in 16 bits: a GPU keeps its own share."""
        return (1 - 1 / self.gpus) * 2 * MODELS[self.model].parameters / (self.speed * 1e9)


@dataclass(frozen=True)
class Step:
    """Of one GPU, in seconds.

    Args:
        forward, backward: of one pass.
        update: with all that is done to gradients once.
        half: one message of all gradients or weights.
        overlap: seconds of a message that a second of computing hides.
        fits: whether the GPU has room.
    """

    stage: int
    passes: int
    forward: float
    backward: float
    update: float
    half: float
    overlap: float
    fits: bool

    def messages(self) -> Iterator[tuple[int, int]]:
        """For each pass, the halves that are sent beside forward and beside backward.

        As PyTorch's ``fully_shard`` does, stages 1 and 2 gather the new weights in the next step's first forward.
        """
        for i in range(self.passes):
            first, last = i == 0, i == self.passes - 1
            yield {1: (first, last), 2: (first, 1), 3: (1, 2)}[self.stage]

    @property
    def halves(self) -> int:
        return sum(map(sum, self.messages()))

    @property
    def computing(self) -> float:
        return self.passes * (self.forward + self.backward) + self.update

    def hides(self, halves: int, computing: float) -> float:
        return self.overlap * min(halves * self.half, computing)

    @property
    def hidden(self) -> float:
        return sum(self.hides(f, self.forward) + self.hides(b, self.backward) for f, b in self.messages())

    @property
    def seconds(self) -> float:
        return self.computing + self.halves * self.half - self.hidden


def step(cluster: Cluster, stage: int, passes: int) -> Step:
    """A step of the cluster's sequences, cut into ``passes``; backward computes twice as long as forward.

    Raises:
        ValueError: the sequences cannot be cut into so many, or there is no such stage.
    """
    one_of("the stage", stage, STAGES)
    one_of("the passes", passes, divisors(cluster.sequences))
    hardware, model = GPUS[FILES.get(cluster.gpu, cluster.gpu)], MODELS[cluster.model]
    size = cluster.sequences // passes
    plan = Plan(cluster.gpus, zero=stage, microbatches=passes, micro_batch=size, attention="flash")
    occupied = max(rank.occupied for rank in plan_memory(model, plan, hardware))
    parts = step_cost(model, plan, hardware).parts
    update = sum(parts[name] for name in ONCE)
    one = (sum(parts.values()) - parts["data_parallel"] - update) / passes
    fits = occupied <= hardware.memory
    return Step(stage, passes, one / 3, 2 * one / 3, update, cluster.half, hardware.data_overlap, fits)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def fewest_passes(cluster: Cluster) -> list[Step]:
    """For each stage the step of the fewest passes that fit; the most passes, if none do."""
    steps = ([step(cluster, stage, passes) for passes in divisors(cluster.sequences)] for stage in STAGES)
    return [next((one for one in some if one.fits), some[-1]) for some in steps]


def quickest(cluster: Cluster) -> Step | None:
    return min((one for one in fewest_passes(cluster) if one.fits), key=lambda one: one.seconds, default=None)


def held(stage: int, sequences: int) -> MemoryBreakdown:
    """The model states of Llama 13B on one of 64 GPUs, and the activations of ``sequences`` in one pass."""
    model = MODELS[LLAMA]
    one = plan_memory(model, Plan(64, attention="flash"))[0].activations
    return model_states(model.parameters, Plan(64, zero=stage)) + MemoryBreakdown(activations=sequences * one)


def plot_held(plans: Sequence[tuple[int, int]]) -> Picture:
    """What Llama 13B with four sequences on each of 64 GPUs keeps on one of them, and what an A100 has room for.

    Args:
        plans: (stage, passes); stage 0 is DDP.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 0.8 + 0.34 * len(plans)), layout="constrained")
    axis, told = figure.subplots(), []
    axis.axvline(80, color="black", linestyle="--", linewidth=1)
    for row, (stage, passes) in enumerate(plans):
        found, left = held(stage, 4 // passes), 0.0
        for kind in ("parameters", "gradients", "optimizer_states", "activations"):
            size = getattr(found, kind) / 1e9
            label = {"parameters": "weights"}.get(kind, label_of(kind)) if row == 0 else None
            axis.barh(row, size, 0.7, left=left, color=CATEGORIES[kind], label=label)
            left += size
        axis.annotate(
            f"{left:.1f} GB",
            (max(left, 80), row),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=TEXT,
        )
        told.append(f"{named(stage, passes)} {left:.1f} GB")
    axis.set(xlim=(0, 250), xticks=[80])
    axis.set_xticklabels(["80 GB, one A100"], fontsize=TEXT)
    axis.set_yticks(range(len(plans)), [named(*plan) for plan in plans], fontsize=TEXT)
    axis.invert_yaxis()
    bare(axis)
    axis.spines["bottom"].set_visible(False)
    axis.legend(frameon=False, fontsize=TEXT, loc="lower right")
    return render(figure, f"One GPU keeps: {'; '.join(told)}.")


def named(stage: int, passes: int) -> str:
    return f"{f'stage {stage}' if stage else 'DDP'}, {passes} pass{'es' * (passes > 1)}"


def box(
    axis: Any,
    span: tuple[float, float],
    row: float,
    colour: str,
    *,
    height: float = 0.34,
    hatched: bool = False,
) -> None:
    """A message's strip, from ``span[0]`` on for ``span[1]`` seconds."""
    look = {"color": "white", "edgecolor": colour, "hatch": "/////"} if hatched else {"color": colour}
    axis.barh(row, span[1], height, left=span[0], **look)


def saved(many: Step, few: Step) -> float:
    """Seconds that ``few`` passes save beside ``many``, halves left out: they compute less, and hide more."""
    return many.computing - many.hidden - (few.computing - few.hidden)


def plot_speeds(gpu: str, marked: float) -> Picture:
    """Seconds of a step over GB/s, a line for each stage in the fewest passes that fit; a mark at GB/s ``marked``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    axis, speeds, told = figure.subplots(), [10 + i / 2 for i in range(41)], []
    some = [fewest_passes(Cluster(gpu, speed)) for speed in speeds]
    for steps in zip(*some, strict=True):
        name = named(steps[0].stage, steps[0].passes)
        colour = COLOURS[f"stage {steps[0].stage}"]
        axis.plot(speeds, [one.seconds for one in steps], color=colour, linewidth=2, label=name)
        told.append(f"{name} {steps[0].seconds:.2f} s to {steps[-1].seconds:.2f} s")
    axis.axvline(marked, color="black", linestyle="--", linewidth=1)
    axis.annotate(f" {marked:.1f} GB/s", (marked, 0.03), xycoords=("data", "axes fraction"), fontsize=TEXT)
    axis.set(xlim=(speeds[0], speeds[-1]), xticks=range(10, 31, 5))
    axis.set_xlabel("GB/s that leave a machine", fontsize=TEXT)
    axis.set_ylabel("seconds of a step", fontsize=TEXT)
    plain_axes(axis)
    axis.legend(frameon=False, fontsize=TEXT, loc="upper right")
    where = f"from {speeds[0]:g} to {speeds[-1]:g} GB/s, marked at {marked:.1f}"
    return render(figure, f"A step on 64 {gpu}s {where}: {'; '.join(told)}.")
