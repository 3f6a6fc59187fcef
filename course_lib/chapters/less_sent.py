"""What chapter 19 runs and draws: a small network that reads digits, under methods that send less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from course_lib.by_hand.compress import Compressed, DiLoCo, PowerSGD, TopK, train
from course_lib.chapters.refused import Refused
from course_lib.data.digits import load_digits
from course_lib.data.sharding import batches
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from simulator.inputs.checks import at_least, positive
from simulator.plots import plot_curves
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, human, plain_axes
from simulator.predict.compression_traffic import power_sgd_traffic, top_k_traffic
from simulator.predict.traffic import ddp_traffic

Learned = dict[str, tuple[list[float], float, list[float]]]
LOOKS = (("#222222", "-"), ("#cc6a26", "-"))


class Everything(Compressed):
    """Whole gradients, as in chapter 05."""

    def exchange(self, i: int, wanted: Tensor):
        mean = wanted / self.p
        dist.all_reduce(mean)
        return mean, wanted


class Half(Compressed):
    """Whole gradients in bf16, without error feedback, as DDP's hook sends them."""

    def exchange(self, i: int, wanted: Tensor):
        mean = (wanted / self.p).bfloat16()
        dist.all_reduce(mean)
        return mean.to(wanted), wanted


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


def plot_changed(found: Learned) -> Picture:
    """The part of the weights that each run has changed, over the steps."""
    curves = {name: [100 * part for part in changed] for name, (_, _, changed) in found.items()}
    said = ", ".join(f"{name} {values[-1]:.0f} %" for name, values in curves.items())
    return plot_curves(
        curves, first=1, y="weights changed, %", bottom=0, alt=f"Weights that have changed: {said}."
    )


def sent_on(ranks: int, r: int = 2) -> dict[str, float]:
    """Bytes that a rank sends in a step of the network above, by method, as predicted."""
    shapes = [tuple(w.shape) for w in network().parameters()]
    sizes = [w.numel() for w in network().parameters()]
    return {
        "all numbers": ddp_traffic([sum(sizes)], ranks).sent,
        "top-k, 1 %": top_k_traffic(sizes, ranks, density=0.01).sent,
        f"PowerSGD, r = {r}": power_sgd_traffic([[s] for s in shapes], ranks, r, min_compression=1).sent,
    }


def choices(
    density: float, r: int, H: int, thin: float, ranks: int = 8
) -> dict[str, tuple[type, dict, float]]:
    """Top-k, PowerSGD and local SGD for ``learn``, by name, and the share of the bytes of whole gradients that each
    sends on so many ranks.

    Args:
        thin: the share of PowerSGD with ``r``, which depends on the shapes of a model.

    Raises:
        Refused: a setting that cannot be.
    """
    try:
        positive(density=density)
        at_least(1, r=r, H=H)
        if density > 1:
            raise ValueError(f"density must be at most 1, not {density}")
    except ValueError as refused:
        raise Refused(str(refused)) from None
    return {
        f"top-k, {100 * density:.3g} %": (TopK, {"density": density}, ranks * density),
        f"PowerSGD, r = {r}": (PowerSGD, {"r": r}, thin),
        f"local SGD, H = {H}": (DiLoCo, {"H": H, "lr": 1.0, "momentum": 0.0}, 1 / H),
    }


def plot_choices(found: Mapping[str, tuple[float, float]], one: float) -> Picture:
    """The loss over the ms of a step, a dot a choice.

    Args:
        found: the ms of a step and the last loss, by name.
        one: ms of a step of one GPU; the grey part is at least three times as fast.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axis = figure.subplots()
    axis.axvspan(20, one / 3, color="#eeeeee")
    axis.axvline(one, color="#8a8a8a", linewidth=1, linestyle=":")
    top = 0.04 + max(loss for _, loss in found.values())
    for x, said in (
        (20.5, f"three times\none GPU:\n{one / 3:.0f} ms"),
        (one * 1.02, f"one GPU: {one:.0f} ms"),
    ):
        axis.text(x, top, said, fontsize=TEXT, va="top")
    below = 0.0  # the loss of the last dot, from below
    for name, (ms, loss) in sorted(found.items(), key=lambda dot: dot[1][1]):
        close = loss - below < 0.07 * (top - 0.2)
        colour, beside, side = "#cc6a26", (7, 7 if close else -3), "left"
        below = loss if ms <= 300 else below
        if ms > 300:  # above, as two of them lie on one height
            colour, beside, side = "#222222", (5, 8), "right"
        axis.plot(ms, loss, "o", color=colour, markersize=7)
        place = {"xytext": beside, "textcoords": "offset points", "ha": side, "fontsize": TEXT}
        axis.annotate(name, (ms, loss), color=colour, **place)
    axis.set(xscale="log", xlim=(20, 800), ylim=(0.2, top + 0.005))
    axis.set_xticks([20, 50, 100, 200, 500], ["20", "50", "100", "200", "500"])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("ms of a step", fontsize=TEXT, loc="right")
    axis.set_ylabel("loss", fontsize=TEXT)
    plain_axes(axis)
    said = "; ".join(f"{name} {ms:.0f} ms, loss {loss:.2f}" for name, (ms, loss) in found.items())
    return render(figure, f"Loss over ms of a step. {said}.")


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
    """All numbers and top-k of ``sent_on`` over the number of ranks; both axes are logarithmic."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, NullLocator

    columns = [dict(list(sent_on(p).items())[:2]) for p in ranks]
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axis = figure.subplots()
    for (name, last), (colour, style) in zip(columns[-1].items(), LOOKS, strict=True):
        axis.plot(ranks, [column[name] for column in columns], style, color=colour, linewidth=2.2)
        place = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": TEXT}
        axis.annotate(name, (ranks[-1], last), color=colour, **place)
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
