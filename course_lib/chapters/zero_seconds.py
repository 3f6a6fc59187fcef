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
from simulator.plots.style import CATEGORIES, TEXT, TITLE, WIDTH, bare, label_of
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


def plot_plans(gpu: str, speed: float, *, gpus: int = 64, sequences: int = 4, model: str = LLAMA) -> Picture:
    """Two strips for each stage in the fewest passes that fit: computing, and below it sending, hatched where it hides.

    Args:
        gpu, speed, gpus, sequences, model: see ``Cluster``.
    """
    from matplotlib.figure import Figure

    cluster = Cluster(gpu, speed, gpus, sequences, model)
    steps, best = fewest_passes(cluster), quickest(cluster)
    figure = Figure(figsize=(WIDTH, 0.8 + 0.45 * len(steps)), layout="constrained")
    axis, told = figure.subplots(), []
    longest = max((one.seconds for one in steps if one.fits), default=1)
    for row, one in enumerate(steps):
        label = f"{named(one.stage, one.passes)}: "
        if one.fits:
            label += f"{one.seconds:.2f} s"
            left = one.computing - one.hidden
            colour = COLOURS[f"stage {one.stage}"]
            axis.barh(row - 0.18, one.computing, 0.34, color=COMPUTING)
            box(axis, (left, one.hidden), row + 0.18, colour, hatched=True)
            box(axis, (one.computing, one.seconds - one.computing), row + 0.18, colour)
            weight = "bold" if one == best else "normal"
            axis.annotate(f"{one.seconds:.2f} s", (one.seconds, row), (6, 0), textcoords="offset points",
                          va="center", fontsize=TEXT, fontweight=weight)  # fmt: skip
        else:
            label += "no room"
            axis.text(0, row, " no room for one sequence", va="center", fontsize=TEXT)
        told.append(label + ", the shortest" * (one == best))
    axis.set(xlim=(0, 1.2 * longest), ylim=(-0.5, len(steps) - 0.5), xticks=[])
    labels = [f"{named(one.stage, one.passes)}: {one.halves} halves" for one in steps]
    axis.set_yticks(range(len(steps)), labels, fontsize=TEXT)
    axis.invert_yaxis()
    bare(axis)
    axis.spines["bottom"].set_visible(False)
    axis.set_xlabel("dark: computing; colour: sending, hatched where it hides", fontsize=TEXT)
    said = f"{gpus} {gpu}s, {speed:g} GB/s, sequences on each: {sequences}; predicted"
    axis.set_title(said, fontsize=TITLE, loc="left")
    return render(figure, f"{said}. {'; '.join(told)}.")


def plot_timeline(gpu: str, speed: float, passes: int = 4) -> Picture:
    """A step at stage 1 in one line, at stage 3 in a line for each pass: weights come before, gradients go after."""
    from matplotlib.figure import Figure

    cluster = Cluster(gpu, speed)
    one, three = (step(cluster, stage, passes) for stage in (1, 3))
    each = list(zip(one.messages(), three.messages(), strict=True))
    lines = [("stage 1,\nall passes", one, [mine for mine, _ in each], one.update)]
    for i, (_, mine) in enumerate(each):
        lines.append((f"stage 3,\npass {i + 1}", three, [mine], three.update if i == passes - 1 else 0.0))
    figure = Figure(figsize=(WIDTH, 0.5 + 0.72 * len(lines)), layout="constrained")
    axis, told = figure.subplots(), []
    for row, (name, found, sent, update) in enumerate(lines):
        end = draw_line(axis, row, found, sent, update)
        axis.annotate(
            f"{end:.2f} s", (end, row), (6, 0), textcoords="offset points", va="center", fontsize=TEXT
        )
        told.append(f"{name} {end:.2f} s".replace("\n", " "))
    axis.set(xlim=(0, 1.1 * three.seconds / passes), xticks=[])
    axis.set_yticks(range(len(lines)), [name for name, *_ in lines], fontsize=TEXT)
    axis.invert_yaxis()
    bare(axis)
    axis.spines["bottom"].set_visible(False)
    total = f"in all: stage 1 {one.seconds:.2f} s, stage 3 {three.seconds:.2f} s"
    axis.set_xlabel(f"dark: computing; hatched: hidden; {total}", fontsize=TEXT)
    size = 2 * MODELS[LLAMA].parameters / 1e9
    half = (
        f"a half: {cluster.gpus - 1}/{cluster.gpus} × {size:.0f} GB ÷ {speed:g} GB/s = {cluster.half:.2f} s"
    )
    axis.set_title(f"{cluster.gpus} {gpu}s, predicted; {half}", fontsize=TITLE, loc="left")
    return render(
        figure, f"A step on {cluster.gpus} {gpu}s in {passes} passes, {half}: {'; '.join(told)}; {total}."
    )


def draw_line(axis: Any, row: int, found: Step, sent: Sequence[tuple[int, int]], update: float) -> float:
    """Passes with their messages, from the left; returns the seconds at which they end."""
    now, colour, half = 0.0, COLOURS[f"stage {found.stage}"], found.half

    def compute(start: float, seconds: float, said: str) -> None:
        axis.barh(row - 0.13, seconds, 0.26, left=start, color=COMPUTING, edgecolor="white", linewidth=1)
        axis.text(start + seconds / 2, row - 0.28, said, ha="center", va="bottom", fontsize=TEXT)

    def message(start: float, hidden: float, said: str, before: bool) -> None:
        shown = half - hidden
        seen, beside = (start, start + shown) if before else (start + hidden, start)
        box(axis, (seen, shown), row + 0.13, colour, height=0.26)
        box(axis, (beside, hidden), row + 0.13, colour, height=0.26, hatched=True)
        axis.text(seen + shown / 2, row + 0.13, f"{said} {half:.2f}", ha="center", va="center", color="white",
                  fontsize=TEXT)  # fmt: skip

    alone, began = len(sent) == 1, 0.0
    for i, (ahead, back) in enumerate(sent):
        # A backward that sends two halves gathers weights before it sends gradients.
        for seconds, weights, gradients in ((found.forward, ahead, 0), (found.backward, back - 1, back)):
            count = back if gradients else ahead
            hidden = found.hides(count, seconds) / max(1, count)
            if weights > 0:
                message(now, hidden, "weights", before=True)
                now += half - hidden
            if not gradients and i == 0:
                began = now
            compute(now, seconds, f"{seconds:.2f}" if alone else "")
            now += seconds
            if gradients and i == len(sent) - 1 and not alone:
                said = f"{len(sent)} passes of {found.forward + found.backward:.2f}"
                axis.text((began + now) / 2, row - 0.28, said, ha="center", va="bottom", fontsize=TEXT)
            if gradients > 0:
                message(now - hidden, hidden, "gradients", before=False)
                now += half - hidden
    if update:
        compute(now, update, f"update {update:.2f}" if update > 0.1 else "")
    return now + update


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


def first_speed(gpu: str, stage: int) -> int:
    """The lowest whole number of GB a second with which ``stage`` makes the shortest step on 64 such GPUs."""
    for speed in range(1, 401):
        best = quickest(Cluster(gpu, speed))
        if best is not None and best.stage == stage:
            return speed
    raise ValueError(f"stage {stage} never makes the shortest step on 64 {gpu}s")
