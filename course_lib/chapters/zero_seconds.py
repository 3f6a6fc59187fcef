"""Llama 13B on 64 GPUs of two kinds: what a stage of ZeRO and the number of passes cost in seconds (chapter 06)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table
from simulator.inputs.checks import one_of
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH
from simulator.predict.memory import plan_memory
from simulator.predict.step import step_cost

LLAMA, RANKS, SEQUENCES = MODELS["llama-13b"], 64, 4
CLUSTERS = {"A100": GPUS["a100-80gb"], "H100": GPUS["h100"]}
STAGES, PASSES = (1, 2, 3), (4, 2, 1)
QUICK, SLOW = "#bcdcc8", "#f4b6a6"


class Priced(NamedTuple):
    """Of one GPU in a step: bytes of memory, seconds, of these the seconds that messages add, and whether it fits."""

    bytes: float
    seconds: float
    waits: float
    fits: bool


def price(gpu: str, stage: int, passes: int) -> Priced:
    """A step of 4 sequences a GPU, cut into ``passes``, as the simulator predicts it.

    Raises:
        ValueError: the GPU, the stage or the passes are none of those that the chapter knows.
    """
    one_of("the GPU", gpu, CLUSTERS)
    one_of("the stage", stage, STAGES)
    one_of("the passes", passes, PASSES)
    hardware = CLUSTERS[gpu]
    plan = Plan(RANKS, zero=stage, microbatches=passes, micro_batch=SEQUENCES // passes, attention="flash")
    held = max(rank.occupied for rank in plan_memory(LLAMA, plan, hardware))
    cost = step_cost(LLAMA, plan, hardware)
    return Priced(held, cost.seconds, cost.parts["data_parallel"], held <= hardware.memory)


def quickest(gpu: str) -> tuple[int, int]:
    """The stage and the passes of the shortest step that fits."""
    fitting = [(stage, passes) for stage in STAGES for passes in PASSES if price(gpu, stage, passes).fits]
    return min(fitting, key=lambda choice: price(gpu, *choice).seconds)


def try_plans(choices: Mapping[str, tuple[int, int]]) -> Shown:
    """A table: what each choice of (stage, passes) keeps, how long it takes, and how far it is from the quickest."""
    rows = []
    for gpu, (stage, passes) in choices.items():
        found, best = price(gpu, stage, passes), price(gpu, *quickest(gpu))
        gap = round(100 * (found.seconds / best.seconds - 1))
        verdict = f"{gap} % above the quickest" if gap else "the quickest"
        size = f"{found.bytes / 1e9:.0f} GB"
        rows.append([f"64 {gpu}s", f"stage {stage}, {passes} pass{'es' * (passes > 1)}", size,
                     f"{found.seconds:.2f} s", verdict if found.fits else "does not fit in 80 GB"])  # fmt: skip
    return table(["cluster", "your choice", "memory", "a step", ""], rows)


def plot_all_plans() -> Picture:
    """Both clusters: a field for each stage and number of passes with its seconds; the quickest has a frame."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
    told = []
    for axis, gpu in zip(figure.subplots(1, len(CLUSTERS)), CLUSTERS, strict=True):
        best = quickest(gpu)
        least = price(gpu, *best).seconds
        for row, passes in enumerate(PASSES):
            for column, stage in enumerate(STAGES):
                found = price(gpu, stage, passes)
                colour = "#eeeeee" if not found.fits else QUICK if found.seconds < 1.5 * least else SLOW
                chosen = (stage, passes) == best
                axis.add_patch(
                    Rectangle(
                        (column - 0.46, row - 0.42),
                        0.92,
                        0.84,
                        facecolor=colour,
                        edgecolor="#222222" if chosen else "#bbbbbb",
                        lw=2.4 if chosen else 0.8,
                    )
                )
                said = f"{found.seconds:.2f} s" if found.fits else "too large"
                axis.text(column, row, said, ha="center", va="center_baseline", fontsize=TEXT)
                told.append(f"{gpu}s, stage {stage}, passes {passes}: {said}{', the quickest' * chosen}")
        axis.set_title(f"64 {gpu}s", fontsize=TITLE, loc="left")
        axis.set_xticks(range(3), [f"stage {stage}" for stage in STAGES], fontsize=TEXT)
        axis.set_yticks(range(3), [f"{n} pass{'es' * (n > 1)}" for n in PASSES], fontsize=TEXT)
        axis.set(xlim=(-0.6, 2.6), ylim=(2.6, -0.6))
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    return render(figure, f"Seconds of a step, predicted. {'; '.join(told)}.")
