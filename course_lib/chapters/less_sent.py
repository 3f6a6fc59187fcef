"""What chapter 19 runs and draws: a small network that reads digits, under methods that send less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from math import inf, nan

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.by_hand.compress import Compressed, TopK, train
from course_lib.data.digits import load_digits
from course_lib.data.sharding import batches
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from simulator.plots import plot_curves
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, human, plain_axes
from simulator.predict.compression_traffic import power_sgd_traffic, top_k_traffic
from simulator.predict.traffic import ddp_traffic

Learned = dict[str, tuple[list[float], float]]
WHOLE = "whole gradients"
LOOKS = {"bf16": ("#1f7a6d", 6), WHOLE: ("#222222", 2), "1 %": ("#cc6a26", 3.5), "mine": ("#7d5ba6", 1.8)}
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


def learn(methods: Mapping[str, tuple[type, dict]], steps: int = 100, seed: int = 0) -> Learned:
    """On each rank, for each method: the loss of every step, the mean over 8 steps; and the bytes sent in a step."""
    torch.set_num_threads(1)  # the tensors are small
    found = {}
    for name, (method, settings) in methods.items():
        torch.manual_seed(seed)
        data = batches(load_digits(), 64, rank=dist.get_rank(), ranks=dist.get_world_size(), seed=seed)
        sgd = partial(torch.optim.SGD, lr=0.3)
        run = train(network(), islice(data, steps), sgd, cross_entropy, method, **settings)
        steps_done = [next(run)[0]]  # the first step also sends the weights
        period = settings.get("H", 1)  # steps from one exchange to the next, all alike
        with record_traffic() as log:
            steps_done += [loss for loss, _ in islice(run, period)]
        losses = torch.stack(steps_done + [loss for loss, _ in run])
        dist.all_reduce(losses)
        losses /= dist.get_world_size()
        curve = [losses[max(0, step - 7) : step + 1].mean().item() for step in range(steps)]
        found[name] = curve, log.traffic.sent / period
    return found


def two_weights(method: type[TopK]) -> tuple[str, list[list]]:
    """On each of two ranks: what a learner's method loses of two weights' gradients, and four steps of it as rows.

    The gradients are 1.0 and 0.3 on rank 0, and 0.3 and 1.0 on rank 1; each rank sends one number.
    """
    gradient = torch.tensor([[1.0, 0.3], [0.3, 1.0]])[dist.get_rank()]
    weight = nn.Parameter(torch.zeros(2))
    mine, rows, said = method([weight], density=0.5), [], ""
    exchange, seen, left = mine.exchange, [], torch.zeros(2)

    def watched(i: int, wanted: Tensor) -> tuple[Tensor, Tensor]:
        mean, sent = exchange(i, wanted)
        seen[:] = wanted.clone(), sent.clone()
        return mean, sent

    mine.exchange = watched
    for step in range(1, 5):
        weight.grad = gradient.clone()
        try:
            mine.after_backward()
            residual = mine.residuals[0]
            if getattr(residual, "shape", None) != gradient.shape:
                raise TypeError("a residual must be a tensor with the gradient's shape")
        except Exception as error:  # a learner's, of any kind
            return f"In step {step} your line fails: {error}.", []
        left = left + gradient - seen[1]
        values = seen[0], seen[1], weight.grad, residual
        rows.append([step, *(", ".join(f"{x:.1f}" for x in v.tolist()) for v in values)])
        for name, more in zip("AB", (residual - left).tolist(), strict=True):
            if not said and abs(more) > 1e-4:
                lost = (
                    "is neither sent nor kept" if more < 0 else "is kept, though it was sent or kept already"
                )
                said = f"In step {step}, {abs(more):.1f} of {name}'s gradient {lost}."
                if residual.equal(seen[0] - weight.grad):
                    said += " The mean also holds what the other rank has sent."
                elif residual.equal(weight.grad - seen[1]):
                    said += " Since the line above, w.grad is the mean."
    return said or "Nothing is lost: all is sent or kept.", rows


def plot_learned(found: Learned, log: bool = False) -> Picture:
    """The loss of each run, with the bytes that a rank sends in a step."""
    curves = {f"{name}: {human(sent)} a step": curve for name, (curve, sent) in found.items()}
    return plot_curves(curves, log=log, alt=f"Loss over steps, {', '.join(curves)}.")


def sent_on(ranks: int, r: int = 2) -> dict[str, float]:
    """Bytes that a rank sends in a step of the network above, by method, as predicted."""
    shapes = [tuple(w.shape) for w in network().parameters()]
    sizes = [w.numel() for w in network().parameters()]
    return {
        WHOLE: ddp_traffic([sum(sizes)], ranks).sent,
        "top-k, 1 %": top_k_traffic(sizes, ranks, density=0.01).sent,
        f"PowerSGD, r = {r}": power_sgd_traffic([[s] for s in shapes], ranks, r, min_compression=1).sent,
    }


def steps_to(curve: Sequence[float], loss: float = LOSS) -> float:
    """The first step, from 1 on, whose loss is at most this; infinite if none is."""
    return next((step for step, found in enumerate(curve, 1) if found <= loss), inf)


def plot_runs(found: Learned, ms: Mapping[str, Sequence[float]] | None = None) -> Picture:
    """The loss of each run over its steps, as far as it is below 3; or over seconds, with a dot at ``LOSS``.

    Args:
        found: of ``learn``; its names are those of ``LOOKS``.
        ms: for each run, what a step takes: computing, coding, message.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 3), layout="constrained")
    axis = figure.subplots()
    ends = []
    for name in (name for name in LOOKS if name in found):
        (curve, sent), (colour, width) = found[name], LOOKS[name]
        parts = ms[name] if ms else ()
        step = sum(parts) / 1e3 if ms else 1
        label = f"{' + '.join(f'{part:.2g}' for part in parts)} ms" if ms else human(sent)
        x, below = [step * (i + 1) for i in range(len(curve))], [loss if loss < 3 else nan for loss in curve]
        label = f"{name}: {label} a step"
        ends.append(f"{name} {human(sent)} a step")
        if ms:
            end = step * steps_to(curve)
            axis.plot(end, LOSS, "o", color=colour, markersize=8, markeredgecolor="white", zorder=5)
            ends[-1] = f"{name} {end:.3f}"
            label += f",\n{LOSS} after {end:.3f} s"
        axis.plot(x, below, color=colour, linewidth=2.2 if ms else width, label=label)
    axis.legend(loc="upper right" if ms else "lower left", fontsize=TEXT, frameon=False)
    axis.set_xlabel("seconds" if ms else "step", fontsize=TEXT, loc="right")
    axis.set_ylabel("loss, mean of 8 steps", fontsize=TEXT)
    plain_axes(axis)
    said = f"Loss over seconds; seconds to {LOSS}" if ms else "Loss over steps"
    return render(figure, f"{said}: {', '.join(ends)}.")


