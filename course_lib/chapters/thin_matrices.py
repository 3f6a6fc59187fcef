"""The drawing of PowerSGD's idea: a real gradient beside two thin matrices, and the product of the two."""

from __future__ import annotations

from collections.abc import Sequence
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
from simulator.plots.style import TEXT, TITLE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 32  # rows and columns: those with the largest numbers
SIGN = 5  # room for a sign between two matrices, in columns


@cache
def gradients(steps: int = 31) -> tuple[Tensor, ...]:
    """The gradients of the middle layer of chapter 19's network in its first steps of training, each (256, 256)."""
    torch.manual_seed(0)
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.3)
    found = []
    for inputs, targets in islice(batches(load_digits(), 64, seed=0), steps):
        sgd.step()  # with the gradients of the batch before
        sgd.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        gradient = list(model.parameters())[1].grad
        assert gradient is not None
        found.append(gradient.clone())
    return tuple(found)


def thin(matrices: Sequence[Tensor], r: int) -> tuple[Tensor, Tensor]:
    """P (n, r) and Q (m, r) of the last of these matrices (n, m): in each step one round, from the last step's Q."""
    Q = torch.randn(matrices[0].shape[1], r, generator=torch.Generator().manual_seed(0))
    for M in matrices:
        P, _ = torch.linalg.qr(M @ Q)
        Q = M.T @ P
    return P, Q


def plot_thin_matrices(*ranks: int) -> Picture:
    """For each r a row: M, P, Q transposed and their product, as numbers in colours.

    Raises:
        Refused: an r is no whole number of at least 1.
    """
    from matplotlib.figure import Figure

    for r in ranks:
        asked(r=r)
    M = gradients()[-1]
    rows, columns = (M.square().sum(dim).argsort(descending=True)[:SHOWN] for dim in (1, 0))
    figure = Figure(figsize=(WIDTH, 2.7 * len(ranks)), layout="constrained")
    said = []
    for axis, r in zip(figure.subplots(len(ranks), 1, squeeze=False)[:, 0], ranks, strict=True):
        P, Q = thin(gradients(), min(r, *M.shape))
        product = P @ Q.T
        kept = 1 - ((M - product).square().sum() / M.square().sum()).item()
        sent = P.numel() + Q.numel()
        x = _matrix(axis, 0, M[rows][:, columns], f"G: {M.numel():,} numbers", "≈")
        x = _matrix(axis, x, P[rows][:, :SHOWN], f"r = {r}: {sent:,} numbers", "×")
        x = _matrix(axis, x, Q[columns][:, :SHOWN].T, "", "=")
        _matrix(axis, x, product[rows][:, columns], f"product: {100 * kept:.3g} % of G", "")
        axis.set(xlim=(-0.5, 3 * SHOWN + max(ranks) + 4 * SIGN), ylim=(SHOWN + 5, -4), aspect="equal")
        axis.text(0, SHOWN + 4, "blue: above zero, red: below, white: near zero", fontsize=TEXT)
        axis.set_axis_off()
        said.append(f"{r} columns, {sent:,} numbers, have {100 * kept:.3g} % of G's squares")
    return render(figure, f"A gradient G of {M.numel():,} numbers beside thin matrices: {'; '.join(said)}.")


def _matrix(axis: Axes, x: float, numbers: Tensor, above: str, sign: str) -> float:
    """Draw a matrix from x on, with a text above it and a sign behind it; returns where the next one begins."""
    height, width = numbers.shape
    most = numbers.abs().max().item() / 2  # what is larger is drawn alike
    place = (x, x + width, height, 0)
    axis.imshow(numbers.tolist(), cmap="RdBu", vmin=-most, vmax=most, extent=place, interpolation="none")
    axis.text(x, -1, above, fontsize=TEXT)
    axis.text(x + width + SIGN / 2, SHOWN / 2, sign, ha="center", va="center", fontsize=TITLE)
    return x + width + SIGN
