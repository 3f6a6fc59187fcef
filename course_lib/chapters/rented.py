"""Chapter 07's game: how many GPUs to rent for Llama 2 70B, and how many sequences to give each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from simulator.inputs.checks import at_least
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes
from simulator.predict.collective_time import collective_seconds
from simulator.predict.memory import plan_memory
from simulator.predict.step import step_cost, unit_seconds
from simulator.published.fsdp import FMS_CLUSTER as A100
from simulator.published.fsdp import fsdp_2024

LLAMA = MODELS["llama-2-70b"]
TOKENS, DAYS, BUDGET = 10e9, 10, 8000  # the job: days at most, and GPU-hours at most
RUN = next(row for row in fsdp_2024() if row.shape == LLAMA)  # measured
MEASURED = TOKENS / 3600 / RUN.printed  # GPU-hours that the job would take there
LIMIT = 0.95 * A100.memory  # measured runs held up to 3 % more than the simulator says
FAILS, ENOUGH = "#c0202a", "#143f70"


class Rented(NamedTuple):
    """A100s with 80 GB that train with FSDP, each with its own sequences of 4,096 tokens, every layer recomputed.

    Each layer is gathered one ahead, through all cards of a node.
    """

    gpus: int
    sequences: int = 1

    @property
    def plan(self) -> Plan:
        return Plan(dp=self.gpus, zero=3, micro_batch=self.sequences, recompute="full", attention="flash")

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
    def communication(self) -> tuple[float, float]:
        """Its seconds in a step: beside computing, of which a part costs nothing, and exposed."""
        free = replace(A100, data_overlap=1.0)  # so that only what is exposed adds
        exposed = step_cost(LLAMA, self.plan, free).parts["data_parallel"]
        return (self.seconds[1] - exposed) / (1 - A100.data_overlap), exposed

    def worked(self) -> str:
        """A step's computing, its communication, what of this is exposed, and what it adds."""
        (computing, added), (hidden, exposed) = self.seconds, self.communication
        (layer,) = unit_seconds(LLAMA, self.plan.on(A100), A100).layers.values()
        unit = 2 * LLAMA.layer_parameters()
        gather = LLAMA.layers * collective_seconds("all-gather", unit, self.gpus, 1, A100, True)
        reached = (1 - 1 / self.gpus) * LLAMA.layers * unit / gather
        forward, backward = LLAMA.layers * layer.forward_seconds, LLAMA.layers * layer.backward_seconds
        rest = computing - forward - backward, hidden + exposed - 3 * gather
        rows = {
            "forward": (forward, gather, max(0.0, gather - forward)),
            "backward": (backward, 2 * gather, max(0.0, 2 * gather - backward)),
            "root, update": (*rest, rest[1]),
            "together": (computing, hidden + exposed, exposed),
        }
        lines = [f"{'':12}  computes  communicates  exposed"]
        lines += [f"{name:12}{a:8.1f} s{b:12.1f} s{c:7.1f} s" for name, (a, b, c) in rows.items()]
        lines += [
            "",
            f"gather: {self.gpus - 1}/{self.gpus} of {LLAMA.layers * unit / 1e9:.0f} GB of weights at "
            f"{reached / 1e9:.0f} GB/s = {gather:.1f} s",
            f"added:  {hidden:.1f} s hidden / 2 + {exposed:.1f} s exposed = {added:.1f} s",
            f"step:   {computing:.1f} s + {added:.1f} s",
        ]
        return "\n".join(lines)

    @property
    def hours(self) -> float:
        """GPU-hours for the job."""
        return sum(self.seconds) / 3600 / (self.sequences * LLAMA.sequence) * TOKENS

    @property
    def days(self) -> float:
        """For the job."""
        return self.hours / 24 / self.gpus

    @property
    def enough(self) -> bool:
        """It fits, and does the job in time and within the budget."""
        return self.fits and self.days <= DAYS and self.hours <= BUDGET

    def __str__(self) -> str:
        many = "sequence" if self.sequences == 1 else "sequences"
        refused = "out of memory" if self.memory > A100.memory else "too close to 80 GB"
        price = f"{self.days:.1f} days, {self.hours:,.0f} GPU-hours" if self.fits else refused
        return f"{self.gpus} GPUs, {self.sequences} {many} each: {self.memory / 1e9:.1f} GB, {price}"


