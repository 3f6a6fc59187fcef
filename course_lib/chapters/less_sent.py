"""What chapter 19 runs and draws: a small network that reads digits, under methods that send less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from math import inf

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from course_lib.by_hand.compress import Compressed, train
from course_lib.data.digits import load_digits
from course_lib.data.sharding import batches
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from simulator.plots import plot_curves
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, human, plain_axes
from simulator.predict.compression_traffic import power_sgd_traffic, top_k_traffic
from simulator.predict.traffic import ddp_traffic

Learned = dict[str, tuple[list[float], float, list[float]]]
WHOLE = "whole gradients"
LOOKS = (("#222222", "-"), ("#cc6a26", "-"))
RACERS = {WHOLE: "#222222", "bf16": "#1f7a6d", "top-k": "#cc6a26", "PowerSGD": "#7d5ba6"}
LOSS = 0.5  # that runs are compared at


class Everything(Compressed):
    """Whole gradients, as in chapter 05."""

    def exchange(self, i: int, wanted: Tensor):
        mean = wanted / self.p
        dist.all_reduce(mean)
        return mean, wanted


class InBf16(Everything):
    """All numbers in half the bytes, as DDP's ``bf16_compress_hook`` sends them."""

    def exchange(self, i: int, wanted: Tensor):
        mean, _ = super().exchange(i, wanted.bfloat16())
        return mean.to(wanted.dtype), wanted


def network() -> nn.Sequential:
    """64 pixels to 10 digits. Without biases, which would send as many messages again."""
    linear = partial(nn.Linear, bias=False)
    layers = linear(64, 256), nn.ReLU(), linear(256, 256), nn.ReLU(), linear(256, 10)
    return nn.Sequential(nn.Flatten(), *layers)


def learn(methods: Mapping[str, tuple[type, dict]], steps: int = 100) -> Learned:
    """On each rank, for each method: the loss of every step, smoothed over 8 steps; the bytes sent in a step; and
    after every step the part of the weights that is no longer what it was at the start."""
    torch.set_num_threads(1)  # the tensors are small
    found = {}
    for name, (method, settings) in methods.items():
        torch.manual_seed(0)
        start = parameters_to_vector(network().parameters())
        torch.manual_seed(0)
        data = batches(load_digits(), 64, rank=dist.get_rank(), ranks=dist.get_world_size(), seed=0)
        sgd = partial(torch.optim.SGD, lr=0.3)
        model = network()
        run = train(model, islice(data, steps), sgd, cross_entropy, method, **settings)

        def changed(model: nn.Module = model, start: Tensor = start) -> float:
            return (parameters_to_vector(model.parameters()) != start).double().mean().item()

        steps_done = [(next(run)[0], changed())]  # the first step also sends the weights
        period = settings.get("H", 1)  # steps from one exchange to the next, all alike
        with record_traffic() as log:
            steps_done += [(loss, changed()) for loss, _ in islice(run, period)]
        steps_done += [(loss, changed()) for loss, _ in run]
        losses = torch.stack([loss for loss, _ in steps_done])
        dist.all_reduce(losses)
        losses /= dist.get_world_size()
        curve = [losses[max(0, step - 7) : step + 1].mean().item() for step in range(steps)]
        found[name] = curve, log.traffic.sent / period, [part for _, part in steps_done]
    return found


def plot_learned(found: Learned, log: bool = False) -> Picture:
    """The loss of each run, with the bytes that a rank sends in a step."""
    curves = {f"{name}: {human(sent)} a step": curve for name, (curve, sent, _) in found.items()}
    return plot_curves(curves, log=log, alt=f"Loss over steps, {', '.join(curves)}.")


def sent_on(ranks: int, r: int = 2) -> dict[str, float]:
    """Bytes that a rank sends in a step of the network above, by method, as predicted."""
    shapes = [tuple(w.shape) for w in network().parameters()]
    sizes = [w.numel() for w in network().parameters()]
    return {
        "all numbers": ddp_traffic([sum(sizes)], ranks).sent,
        "top-k, 1 %": top_k_traffic(sizes, ranks, density=0.01).sent,
        f"PowerSGD, r = {r}": power_sgd_traffic([[s] for s in shapes], ranks, r, min_compression=1).sent,
    }


