"""Chapter 07's game: how many GPUs to rent for Llama 2 70B, with how many sequences on each, and at what price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simulator.inputs.checks import at_least
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes
from simulator.predict.memory import plan_memory
from simulator.predict.step import step_cost
from simulator.published.fsdp import FMS_CLUSTER as A100
from simulator.published.fsdp import fsdp_2024

LLAMA = MODELS["llama-2-70b"]
RUN = next(row for row in fsdp_2024() if row.shape == LLAMA)  # measured
MEASURED = 1e9 / 3600 / RUN.printed  # its GPU-hours for a billion tokens
LIMIT = 0.95 * A100.memory  # measured runs held up to 3 % more than the simulator says
REFUSED = "#c0202a"
LOOKS = {True: ("#143f70", "#143f70", "white"), False: ("white", "#cc6a26", "#222222")}  # face, edge, text


class Rented(NamedTuple):
    """A100s with 80 GB that train with FSDP, each with its own sequences of 4,096 tokens, every layer recomputed.

    Gathers run through all cards of a node.
    """

    gpus: int
    sequences: int = 1
    prefetch: bool = True

    @property
    def plan(self) -> Plan:
        return Plan(
            dp=self.gpus,
            zero=3,
            micro_batch=self.sequences,
            prefetch=int(self.prefetch),
            recompute="full",
            attention="flash",
        )

    @property
    def memory(self) -> float:
        """Bytes of a GPU in a step."""
        return plan_memory(LLAMA, self.plan, A100)[0].occupied

    @property
    def fits(self) -> bool:
        """With a twentieth of the memory free."""
        return self.memory <= LIMIT

    @property
    def seconds(self) -> tuple[float, float]:
        """Of a step: its computing, and what its communication adds, the hidden too, as it slows the computing."""
        cost = step_cost(LLAMA, self.plan, A100)
        added = cost.parts["data_parallel"]
        return cost.seconds - added, added

    @property
    def hours(self) -> float:
        """GPU-hours for a billion tokens."""
        return sum(self.seconds) / 3600 / (self.sequences * LLAMA.sequence) * 1e9

    def __str__(self) -> str:
        many = "sequence" if self.sequences == 1 else "sequences"
        how = "with prefetch" if self.prefetch else "without prefetch"
        refused = "out of memory" if self.memory > A100.memory else "too close to 80 GB"
        price = f"{self.hours:,.0f} GPU-hours" if self.fits else refused
        return f"{self.gpus} GPUs, {self.sequences} {many} each, {how}: {self.memory / 1e9:.1f} GB, {price}"


def fullest(gpus: int, prefetch: bool = True) -> Rented:
    """With as many sequences on each GPU as fit; with one, where not even that fits."""
    at_least(1, gpus=gpus)
    one = Rented(gpus, 1, prefetch)
    while (more := one._replace(sequences=one.sequences + 1)).fits:
        one = more
    return one


def plot_rented(tried: Sequence[Rented]) -> Picture:
    """Above the memory of a GPU over the GPUs, a dot for each try with its number of sequences, red if refused.

    Below the price of a token of those that fit; a line is the price that was measured, and a band up to a tenth more.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import MultipleLocator

    every = sorted(set(tried))
    most = max([48, *(one.gpus for one in every)])
    top = max([96, *(one.memory / 1e9 + 6 for one in every)])
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    memory, price = figure.subplots(2, 1, sharex=True, height_ratios=(4, 5))
    memory.axhspan(LIMIT / 1e9, top, color="#f9e4e2")
    memory.axhline(A100.memory / 1e9, color=REFUSED, linestyle="--", linewidth=1)
    price.axhspan(MEASURED, 1.1 * MEASURED, color="#e8f1ea")
    price.axhline(MEASURED, color="#23614a", linestyle="--", linewidth=1)
    for one in every:
        face, edge, ink = LOOKS[one.prefetch]
        if not one.fits:
            face, edge, ink = (REFUSED, REFUSED, "white") if one.prefetch else ("white", REFUSED, REFUSED)
        heights = ((memory, one.memory / 1e9), (price, one.hours))
        for axis, height in heights[: 1 + one.fits]:
            look = {"markerfacecolor": face, "markeredgecolor": edge, "markeredgewidth": 1.5}
            axis.plot(one.gpus, height, "o", markersize=12, **look)
            axis.text(
                one.gpus,
                height,
                str(one.sequences),
                color=ink,
                ha="center",
                va="center_baseline",
                fontsize=TEXT,
            )
    memory.set(ylim=(min([40, *(one.memory / 1e9 - 6 for one in every)]), top))
    price.set(xlim=(13.2, 1.03 * most), ylim=(600, 1150))
    price.xaxis.set_major_locator(MultipleLocator(A100.node_size * (1 if most <= 64 else 2)))
    price.set_xlabel("GPUs", fontsize=TEXT, loc="right")
    memory.set_title("GB of a GPU in a step", fontsize=TEXT, loc="left")
    price.set_title("GPU-hours for a billion tokens", fontsize=TEXT, loc="left")
    plain_axes(memory)
    plain_axes(price)
    said = f"measured on {RUN.plan.dp} GPUs, {RUN.plan.micro_batch} sequences each"
    marks = [("with prefetch", *LOOKS[True][:2])]
    if not all(one.prefetch for one in every):
        marks.append(("without prefetch", *LOOKS[False][:2]))
    if not all(one.fits for one in every):
        marks.append(("refused", REFUSED, REFUSED))
    dots = [
        Line2D([], [], marker="o", linestyle="", markersize=9, color=edge, markerfacecolor=face, label=label)
        for label, face, edge in marks
    ]
    full = Line2D([], [], color=REFUSED, linestyle="--", label="80 GB")
    line = Line2D([], [], color="#23614a", linestyle="--", label=said)
    near, band = (
        Patch(color="#f9e4e2", label="too little free"),
        Patch(color="#e8f1ea", label="up to a tenth more"),
    )
    figure.legend(
        handles=[*dots, full, near, line, band], loc="outside upper left", fontsize=TEXT, frameon=False, ncols=3,
        title="the number in a dot: sequences on each GPU", title_fontsize=TEXT, alignment="left",
    )  # fmt: skip
    told = "; ".join(map(str, every)) or "nothing was tried"
    return render(figure, f"GB of a GPU, and GPU-hours for a billion tokens. {told}; {said}: {MEASURED:.0f}.")