def fullest(gpus: int) -> Rented:
    """With as many sequences on each GPU as fit; with one, where not even that fits."""
    at_least(1, gpus=gpus)
    one = Rented(gpus, 1)
    while (more := one._replace(sequences=one.sequences + 1)).fits:
        one = more
    return one


def plot_rented(tried: Sequence[Rented]) -> Picture:
    """Above the memory of a GPU over the GPUs, a dot with its sequences for each try, blue if it does the job.

    Below the days, and in green all that is in time and within the budget.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import MultipleLocator

    every = sorted(set(tried))
    most = max([48, *(one.gpus for one in every)])
    top = max([96, *(one.memory / 1e9 + 6 for one in every)])
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    memory, time = figure.subplots(2, 1, sharex=True, height_ratios=(4, 5))
    memory.axhspan(LIMIT / 1e9, top, color="#f9e4e2")
    memory.axhline(A100.memory / 1e9, color=FAILS, linestyle="--", linewidth=1)
    ends = 13.2, 1.04 * most
    over = [ends[0] + (ends[1] - ends[0]) * part / 200 for part in range(201)]
    time.fill_between(over, [min(DAYS, BUDGET / 24 / gpus) for gpus in over], color="#d5e8da")
    note = {"fontsize": TEXT, "color": "#23614a", "va": "bottom"}
    time.text(ends[0] + 0.4, DAYS + 0.1, f"{DAYS} days", **note)
    time.text(0.76 * most, BUDGET / 24 / (0.76 * most) + 0.3, f"{BUDGET:,} GPU-hours", **note)
    for one in every:
        colour = ENOUGH if one.enough else FAILS
        place = (
            one.gpus + (-0.45 if one.sequences % 2 else 0.45) * most / 48
        )  # neighbours do not hide each other
        for axis, height in ((memory, one.memory / 1e9), (time, one.days)):
            axis.plot(place, height, "o", markersize=12, color=colour)
            written = {
                "color": "white",
                "ha": "center",
                "va": "center_baseline",
                "fontsize": TEXT,
                "clip_on": True,
            }
            axis.text(place, height, str(one.sequences), **written)
    memory.set(ylim=(min([40, *(one.memory / 1e9 - 6 for one in every)]), top))
    time.set(xlim=ends, ylim=(0, max([15, *(one.days + 1 for one in every if one.fits)])))
    time.xaxis.set_major_locator(MultipleLocator(A100.node_size * -(-most // 64)))
    time.yaxis.set_major_locator(MultipleLocator(5))
    time.set_xlabel("GPUs", fontsize=TEXT, loc="right")
    memory.set_title("GB of a GPU in a step", fontsize=TEXT, loc="left")
    time.set_title(f"days for {TOKENS / 1e9:.0f} billion tokens", fontsize=TEXT, loc="left")
    plain_axes(memory)
    plain_axes(time)
    looks = {"fails": FAILS, "does the job": ENOUGH}
    seen = {ENOUGH if one.enough else FAILS for one in every}
    dot = {"marker": "o", "linestyle": "", "markersize": 9}
    marks = [Line2D([], [], color=look, label=name, **dot) for name, look in looks.items() if look in seen]
    marks += [Line2D([], [], color=FAILS, linestyle="--", label="80 GB")]
    marks += [Patch(color="#f9e4e2", label="too little free")]
    marks += [Patch(color="#d5e8da", label="in time and within the budget")]
    figure.legend(
        handles=marks, loc="outside upper left", fontsize=TEXT, frameon=False, ncols=3, alignment="left",
        title="the number in a dot: sequences on each GPU", title_fontsize=TEXT,
    )  # fmt: skip
    told = "; ".join(map(str, every)) or "nothing was tried"
    return render(figure, f"GB of a GPU, and days for the job, at most {DAYS}. {told}.")
