"""The drawing of PowerSGD's idea: a real gradient beside two thin matrices, and the product of the two."""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from course_lib.chapters.less_sent import asked, network
from course_lib.data.digits import load_digits
from course_lib.data.sharding import batches
from course_lib.one_device.loop import cross_entropy
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 32  # rows and columns: those with the largest numbers
SIGN = 5  # room for a sign between two matrices, in columns
BARS = 16  # singular values


@cache
def gradient_after(steps: int = 30) -> Tensor:
    """The gradient of the middle layer of chapter 19's network after some steps of training, (256, 256)."""
    torch.manual_seed(0)
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.3)
    for inputs, targets in islice(batches(load_digits(), 256, seed=0), steps + 1):
        sgd.step()  # with the gradients of the batch before
        sgd.zero_grad()
        cross_entropy(model(inputs), targets).backward()
    gradient = list(model.parameters())[1].grad
    assert gradient is not None
    return gradient


def thin(M: Tensor, r: int, rounds: int = 4) -> tuple[Tensor, Tensor]:
    """P (n, r) and Q (m, r) of PowerSGD, after some rounds on the same M (n, m)."""
    Q = torch.randn(M.shape[1], r, generator=torch.Generator().manual_seed(0))
    for _ in range(rounds):
        P, _ = torch.linalg.qr(M @ Q)
        Q = M.T @ P
    return P, Q


def plot_thin_matrices(r: int) -> Picture:
    """M, P, Q transposed and their product, as numbers in colours; below, M's largest singular values.

    Raises:
        Refused: r is no whole number of at least 1.
    """
    from matplotlib.figure import Figure

    asked(r=r)
    M = gradient_after()
    r = min(r, *M.shape)
    P, Q = thin(M, r)
    product = P @ Q.T
    kept = 1 - ((M - product).square().sum() / M.square().sum()).item()
    rows, columns = (M.square().sum(dim).argsort(descending=True)[:SHOWN] for dim in (1, 0))
    figure = Figure(figsize=(WIDTH, 4.0), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=(2.2, 1))
    sent = P.numel() + Q.numel()
    x = _matrix(upper, 0, M[rows][:, columns], f"M: {M.numel():,} numbers", "", "≈")
    x = _matrix(upper, x, P[rows][:, :SHOWN], f"P and Qᵀ: {sent:,} numbers", "P", "×")
    x = _matrix(upper, x, Q[columns][:, :SHOWN].T, "", "Qᵀ", "=")
    x = _matrix(upper, x, product[rows][:, columns], f"P Qᵀ: {100 * kept:.0f} % of M's squares", "", "")
    upper.set(xlim=(-0.5, x), ylim=(SHOWN + 4, -4), aspect="equal")
    upper.set_axis_off()
    values = torch.linalg.svdvals(M)
    colours = ["#143f70" if i < r else "#c9c9c9" for i in range(BARS)]
    lower.bar(range(1, BARS + 1), (values[:BARS] / values[0]).tolist(), color=colours)
    lower.set_title(f"the {BARS} largest of M's {len(values)} singular values", loc="left", fontsize=TITLE)
    lower.set_xticks(range(1, BARS + 1))
    lower.set_yticks([])
    plain_axes(lower)
    lower.spines["left"].set_visible(False)
    return render(
        figure,
        f"A gradient M of {M.numel():,} numbers beside two thin matrices of {r} columns, together {sent:,} numbers, "
        f"and their product, which has {100 * kept:.0f} % of M's squares. Below, bars of M's {BARS} largest singular "
        "values.",
    )


def _matrix(axis: Axes, x: float, numbers: Tensor, above: str, below: str, sign: str) -> float:
    """Draw a matrix from x on, with texts around it and a sign behind it; returns where the next one begins."""
    height, width = numbers.shape
    most = numbers.abs().max().item() / 2  # what is larger is drawn alike
    place = (x, x + width, height, 0)
    axis.imshow(numbers.tolist(), cmap="RdBu", vmin=-most, vmax=most, extent=place, interpolation="none")
    axis.text(x, -1, above, fontsize=TEXT)
    axis.text(x + width / 2, height + 1, below, ha="center", va="top", fontsize=TEXT)
    axis.text(x + width + SIGN / 2, SHOWN / 2, sign, ha="center", va="center", fontsize=TITLE)
    return x + width + SIGN
