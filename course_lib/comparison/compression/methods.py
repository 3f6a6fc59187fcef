"""The ways to send less that are compared: each builds what trains a model on this rank.

All have Adam, so that they differ in nothing but in what is sent and when. (``AsynchronousAveraging`` has a
``finish()``, which the run calls.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch.distributed as dist
from torch import nn
from torch.optim import Adam, Optimizer

from course_lib.compression.asynchronous import AsynchronousAveraging
from course_lib.compression.bytegrad import ByteGrad, MinMax8
from course_lib.compression.decentralised import Decentralised, LowPrecisionDecentralised
from course_lib.compression.diloco import DiLoCo
from course_lib.compression.hook import CommHook
from course_lib.compression.local_sgd import LocalSGD
from course_lib.compression.methods import COMPRESSIONS
from course_lib.compression.onebit import OneBitAdam
from course_lib.compression.powersgd import PowerSGD
from course_lib.compression.sparsify import RandomK, TopK
from course_lib.compression.streaming_diloco import StreamingDiLoCo
from course_lib.data_parallel.ddp import DDP
from simulator.inputs.mixing import pair_matrix, ring_matrix

EVERY = 8  # H, the steps between two averages of the local methods
TOP, RANDOM = 0.01, 0.1  # the parts of the gradients that top-k and random-k send
MATRIX_RANK = 4  # r of PowerSGD
DELAY, MIX = 2, 0.5  # of Streaming DiLoCo
LRS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)

Built = tuple[nn.Module, Optimizer]


@dataclass(frozen=True)
class Method:
    """One way to send.

    Attributes:
        title: in tables and pictures.
        build: ``(model, lr, steps)`` -> the model to call and the optimizer; called on every rank.
    """

    title: str
    build: Callable[[nn.Module, float, int], Built]


def hooked(make_hook: Callable[[], CommHook | None], model: nn.Module, lr: float, steps: int) -> Built:
    """DDP whose buckets are exchanged by a hook."""
    wrapped = DDP(model, comm_hook=make_hook())
    return wrapped, Adam(model.parameters(), lr)


def one_bit(make_codec: Callable[[], MinMax8 | None], model: nn.Module, lr: float, steps: int) -> Built:
    """The first ``warmup_of(steps)`` steps are plain Adam."""
    optimizer = OneBitAdam(model.parameters(), lr, warmup_steps=warmup_of(steps), codec=make_codec())
    return DDP(model, comm_hook=optimizer.hook), optimizer


def warmup_of(steps: int) -> int:
    """Steps of plain Adam before 1-bit Adam and QAdam freeze ``exp_avg_sq``: a fifth."""
    return max(1, steps // 5)


def local(wrap: Callable[..., Optimizer], model: nn.Module, lr: float, steps: int) -> Built:
    """Each rank has Adam of its own, and ``wrap`` averages weights around it."""
    return model, wrap(Adam(model.parameters(), lr))


def streaming(model: nn.Module, lr: float, steps: int) -> Built:
    wrap = partial(StreamingDiLoCo, fragments=halves(model), every=EVERY, delay=DELAY, mix=MIX)
    return local(wrap, model, lr, steps)


def halves(model: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters in two fragments, in the model's order."""
    parameters = list(model.parameters())
    middle = len(parameters) // 2
    return [parameters[:middle], parameters[middle:]]


def ring() -> Decentralised:
    matrix = ring_matrix(dist.get_world_size())
    return Decentralised(lambda step: matrix)


def pairs() -> Decentralised:
    ranks = dist.get_world_size()
    return Decentralised(lambda step: pair_matrix(ranks, step))


def ring_in_8_bits() -> LowPrecisionDecentralised:
    return LowPrecisionDecentralised(ring_matrix(dist.get_world_size()))


# Every one has a title in ``compression.methods``, and some a setting, which the table says, too.
BUILDS: dict[str, tuple[Callable[..., Built], str]] = {
    "none": (partial(hooked, lambda: None), ""),
    "bytegrad": (partial(hooked, ByteGrad), ""),
    "one-bit-adam": (partial(one_bit, lambda: None), ""),
    "q-adam": (partial(one_bit, MinMax8), ""),
    "top-k": (partial(hooked, partial(TopK, TOP)), f", {100 * TOP:g} %"),
    "random-k": (partial(hooked, partial(RandomK, RANDOM)), f", {100 * RANDOM:g} %"),
    "powersgd": (partial(hooked, partial(PowerSGD, MATRIX_RANK)), f", r = {MATRIX_RANK}"),
    "ring": (partial(hooked, ring), ""),
    "pairs": (partial(hooked, pairs), ""),
    "ring-8-bits": (partial(hooked, ring_in_8_bits), ""),
    "asynchronous": (partial(local, AsynchronousAveraging), ""),
    "local-sgd": (partial(local, partial(LocalSGD, every=EVERY)), f", H = {EVERY}"),
    "diloco": (partial(local, partial(DiLoCo, every=EVERY)), f", H = {EVERY}"),
    "streaming-diloco": (streaming, f", H = {EVERY}"),
}
METHODS = {
    name: Method(COMPRESSIONS[name].title + setting, build) for name, (build, setting) in BUILDS.items()
}
NAMES = tuple(METHODS)