def steps_to(curve: Sequence[float], loss: float = LOSS) -> float:
    """The first step, from 1 on, whose loss is at most this; infinite if none is."""
    return next((step for step, found in enumerate(curve, 1) if found <= loss), inf)


def plot_seconds(found: Learned, ms: Mapping[str, Sequence[float]]) -> Picture:
    """The loss of each run over seconds; a dot where it reaches ``LOSS``.

    Args:
        found: of ``learn``.
        ms: for each run, what a step takes: computing, coding, message.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 3), layout="constrained")
    axis = figure.subplots()
    ends = []
    for (name, (curve, _, _)), (colour, _) in zip(found.items(), LOOKS, strict=True):
        step = sum(ms[name]) / 1e3
        label = f"{name}: {' + '.join(f'{part:.2g}' for part in ms[name])} ms a step"
        axis.plot(
            [step * (i + 1) for i in range(len(curve))], curve, color=colour, linewidth=2.2, label=label
        )
        end = step * steps_to(curve)
        axis.plot(end, LOSS, "o", color=colour, markersize=7)
        place = {"textcoords": "offset points", "fontsize": TEXT, "color": colour}
        axis.annotate(f"{end:.2f} s", (end, LOSS), xytext=(6, 7), **place)
        ends.append(f"{name} {end:.2f}")
    axis.legend(loc="upper right", fontsize=TEXT, frameon=False)
    axis.set_xlabel("seconds", fontsize=TEXT, loc="right")
    axis.set_ylabel("loss", fontsize=TEXT)
    plain_axes(axis)
    return render(figure, f"Loss over seconds; seconds to {LOSS}: {', '.join(ends)}.")


def plot_steps_to(took: Mapping[str, Mapping[str, tuple[float, float]]]) -> Picture:
    """Steps to ``LOSS`` over the bytes of a step.

    Args:
        took: by kind of method, and by its setting: bytes of a step, and steps.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axis = figure.subplots()
    for (kind, runs), look in zip(took.items(), ("s", "D", "o-", "s"), strict=True):
        sent, steps = zip(*runs.values(), strict=True)
        fill = "white" if kind == "PowerSGD" else RACERS[kind]  # it often lies on top-k
        axis.plot(sent, steps, look, color=RACERS[kind], markersize=6, markerfacecolor=fill, label=kind)
        for name, (x, y) in runs.items():
            if kind == "top-k":
                place = {"xytext": (6, 6), "textcoords": "offset points", "fontsize": TEXT}
                axis.annotate(f"{name}: {y:.0f}", (x, y), color=RACERS[kind], **place)
    axis.set(xscale="log", xlim=(1e2, 9e5), ylim=(0, None))
    axis.set_xticks([1e2, 1e3, 1e4, 1e5], ["0.1", "1", "10", "100"])
    axis.xaxis.set_minor_locator(NullLocator())
    figure.legend(loc="outside upper left", ncols=len(took), fontsize=TEXT, frameon=False)
    axis.set_xlabel("kB sent in a step", fontsize=TEXT, loc="right")
    axis.set_ylabel(f"steps to the loss {LOSS}", fontsize=TEXT)
    plain_axes(axis)
    said = "; ".join(f"{name} {steps:.0f}" for runs in took.values() for name, (_, steps) in runs.items())
    return render(figure, f"Steps to the loss {LOSS} over the bytes of a step: {said}.")


