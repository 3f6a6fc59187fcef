"""Chapter 11: one step of a model that is cut in two ways, in seconds: computing, the bubble, and messages."""

from __future__ import annotations

from math import inf

from simulator.inputs.known_models import MODELS
from simulator.ledgers.traffic import Traffic
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, bare
from simulator.plots.timeline import COLOURS
from simulator.predict.traffic import fsdp_traffic, pipeline_traffic

SHAPE = MODELS["llama-2-13b"]
RANKS, SEQUENCES, TOKENS, BYTES = 8, 32, 4096, 2  # GPUs; in a step; in a sequence; of a number
FLOPS = 4e14  # that a GPU reaches in a second
BORDER = TOKENS * SHAPE.hidden  # numbers that cross a border between stages, for one microbatch
MESSAGE = BYTES * BORDER  # bytes
COMPUTING = 8 * SHAPE.parameters * SEQUENCES * TOKENS / RANKS / FLOPS  # seconds of each GPU: it recomputes
FORWARD = (
    COMPUTING / SEQUENCES / 4
)  # seconds of one F, of one W, and half of B's: a microbatch is one sequence
WAITS = {"computing": "#9cc9ee", "bubble": "#c9c9c9", "waiting for messages": COLOURS["all-gather"][0]}


def sent(sequences: int = SEQUENCES) -> dict[str, Traffic]:
    """What one GPU sends in a step under each cut; in the pipeline a GPU in the middle."""
    return {
        "pipeline, 1F1B": pipeline_traffic(BORDER, sequences, RANKS, rank=1, itemsize=BYTES),
        "FSDP": fsdp_traffic([SHAPE.parameters], RANKS, BYTES),
    }


def two_cuts(bandwidth: float, sequences: int = SEQUENCES) -> dict[str, tuple[float, float, float]]:
    """For each cut the seconds of computing, of the bubble, and of messages that nothing hides.

    FSDP sends while it computes, so it waits only for what takes longer than that.

    Args:
        bandwidth: bytes a second of each GPU.
        sequences: in a step; each is a microbatch of the pipeline.
    """
    schedule, computing = make_schedule("1f1b", RANKS, sequences), 4 * FORWARD * sequences
    free, slow = (
        simulate(schedule, FORWARD, 2 * FORWARD, FORWARD, message_bytes=MESSAGE, bandwidth=at).makespan
        for at in (inf, bandwidth)
    )
    late = sent()["FSDP"].sent / bandwidth - computing
    return {
        "pipeline, 1F1B": (computing, free - computing, slow - free),
        "FSDP": (computing, 0.0, max(0.0, late)),
    }


def break_even(sequences: int = SEQUENCES) -> float:
    """Bytes a second of each GPU from which on FSDP's step is the shorter one."""
    low, high = 1e9, 1e12
    while high - low > 1e6:
        middle = (low + high) / 2
        pipeline, fsdp = (sum(parts) for parts in two_cuts(middle, sequences).values())
        low, high = (low, middle) if fsdp < pipeline else (middle, high)
    return high


def plot_two_cuts(bandwidth: float, sequences: int = SEQUENCES) -> Picture:
    """A bar for each cut: what a GPU does in a step, in seconds."""
    from matplotlib.figure import Figure

    steps = two_cuts(bandwidth, sequences)
    figure = Figure(figsize=(WIDTH, 1.6), layout="constrained")
    axis = figure.subplots()
    longest = max(map(sum, steps.values()))
    for place, parts in enumerate(steps.values()):
        left = 0.0
        for (what, colour), seconds in zip(WAITS.items(), parts, strict=True):
            label = what if place == 0 else None
            axis.barh(place, seconds, 0.62, left=left, color=colour, label=label)
            left += seconds
        axis.annotate(
            f"{left:.1f}", (left, place), (4, 0), textcoords="offset points", va="center", fontsize=TEXT
        )
    amounts = [f"{name}\nsends {way.sent / 1e9:.0f} GB" for name, way in sent(sequences).items()]
    axis.set_yticks(range(len(steps)), amounts)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.1 * longest)
    axis.set_xlabel(
        f"seconds of a step of {sequences} sequences (a microbatch each), with recomputation, "
        f"at {bandwidth / 1e9:g} GB/s",
        fontsize=TEXT,
        loc="right",
    )
    bare(axis)
    figure.legend(loc="outside upper right", ncols=3, fontsize=TEXT, frameon=False, handlelength=1.2)
    told = (
        f"{name} {sum(parts):.1f} s, of which {parts[1]:.1f} bubble and {parts[2]:.1f} waiting for messages"
        for name, parts in steps.items()
    )
    return render(figure, f"A step of {sequences} sequences at {bandwidth / 1e9:g} GB/s: {'; '.join(told)}.")
