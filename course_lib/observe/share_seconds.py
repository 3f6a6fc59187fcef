"""Seconds of the blocks of a BERT layer for some shares of them, measured here: a planner of unequal splits reads them.

The blocks and what their shares count: ``simulator.predict.shares``. The times are of the processor, so that other
programs on the computer disturb them little.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.runtime.slowed import between_messages
from simulator.inputs.shape import ModelShape
from simulator.predict.shares import BLOCKS

PAUSE = 0.01  # seconds between two timed calls: in a run, too, a rank sleeps in between


def share_seconds(
    shape: ModelShape, shares: Mapping[str, Sequence[int]], batch: int = 1, calls: int = 3
) -> dict[str, dict[int, tuple[float, float]]]:
    """Block -> share -> (seconds of forward, of backward), as ``simulator.predict.shares`` takes them.

    Args:
        shape: of a BERT; one of its layers is timed, without dropout.
        shares: what is counted (``"heads"``, ``"columns"``, ``"positions"``) -> the shares that are timed.
        batch: sequences.
        calls: the median of so many calls counts, after one that does not count.
    """
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for block, counted in BLOCKS.items():
        for share in shares.get(counted, ()):
            work = block_work(shape, block, share, batch)
            found.setdefault(block, {})[share] = work.seconds(calls)
    return found


def processor_seconds(work: Callable[[], object], calls: int, pause: float = PAUSE) -> float:
    """The median of the seconds that the processor spends on a call in this thread, inside messages not counted.

    Args:
        calls: so many count, after one that does not.
        pause: seconds of sleep before each call.
    """
    return statistics.median([_once(work, pause) for _ in range(calls + 1)][1:])


def _once(work: Callable[[], object], pause: float) -> float:
    time.sleep(pause)
    stretches: list[float] = []
    with between_messages(lambda computed, _passed: stretches.append(computed)):
        work()
    return sum(stretches)


class BothWays:
    """Something to compute, and its backward from given gradients, ready to be timed.

    Args:
        forward: its result has the gradients 1.
        inputs: backward computes their gradients. As in a step, none are added to those of an earlier call.
    """

    def __init__(self, forward: Callable[[], Tensor | tuple[Tensor, ...]], inputs: Sequence[Tensor]) -> None:
        self._compute, self.inputs = forward, inputs
        self.forward()
        self.gradients = [torch.ones_like(y) for y in self.outputs]

    def forward(self) -> None:
        outputs = self._compute()
        self.outputs = outputs if isinstance(outputs, tuple) else (outputs,)

    def backward(self) -> None:
        torch.autograd.grad(self.outputs, self.inputs, self.gradients)

    def seconds(self, calls: int, pause: float = PAUSE) -> tuple[float, float]:
        """(Forward, backward): each as ``processor_seconds`` counts, in turn."""
        times = [(_once(self.forward, pause), _once(self.backward, pause)) for _ in range(calls + 1)]
        forward, backward = map(statistics.median, zip(*times[1:], strict=True))
        return forward, backward


def block_work(shape: ModelShape, block: str, share: int, batch: int) -> BothWays:
    """Forward and backward of a share of one block."""
    hidden, size, seq = shape.hidden, shape.head_size, shape.sequence
    heads = share if block == "attention" else shape.heads
    columns = share if block == "mlp" else shape.ffn
    own = share if BLOCKS[block] == "positions" else seq
    norm, up, down = nn.LayerNorm(hidden), nn.Linear(hidden, columns), nn.Linear(columns, hidden)
    query, key, value = (nn.Linear(hidden, heads * size) for _ in range(3))
    output = nn.Linear(heads * size, hidden)
    x = torch.randn(batch, own, hidden, requires_grad=True)
    others = torch.randn(
        2, batch, heads, seq - own, size, requires_grad=True
    )  # keys and values of other ranks

    def forward() -> Tensor:
        if block == "connection":
            return norm(x + x)
        if block.startswith("mlp"):
            return down(F.gelu(up(x)))
        q, k, v = (project(x).unflatten(-1, (heads, size)).transpose(1, 2) for project in (query, key, value))
        if own < seq:
            k, v = (torch.cat(both, dim=2) for both in zip((k, v), others, strict=True))
        return output(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    modules = {"connection": [norm], "mlp": [up, down]}.get(block.split()[0], [query, key, value, output])
    inputs = [x, *(p for module in modules for p in module.parameters())]
    if block.startswith("attention") and own < seq:
        inputs.append(others)
    return BothWays(forward, inputs)
