"""Llama 13B on 64 GPUs of two kinds: what a stage of ZeRO and the number of passes cost in seconds (chapter 06)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from course_lib.chapters.zero_step import COLOURS
from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table
from simulator.inputs.checks import one_of
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.ledgers.memory import MemoryBreakdown
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, bare
from simulator.predict.collective_time import collective_seconds, group_link
from simulator.predict.memory import plan_memory
from simulator.predict.step import step_cost
from simulator.published.fsdp import all_cards

LLAMA, RANKS, SEQUENCES = MODELS["llama-13b"], 64, 4
HALF = 2 * LLAMA.parameters  # bytes, in 16 bits: all gradients reduce-scattered, or all weights gathered
# A machine of A100s has one card of 100 Gbit/s for its eight GPUs, one of H100s a card of 400 Gbit/s for each GPU.
CLUSTERS = {"A100": all_cards("a100-80gb", 100e9), "H100": GPUS["h100"]}
CARDS = {"A100": 1, "H100": 8}
STAGES, PASSES = (1, 2, 3), (4, 2, 1)
COMPUTING = "#333333"


class Priced(NamedTuple):
    """Of one GPU in a step: memory, seconds, of these the seconds that messages add, and whether it fits."""

    held: MemoryBreakdown
    seconds: float
    waits: float
    fits: bool


def halves(stage: int, passes: int) -> int:
    """Halves of an all-reduce that a step sends: what waits is sent once, all else in every pass."""
    return {1: 2, 2: passes + 1, 3: 3 * passes}[stage]


def speed(gpu: str) -> float:
    """Bytes a second that leave a machine: a ring through each of its cards."""
    return group_link(RANKS, 1, CLUSTERS[gpu]).rate


def price(gpu: str, stage: int, passes: int) -> Priced:
    """A step of 4 sequences a GPU, cut into ``passes``, as the simulator predicts it.

    As PyTorch's ``fully_shard`` does, stages 1 and 2 gather the new weights in the next step's first forward.

    Raises:
        ValueError: the GPU, the stage or the passes are none of those that the chapter knows.
    """
    one_of("the GPU", gpu, CLUSTERS)
    one_of("the stage", stage, STAGES)
    one_of("the passes", passes, PASSES)
    hardware = CLUSTERS[gpu]
    size, overlap = SEQUENCES // passes, ("gradients", "parameters")
    plan = Plan(RANKS, zero=stage, microbatches=passes, micro_batch=size, attention="flash", overlap=overlap)
    held = max(plan_memory(LLAMA, plan, hardware), key=lambda rank: rank.occupied)
    cost = step_cost(LLAMA, plan, hardware)
    return Priced(held, cost.seconds, cost.parts["data_parallel"], held.occupied <= hardware.memory)


def sequence_bytes() -> float:
    """The activations that one sequence leaves for backward on a GPU."""
    return plan_memory(LLAMA, Plan(RANKS, attention="flash"))[0].activations


def fitting(gpu: str) -> list[tuple[int, int]]:
    """The stages and passes for which a GPU has room."""
    return [(stage, passes) for stage in STAGES for passes in PASSES if price(gpu, stage, passes).fits]


def quickest(gpu: str) -> tuple[int, int]:
    """The stage and passes of the shortest step that fits."""
    return min(fitting(gpu), key=lambda plan: price(gpu, *plan).seconds)


def seconds_of_a_half(gpu: str) -> float:
    """A GPU sends all but its own 64th."""
    return collective_seconds("all-gather", HALF, RANKS, 1, CLUSTERS[gpu])


def in_seconds(gpu: str) -> Shown:
    """A table of one row: how long a half takes, how long a step computes, and what of the two may overlap."""
    found, rate, cards = price(gpu, 3, 1), speed(gpu) / 1e9, CARDS[gpu]
    row = [f"{cards} × {rate / cards:.0f} = {rate:.0f}",
           f"{RANKS - 1}/{RANKS} × {HALF / 1e9:.0f} ÷ {rate:.0f} = {seconds_of_a_half(gpu):.2f} s",
           f"{CLUSTERS[gpu].data_overlap:.0%}", f"{found.seconds - found.waits:.2f} s"]  # fmt: skip
    header = ["cards (GB/s)", "sending a half", "hides beside computing", "computing, whole step as one pass"]
    return table(
        header, [row], title=f"64 {gpu}s; activations of one sequence: {sequence_bytes() / 1e9:.1f} GB"
    )


def plot_plans(gpu: str, some: Sequence[tuple[int, int]] = ()) -> Picture:
    """Two strips for each plan: computing, and below it sending, hatched where it hides; bold: the shortest step.

    What hides is what the rounded numbers leave, so that they add up to the rounded step.

    Args:
        some: stages and passes; all that fit, if none are named.
    """
    from matplotlib.figure import Figure

    plans, best = some or fitting(gpu), quickest(gpu)
    figure = Figure(figsize=(WIDTH, 0.5 + 0.4 * len(plans)), layout="constrained")
    axis, told = figure.subplots(), []
    for row, plan in enumerate(plans):
        found, colour = price(gpu, *plan), COLOURS[f"stage {plan[0]}"]
        computes = found.seconds - found.waits
        sends = halves(*plan) * seconds_of_a_half(gpu)
        hides = sends - found.waits
        axis.barh(row - 0.18, computes, 0.34, color=COMPUTING)
        axis.barh(row + 0.18, found.waits, 0.34, left=computes, color=colour)
        axis.barh(
            row + 0.18, hides, 0.34, left=computes - hides, color="white", edgecolor=colour, hatch="/////"
        )
        parts = [round(part, 2) for part in (computes, sends, found.seconds)]
        said = "{:.2f} + {:.2f} − {:.2f} = {:.2f} s".format(
            *parts[:2], parts[0] + parts[1] - parts[2], parts[2]
        )
        axis.annotate(said, (found.seconds, row), (4, 0), textcoords="offset points", va="center",
                      fontsize=TEXT, fontweight="bold" if plan == best else "normal")  # fmt: skip
        told.append(f"stage {plan[0]}, passes {plan[1]}: {said}{', the shortest' * (plan == best)}")
    axis.set(xlim=(0, 1.75 * max(price(gpu, *plan).seconds for plan in plans)), xticks=[])
    labels = [f"stage {stage}, {n} pass{'es' * (n > 1)}: {halves(stage, n)} halves" for stage, n in plans]
    axis.set_yticks(range(len(plans)), labels, fontsize=TEXT)
    axis.invert_yaxis()
    bare(axis)
    axis.spines["bottom"].set_visible(False)
    axis.set_xlabel("computing (dark) + sending (below it) − hidden (hatched) = the step", fontsize=TEXT)
    axis.set_title(f"64 {gpu}s, predicted", fontsize=TITLE, loc="left")
    return render(
        figure, f"64 {gpu}s, predicted: computing + sending − hidden = the step. {'; '.join(told)}."
    )
