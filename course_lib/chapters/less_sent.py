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
LOOKS = (("#222222", "-"), ("#cc6a26", "-"))


class Everything(Compressed):
    """Whole gradients, as in chapter 05."""

    def exchange(self, i: int, wanted: Tensor):
        mean = wanted / self.p
        dist.all_reduce(mean)
        return mean, wanted


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


def method_by_hand(method: str, share: float, every: int = 1, ranks: int = 8) -> tuple[type, dict]:
    """A method for ``learn`` that would send this share of the bytes of whole gradients on so many ranks, or less.

    Args:
        method: "top-k", "PowerSGD" or "whole gradients".
        share: of the bytes that a rank sends in a step, at most 1.
        every: steps from one exchange of whole gradients to the next; then ``share`` is not used.
        ranks: of which the share is meant. How top-k learns depends on the density alone.
    """
    if every > 1:
        return DiLoCo, {"H": every, "lr": 1.0, "momentum": 0.0}  # local SGD: the weights are averaged
    if method == "top-k":
        return TopK, {"density": min(1.0, share / ranks)}  # p % of the bytes for 1 % of the numbers
    if method != "PowerSGD":
        return Everything, {}

    def sends(r: int) -> float:
        sent = sent_on(ranks, r)
        return sent[f"PowerSGD, r = {r}"] / sent["all numbers"]

    return PowerSGD, {"r": max((r for r in range(1, 65) if sends(r) <= share), default=1)}


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