def plot_thin(G: Tensor, columns: Tensor, column: Tensor, rows: Tensor, row: Tensor) -> Picture:
    """A step of PowerSGD with one column on two ranks: what each computes, and the two means that both get.

    Args:
        G: the gradient of each rank, (2, n, m).
        columns, rows: of each rank, (2, n) and (2, m).
        column, row: their means; the column is of length 1.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    n, m = G.shape[1:]
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axis = figure.subplots()

    def grid(matrix: Tensor, left: float, middle: float, colour: str) -> None:
        top = middle - len(matrix) / 2
        for i, line in enumerate(matrix.tolist()):
            for j, value in enumerate(line):
                place = left + j, top + i
                axis.add_patch(Rectangle(place, 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5))
                said = f"{value:.2g}"
                axis.text(place[0] + 0.5, place[1] + 0.5, said, ha="center", va="center", fontsize=TEXT)

    second = m + 1.2
    mean, third = second + 3.2, second + 5.4
    last = third + m + 2.2
    middles, centre = (n / 2, 1.5 * n + 1), n + 0.5
    for rank, middle in enumerate(middles):
        axis.text(-0.3, middle, f"rank {rank}", ha="right", va="center", fontsize=TEXT)
        grid(G[rank], 0, middle, "#cfe2f3")
        grid(columns[rank][:, None], second, middle, "#f6d9c3")
        grid(rows[rank][None], third, middle, "#f6d9c3")
        for start, end in ((second + 1.1, mean - 0.1), (third + m + 0.1, last - 0.1)):
            axis.annotate("", (end, centre), (start, middle), arrowprops={"arrowstyle": "->"})
    grid(column[:, None], mean, centre, "#e9a877")
    grid(row[None], last, centre, "#e9a877")
    heads = (("G", m / 2), ("columns", second + 0.5), ("column", mean + 0.5), ("rows", third + m / 2))
    for said, x in (*heads, ("row", last + m / 2)):
        axis.text(x, -0.3, said, ha="center", va="bottom", fontsize=TEXT)
    for x in ((second + 1 + mean) / 2, (third + m + last) / 2):
        axis.text(x, 2 * n + 1.3, "all-reduce", ha="center", va="top", fontsize=TEXT)
    axis.set(xlim=(-2, last + m + 0.1), ylim=(2 * n + 2, -1))
    axis.set_aspect("equal")
    axis.axis("off")
    return render(figure, f"PowerSGD on two ranks: row {row.tolist()}.")


def plot_sent_over_ranks(ranks: Sequence[int] = (2, 4, 8, 16, 32, 64, 128, 256)) -> Picture:
    """All numbers and top-k of ``sent_on`` over the number of ranks, with 10 and 100 marked; axes are logarithmic."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, NullLocator

    columns = [dict(list(sent_on(p).items())[:2]) for p in ranks]
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axis = figure.subplots()
    for (name, last), (colour, style) in zip(columns[-1].items(), LOOKS, strict=True):
        axis.plot(ranks, [column[name] for column in columns], style, color=colour, linewidth=2.2)
        place = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": TEXT}
        axis.annotate(name, (ranks[-1], last), color=colour, **place)
    beside = ((10, "10 ranks: a tenth", (9, -12), "left"), (100, "100 ranks: the same", (-4, 9), "right"))
    for p, said, away, side in beside:
        both = [sent_on(p)[name] for name in columns[-1]]
        axis.plot([p, p], both, "o:", color="#777777", markersize=6)
        place = {"xytext": away, "textcoords": "offset points", "ha": side, "fontsize": TEXT}
        axis.annotate(said, (p, both[-1]), **place)
    axis.set(xscale="log", yscale="log", xlim=(ranks[0], ranks[-1]), ylim=(5e3, 4e6))
    axis.set_xticks(ranks, [str(p) for p in ranks])
    axis.set_yticks([1e4, 1e5, 1e6], ["10 kB", "100 kB", "1 MB"])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("ranks", fontsize=TEXT)
    axis.set_ylabel("sent by a rank in a step", fontsize=TEXT)
    plain_axes(axis)
    said = "; ".join(
        f"{p} ranks: {', '.join(f'{n} {human(b)}' for n, b in column.items())}"
        for p, column in zip(ranks, columns, strict=True)
    )
    return render(figure, f"Bytes sent by a rank in a step over the number of ranks. {said}.")
