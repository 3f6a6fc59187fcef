"""A model that is no transformer, by what was counted in one step of it: pieces in the order of its forward.

``course_lib.observe.from_module`` traces any ``nn.Module`` into it; ``simulator.any_module`` prices it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simulator.inputs.checks import amounts, at_least, finite, not_negative

Work = Mapping[tuple[float, float], int]  # (FLOPs, bytes read and written) of a kernel: how often it runs
Sent = Mapping[tuple[str, float], int]  # (collective, bytes of the whole tensor): how often


@dataclass(frozen=True)
class Piece:
    """What runs between two borders of the model's units: a unit, or what stands before, between or behind them.

    Args:
        name: of the unit's module; ``""``: no unit.
        parameters: how many, those whose gradient is ready in this piece.
        kept: bytes that are there after its forward and were not before; ``output``: of them, what it passes on.
        forward_peak: the most bytes during its forward, beyond those before it.
        backward_peak: the most bytes during its backward, beyond those that it and the pieces before it keep, with its
            own new gradients; ``without_gradients``: the same without them.
        forward, backward: its kernels; ``sent``, ``sent_back``: what one tensor-parallel rank sends in them.
    """

    name: str
    parameters: int
    kept: float
    output: float
    forward_peak: float
    backward_peak: float
    without_gradients: float
    forward: Work
    backward: Work
    sent: Sent = field(default_factory=dict)
    sent_back: Sent = field(default_factory=dict)

    def __post_init__(self) -> None:
        at_least(0, parameters=self.parameters)
        not_negative(output=self.output, forward_peak=self.forward_peak)
        finite(kept=self.kept, backward_peak=self.backward_peak, without_gradients=self.without_gradients)
        for work in (self.forward, self.backward):
            for kernel in work:
                amounts(each_kernel=kernel)

    @property
    def flops(self) -> tuple[float, float]:
        """Of forward and of backward."""
        forward, backward = (
            sum(f * n for (f, _), n in work.items()) for work in (self.forward, self.backward)
        )
        return forward, backward


@dataclass(frozen=True)
class TracedModel:
    """One microbatch through a model.

    Args:
        samples: in the inputs with which it was traced: a plan's ``micro_batch``.
        itemsize: bytes of a parameter there.
        frozen: parameters without a gradient; ``largest``: parameters of the largest tensor.
        fixed: bytes of buffers and inputs, which are there all the time.
        tp: ranks that the module is cut over: all else is of one of them.
    """

    pieces: tuple[Piece, ...]
    samples: int
    itemsize: int
    frozen: int = 0
    largest: int = 0
    fixed: float = 0
    tp: int = 1

    def __post_init__(self) -> None:
        at_least(1, pieces=len(self.pieces), samples=self.samples, itemsize=self.itemsize, tp=self.tp)
        at_least(0, frozen=self.frozen, largest=self.largest)
        not_negative(fixed=self.fixed)

    @property
    def parameters(self) -> int:
        return self.frozen + sum(piece.parameters for piece in self.pieces)

    @property
    def flops(self) -> tuple[float, float]:
        """Of forward and of backward, of one microbatch."""
        forward, backward = zip(*(piece.flops for piece in self.pieces), strict=True)
        return sum(forward), sum(backward)

    @property
    def units(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.name]

    @property
    def alike(self) -> bool:
        """Whether a pipeline can deal out the units. The first one may have a shorter backward."""
        return len({(unit.parameters, unit.flops[0]) for unit in self.units}) == 1

    @property
    def precision(self) -> str:
        """What a plan calls it."""
        return "fp32" if self.itemsize == 4 else "mixed"


@dataclass
class Traces:
    """One module, traced once for each size of a microbatch, tensor-parallel axis and precision that a plan asks for.

    Args:
        trace: takes ``samples``, ``tp`` and ``itemsize`` as ``from_module`` does.
        samples: in the microbatch that is traced first, of which all is read that no size changes.

    >>> Traces(partial(from_module, model, *inputs, cut=cut), len(inputs[0]))  # doctest: +SKIP
    """

    trace: Callable[..., TracedModel]
    samples: int = 1
    known: dict[tuple, TracedModel | str] = field(default_factory=dict, repr=False)

    heads = 0  # any tp divides it: the trace says whether the module can be cut so
    sequence = experts = 1  # nothing that context or expert parallelism could deal out

    def __post_init__(self) -> None:
        at_least(1, samples=self.samples)

    def __call__(self, samples: int, tp: int = 1, itemsize: int | None = None) -> TracedModel:
        at_least(1, samples=samples, tp=tp)
        key = samples, tp, itemsize
        if key not in self.known:
            try:
                made = self.trace(samples=samples, tp=tp, itemsize=itemsize)
                self.known[samples, tp, made.itemsize] = made
            except ValueError as error:  # a search asks for it again
                made = str(error)
            self.known[key] = made
        if isinstance(found := self.known[key], str):
            raise ValueError(found)
        return found

    @property
    def first(self) -> TracedModel:
        return self(self.samples)

    @property
    def parameters(self) -> int:
        return self.first.parameters

    @property
    def layers(self) -> int:
        """Units that a pipeline can deal out: all if they are alike, otherwise the module is one."""
        return len(self.first.units) if self.first.alike else 1