def plot_steps_to(took: Mapping[str, Sequence[float]]) -> Picture:
    """The steps to ``LOSS`` of several runs of each method, with their mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 1.9), layout="constrained")
    axis = figure.subplots()
    means = {name: sum(steps) / len(steps) for name, steps in took.items()}
    for row, (name, mean) in enumerate(means.items()):
        colour = LOOKS.get(name, LOOKS["1 %"])[0]
        axis.barh(row, mean, 0.55, color=colour, alpha=0.25)
        axis.plot(took[name], [row] * len(took[name]), "o", color=colour, markersize=6, alpha=0.7)
        place = {"xytext": (12, 0), "textcoords": "offset points", "va": "center", "fontsize": TEXT}
        axis.annotate(f"mean {mean:.0f}", (max(took[name]), row), **place)
    axis.set_yticks(range(len(means)), list(means))
    axis.invert_yaxis()
    axis.margins(x=0.2)
    axis.set_xlim(left=0)
    axis.set_xlabel(f"steps to the loss {LOSS} (a dot is a run)", fontsize=TEXT, loc="right")
    plain_axes(axis)
    said = ", ".join(f"{name} {mean:.0f}" for name, mean in means.items())
    return render(figure, f"Mean steps to the loss {LOSS}: {said}.")


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
    """Whole gradients and top-k of ``sent_on`` over the number of ranks; 10 and 100 are marked."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, NullLocator

    columns = [dict(list(sent_on(p).items())[:2]) for p in ranks]
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axis = figure.subplots()
    for (name, last), look in zip(columns[-1].items(), (WHOLE, "1 %"), strict=True):
        colour = LOOKS[look][0]
        axis.plot(ranks, [column[name] for column in columns], color=colour, linewidth=2.2)
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
