"""Chapter 12's plans for one model on one cluster: what a step is spent on, and where one stands among all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from simulator.cli.question import read_plan
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.planner.plan_text import read_plan_text
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, bare, plain_axes
from simulator.predict.memory import plan_memory
from simulator.predict.step import step_cost


@dataclass(frozen=True)
class Priced:
    """A plan, the seconds of a step under it, and the bytes of its fullest device."""

    plan: Plan
    seconds: float
    memory: float

    @property
    def text(self) -> str:
        p = self.plan
        return f"{self.short},zero={p.zero},micro_batch={p.micro_batch},recompute={p.recompute}"

    @property
    def short(self) -> str:
        p = self.plan
        return f"tp={p.tp},pp={p.pp},dp={p.dp}"


def price(shape: ModelShape, plan: Plan, hardware: Hardware) -> Priced:
    """Time and memory of a plan.

    Raises:
        ValueError: the plan does not fit the model's shape.
    """
    plan = plan.on(hardware)
    plan.check(shape)
    memory = max(rank.occupied for rank in plan_memory(shape, plan, hardware))
    return Priced(plan, step_cost(shape, plan, hardware).seconds, memory)


def read_priced(text: str, shape: ModelShape, hardware: Hardware, gpus: int, sequences: int) -> Priced:
    """The price of a plan that is written in one line; tensor parallelism brings sequence parallelism with it.

    Raises:
        ValueError: the text is no plan, it takes another number of GPUs, or it does not fit the model's shape.
    """
    values = read_plan_text(text)
    values |= {"global_batch": sequences, "sequence_parallel": values.get("tp", 1) > 1}
    plan = read_plan(values, hardware)
    if plan.ranks != gpus:
        raise ValueError(f"tp × pp × dp is {plan.ranks} in this plan; the cluster has {gpus} GPUs")
    return price(shape, plan, hardware)


def every_plan(shape: ModelShape, hardware: Hardware, gpus: int, sequences: int) -> Iterator[Priced]:
    """All plans with tp and pp of 1 to 16 and microbatches of 1 to 4, and every kind of ZeRO and recomputation."""
    for tp, pp in product((1, 2, 4, 8, 16), repeat=2):
        dp, rest = divmod(gpus, tp * pp)
        if rest or sequences % dp:
            continue
        for b, recompute, zero in product((1, 2, 4), ("none", "full"), (0, 1, 3)):
            m, rest = divmod(sequences // dp, b)
            if rest:
                continue
            axes = {"tp": tp, "pp": pp, "dp": dp, "micro_batch": b, "microbatches": m}
            try:
                plan = Plan(**axes, recompute=recompute, zero=zero, sequence_parallel=tp > 1)
                yield price(shape, plan, hardware)
            except ValueError:
                pass  # the model cannot be cut so


COLOURS = ("#a9cbe8", "#dcdcdc", "#cc6a24")  # of what a step is spent on
EXPOSED = ("tensor_parallel", "pipeline", "data_parallel")


def spent_on(shape: ModelShape, plan: Plan, hardware: Hardware) -> dict[str, float]:
    """The seconds of a step: computing, the bubble of the pipeline, and communication that computing does not hide."""
    parts = step_cost(shape, plan, hardware).parts
    waited = {"bubble": parts["bubble"], "exposed communication": sum(parts[name] for name in EXPOSED)}
    return {"computing": sum(parts.values()) - sum(waited.values())} | waited


def plot_spent(
    seconds: Mapping[str, Mapping[str, float]], memory: Mapping[str, float], room: float
) -> Picture:
    """A bar for each plan: what its step is spent on; beside it the memory of its fullest device.

    Args:
        seconds: plan -> what ``spent_on`` says of it.
        memory: plan -> bytes.
        room: bytes of a device, a dashed line.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 1.1 + 0.42 * len(seconds)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2.2, 1))
    rows, base = range(len(seconds)), [0.0] * len(seconds)
    longest = max(sum(parts.values()) for parts in seconds.values())
    for part, colour in zip(next(iter(seconds.values())), COLOURS, strict=True):
        widths = [parts[part] for parts in seconds.values()]
        left.barh(rows, widths, 0.62, left=base, color=colour, label=part)
        for row, width in enumerate(widths):
            if width > 0.08 * longest:  # else there is no room
                left.text(base[row] + width / 2, row, f"{width:.1f}", ha="center", va="center", fontsize=TEXT)
        base = [start + width for start, width in zip(base, widths, strict=True)]
    used = [memory[name] / 1e9 for name in seconds]
    right.barh(rows, used, 0.62, color="#8fb99f")
    right.axvline(room / 1e9, color="#222222", linestyle="--", linewidth=1.2)
    for row in rows:
        total = {"va": "center", "fontsize": TEXT, "fontweight": "bold"}
        left.text(base[row] + 0.015 * longest, row, f"{base[row]:.1f}", **total)
        right.text(0.03 * room / 1e9, row, f"{used[row]:.0f}", va="center", fontsize=TEXT)
    left.set_title("seconds of a step", loc="left", fontsize=TITLE)
    right.set_title(f"memory, GB ({room / 1e9:.0f} fit)", loc="left", fontsize=TITLE)
    left.set_xlim(0, 1.15 * longest)
    right.set_xlim(0, 1.05 * max(room / 1e9, *used))
    left.set_yticks(rows, list(seconds))
    left.invert_yaxis()
    for axis in (left, right):
        axis.set_xticks([])
        bare(axis)
        axis.spines["bottom"].set_visible(False)
    figure.legend(loc="outside lower left", ncols=3, fontsize=TEXT, frameon=False, handlelength=1.2)
    said = (
        f"{name}: {', '.join(f'{part} {s:.1f} s' for part, s in parts.items())}, {gb:.0f} GB"
        for (name, parts), gb in zip(seconds.items(), used, strict=True)
    )
    return render(figure, "; ".join(said) + ".")


