"""Chapter 07's game: how many GPUs to rent for Llama 2 70B, with how many texts on each, and at what price."""

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
LOOKS = {True: ("#143f70", "#143f70", "white"), False: ("white", "#cc6a26", "#222222")}  # face, edge, text


class Rented(NamedTuple):
    """A100s with 80 GB that train with FSDP, each with its own texts of 4,096 tokens, every layer recomputed.

    Gathers run through all cards of a node.
    """

    gpus: int
    texts: int = 1
    prefetch: bool = True

    @property
    def plan(self) -> Plan:
        return Plan(
            dp=self.gpus,
            zero=3,
            micro_batch=self.texts,
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
        return self.memory <= A100.memory

    @property
    def seconds(self) -> tuple[float, float]:
        """Of a step: its computing, and what its messages add, the hidden ones too, as they slow the computing."""
        cost = step_cost(LLAMA, self.plan, A100)
        added = cost.parts["data_parallel"]
        return cost.seconds - added, added

    @property
    def hours(self) -> float:
        """GPU-hours for a billion tokens."""
        return sum(self.seconds) / 3600 / (self.texts * LLAMA.sequence) * 1e9

    def __str__(self) -> str:
        many = "text" if self.texts == 1 else "texts"
        how = "with prefetch" if self.prefetch else "without prefetch"
        price = f"{self.hours:,.0f} GPU-hours" if self.fits else "does not fit"
        return f"{self.gpus} GPUs, {self.texts} {many} each, {how}: {self.memory / 1e9:.1f} GB, {price}"


def fullest(gpus: int, prefetch: bool = True) -> Rented:
    """With as many texts on each GPU as fit; with one, where not even that fits."""
    at_least(1, gpus=gpus)
    one = Rented(gpus, 1, prefetch)
    while (more := one._replace(texts=one.texts + 1)).fits:
        one = more
    return one


def plot_rented(tried: Sequence[Rented]) -> Picture:
    """The price of a token over the GPUs, a dot for each try that fits, with its number of texts in it.

    A line is the price that was measured, and a band up to a tenth above it.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import MultipleLocator

    fitting = sorted({one for one in tried if one.fits})
    most = max([32, *(one.gpus for one in fitting)])
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axis = figure.subplots()
    axis.axhspan(MEASURED, 1.1 * MEASURED, color="#e8f1ea")
    axis.axhline(MEASURED, color="#23614a", linestyle="--", linewidth=1)
    said = f"measured on {RUN.plan.dp} GPUs, {RUN.plan.micro_batch} texts each"
    for one in fitting:
        face, edge, ink = LOOKS[one.prefetch]
        at = one.gpus, one.hours
        axis.plot(*at, "o", markersize=12, markerfacecolor=face, markeredgecolor=edge, markeredgewidth=1.5)
        axis.text(*at, str(one.texts), color=ink, ha="center", va="center_baseline", fontsize=TEXT)
    axis.set(xlim=(13.2, 1.03 * most), ylim=(600, 1300))
    axis.xaxis.set_major_locator(MultipleLocator(A100.node_size))
    axis.set_xlabel("GPUs", fontsize=TEXT, loc="right")
    axis.set_ylabel("GPU-hours for a billion tokens", fontsize=TEXT)
    plain_axes(axis)
    dots = [
        Line2D([], [], marker="o", linestyle="", markersize=9, color=edge, markerfacecolor=face, label=said)
        for said, (face, edge, _) in zip(("with prefetch", "without prefetch"), LOOKS.values(), strict=True)
    ]
    line = Line2D([], [], color="#23614a", linestyle="--", label=said)
    band = Patch(color="#e8f1ea", label="up to a tenth more")
    axis.legend(
        handles=[*dots, line, band], loc="upper right", fontsize=TEXT, frameon=False,
        title="the number in a dot: texts on each GPU", title_fontsize=TEXT, alignment="left",
    )  # fmt: skip
    told = "; ".join(map(str, fitting)) or "nothing that fits was tried"
    return render(figure, f"GPU-hours for a billion tokens. {told}; {said}: {MEASURED:.0f}.")