def plot_every_plan(
    plans: list[Priced],
    capacity: float,
    device: str,
    marked: Mapping[str, Priced] | None = None,
) -> Picture:
    """A point for each plan: the memory of its fullest device and the time of its step; a line at the device's memory.

    Args:
        marked: name -> a plan that is drawn large, with its name.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axis = figure.subplots()
    for tp, colour in zip(
        (1, 2, 4, 8, 16), ("#dcdcdc", "#a9cbe8", "#4a86ba", "#1b3a5c", "#cc6a24"), strict=True
    ):
        some = [p for p in plans if p.plan.tp == tp]
        if some:
            style = {
                "s": 16,
                "color": colour,
                "edgecolor": "#555555",
                "linewidth": 0.3,
                "label": f"tp = {tp}",
            }
            axis.scatter([p.memory / 1e9 for p in some], [p.seconds for p in some], **style)
    axis.axvline(capacity / 1e9, color="#222222", linestyle="--", linewidth=1)
    top = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "top", "fontsize": TEXT}
    axis.annotate(f"fits in one {device} ", (capacity / 1e9, 1), **top)
    for (name, plan), marker in zip((marked or {}).items(), "*D", strict=False):
        at = plan.memory / 1e9, plan.seconds
        axis.plot(*at, marker, color="#c0104a", markersize=13 if marker == "*" else 8)
        away = {"xytext": (0, 9 if marker == "*" else -9), "textcoords": "offset points", "ha": "center"}
        va = "bottom" if marker == "*" else "top"
        paper = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
        bold = {"fontsize": TEXT, "fontweight": "bold", "bbox": paper}
        axis.annotate(name, at, **away, va=va, color="#c0104a", **bold)
    axis.set_xscale("log")
    axis.set_xticks([20, 40, 80, 160, 320, 640, 1280])
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.minorticks_off()
    axis.set_xlabel("memory of the fullest GPU, GB (each mark doubles)", fontsize=TEXT, loc="right")
    axis.set_ylabel("time of a step, s", fontsize=TEXT)
    axis.set_ylim(0, 1.12 * max(p.seconds for p in plans))
    plain_axes(axis)
    axis.legend(fontsize=TEXT, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), handletextpad=0.2)
    said = "".join(
        f" {n}: {p.short}, {p.seconds:.1f} s, {p.memory / 1e9:.0f} GB." for n, p in (marked or {}).items()
    )
    fitting = sum(p.memory <= capacity for p in plans)
    return render(figure, f"{len(plans)} plans, of which {fitting} fit into one {device}.{said}")
