"""Any ``nn.Module`` as the simulator takes it: one step, run on fake tensors, by units of the model.

Parameters, bytes kept for backward, the most bytes alive in each unit's forward and backward, FLOPs and bytes moved by
every kernel. Nothing is computed, so that any size is quick, and the model stays as it is.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._autograd import _get_sequence_nr as get_sequence_nr
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.observe.fake_ranks import fake_ranks
from course_lib.observe.ledgers.memory import local
from course_lib.observe.ledgers.products import flops_of
from course_lib.observe.ledgers.saved import exchanged, fake_copy
from course_lib.observe.ledgers.traffic import event_of
from course_lib.observe.tp_plan import cut_by_plan
from course_lib.one_device.nested_tensors import map_tensors, tensors_in
from simulator.inputs.checks import one_of
from simulator.inputs.traced import Piece, TracedModel

Kind = type[nn.Module]
DTYPES = {2: torch.bfloat16, 4: torch.float32}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")  # whose seconds are known


def from_module(
    model: nn.Module | Callable[[], nn.Module],
    *inputs: Any,
    units: Kind | tuple[Kind, ...] | None = None,
    samples: int | None = None,
    itemsize: int | None = None,
    tp: int = 1,
    cut: Callable[[nn.Module, DeviceMesh], Any] | None = None,
    **named: Any,
) -> TracedModel:
    """One step of ``model(*inputs, **named)`` and of its backward, for ``simulator.any_module``.

    Its loss is the result's ``loss`` if there is one, as Hugging Face's models give it beside labels, and otherwise
    the sum of all that it returns.

    Args:
        model: any module, in the mode and the dtype in which it is to be trained, also on ``meta``; or a function that
                builds one.
        inputs, named: a microbatch, also on ``meta``; the first tensor's first dimension counts its samples.
        samples: trace with so many in place of those that the inputs have.
        units: classes of what is sharded and recomputed as one; None: the elements of the outermost lists of modules.
        itemsize: bytes of a parameter and of an input, 4 or 2 (bfloat16), in place of those that they have.
        tp, cut: what is traced is rank 0 of ``tp`` after ``cut(model, mesh)``, which cuts a copy of the model in place,
            by PyTorch's ``parallelize_module`` or by any layers that send through ``torch.distributed``; None: as the
            model's own ``tp_plan`` says. Nothing is sent: the ranks of the mesh, of one axis, do not exist.

    Raises:
        ValueError: there is no gradient to trace, shapes depend on values, or the model cannot be cut over ``tp``.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = fake_copy(model, mode)
    inputs, named = map_tensors(partial(_fake, mode), (inputs, named))
    if samples is not None:
        own = samples_in((inputs, named))
        inputs, named = map_tensors(
            lambda t: t.new_empty(samples, *t.shape[1:]) if t.dim() and len(t) == own else t, (inputs, named)
        )
    try:
        device = next((p.device.type for p in fake.parameters()), "cpu")
        with fake_ranks(tp, device) as mesh, mode:
            if itemsize not in (None, _itemsize(fake)):
                fake, inputs, named = _as(itemsize, fake, inputs, named)
            if mesh is not None:
                (cut or cut_by_plan)(fake, mesh)
                # The first run of an operator on DTensors runs it on tensors as large as the whole, too
                _Trace(fake, _units(fake, units)).run(inputs, named)
                fake.zero_grad()
            return replace(_Trace(fake, _units(fake, units)).run(inputs, named), tp=tp)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ValueError(
            f"{error.func} depends on the values of the inputs, and only shapes are traced"
        ) from error
    except (RuntimeError, AssertionError) as error:
        if tp == 1:
            raise
        why = (str(error) or repr(error)).splitlines()[0]
        raise ValueError(f"the module cannot be cut over tp {tp}: {why}") from error


def _fake(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    """As ``fake_copy`` takes a module: what is on meta is taken to the CPU."""
    if not tensor.is_meta:
        return mode.from_tensor(tensor)
    with mode:
        return torch.empty(tensor.shape, dtype=tensor.dtype)


def _as(itemsize: int, model: nn.Module, inputs: Any, named: Any) -> tuple[nn.Module, Any, Any]:
    """In the dtype of so many bytes."""
    one_of("itemsize", itemsize, DTYPES)
    dtype = DTYPES[itemsize]
    inputs, named = map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, (inputs, named))
    return exchanged(model, dtype), inputs, named


def _itemsize(model: nn.Module) -> int:
    return max((p.dtype.itemsize for p in model.parameters()), default=0)


def samples_in(inputs: Any) -> int:
    """The first dimension of the first tensor; 1 where there is none."""
    tensors = tensors_in(inputs)
    return len(tensors[0]) if tensors and tensors[0].dim() else 1


def _units(model: nn.Module, kinds: Any, prefix: str = "") -> dict[str, nn.Module]:
    """The units by their dotted names."""
    found: dict[str, nn.Module] = {}
    for name, child in model.named_children():
        path = f"{prefix}.{name}".lstrip(".")
        listed = isinstance(model, nn.ModuleList | nn.Sequential) and not isinstance(child, nn.ModuleList)
        if (listed and any(True for _ in child.parameters())) if kinds is None else isinstance(child, kinds):
            found[path] = child
        else:
            found |= _units(child, kinds, path)
    return found


@dataclass
class _Open:
    """A piece while it is traced; bytes are of the whole model."""

    name: str
    first: int  # number of its first node of the graph
    start: float
    peak: float
    kept: float = 0
    output: float = 0
    backward_peak: float = 0
    without: float = 0
    gradients: float = 0
    parameters: int = 0
    forward: Counter = field(default_factory=Counter)
    backward: Counter = field(default_factory=Counter)
    sent: Counter = field(default_factory=Counter)
    sent_back: Counter = field(default_factory=Counter)


class _Trace(TorchDispatchMode):
    """Follows every storage from the operator that makes it to its end."""

    def __init__(self, model: nn.Module, units: dict[str, nn.Module]) -> None:
        super().__init__()
        self.model, self.units = model, units
        self.alive = self.gradients = 0.0  # bytes; gradients of parameters are not among those alive
        self.seen: dict[int, weakref.ref] = {}
        self.pieces: list[_Open] = []
        self.at = 0  # the piece that runs
        self.inside = 0  # units under way: one inside another is no unit of its own
        self.in_backward = False

    def run(self, inputs: tuple, named: dict[str, Any]) -> TracedModel:
        own = [local(p) for p in self.model.parameters()]
        given = tensors_in((inputs, named))
        beside = [*map(local, self.model.buffers()), *given]
        for tensor in (*own, *beside):
            self._new(tensor)
        fixed = sum({id(t): t.nbytes for t in beside}.values())
        self.alive = 0.0  # parameters, buffers and inputs are known
        trained = [p for p in self.model.parameters() if p.requires_grad]
        with ExitStack() as stack:
            for name, unit in self.units.items():
                stack.callback(unit.register_forward_pre_hook(self._entered(name)).remove)
                stack.callback(unit.register_forward_hook(self._left).remove)
            for parameter in trained:
                stack.callback(parameter.register_post_accumulate_grad_hook(self._gradient).remove)
            stack.enter_context(self)
            self._open("")
            loss = _loss(self.model(*inputs, **named))
            self._close()
            self.in_backward = True
            loss.backward()
        taken = sum(piece.parameters for piece in self.pieces)
        return TracedModel(
            tuple(self._pieces()),
            samples_in(given),
            _itemsize(self.model),
            sum(p.numel() for p in own) - taken,
            max(p.numel() for p in own),
            fixed,
        )

    def _pieces(self) -> Iterator[Piece]:
        below = 0.0
        for piece in self.pieces:
            below += piece.kept
            yield Piece(
                piece.name,
                piece.parameters,
                piece.kept,
                piece.output,
                piece.peak - piece.start,
                piece.backward_peak - below,
                piece.without - below,
                dict(piece.forward),
                dict(piece.backward),
                dict(piece.sent),
                dict(piece.sent_back),
            )

    # ---- borders ------------------------------------------------------------------------------------------

    def _open(self, name: str) -> None:
        number = get_sequence_nr()
        self.pieces.append(_Open(name, number, self.alive, self.alive))
        self.at = len(self.pieces) - 1

    def _close(self) -> None:
        piece = self.pieces[self.at]
        piece.kept = self.alive - piece.start

    def _entered(self, name: str) -> Callable:
        def hook(*_: Any) -> None:
            self.inside += 1
            if self.inside == 1 and not self.in_backward:
                self._close()
                self._open(name)

        return hook

    def _left(self, _module: nn.Module, _inputs: Any, result: Any) -> None:
        self.inside -= 1
        if self.inside == 0 and not self.in_backward:
            self._close()
            piece = self.pieces[self.at]
            storages = [local(t).untyped_storage() for t in tensors_in(result)]
            sizes = {storage._cdata: storage.nbytes() for storage in storages}
            piece.output = max(0.0, min(piece.kept, sum(sizes.values())))
            self._open("")

    # ---- storages -----------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a DTensor breaks the operator down first; its pieces come by here again
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # on fake tensors PyTorch returns another
        if self.in_backward:
            self._find_piece()
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        result = func(*args, **(kwargs or {}))
        made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        fresh = [self._new(t) for t in made]
        piece = self.pieces[self.at]
        if self.in_backward:
            piece.backward_peak = max(piece.backward_peak, self.alive + piece.gradients)
            piece.without = max(piece.without, self.alive)
        else:
            piece.peak = max(piece.peak, self.alive)
        if event := event_of(func, args, kwargs or {}):
            collective, size = event[0].collective, float(event[0].payload)
            one_of("what a cut module sends", collective, COLLECTIVES)
            (piece.sent_back if self.in_backward else piece.sent)[collective, size] += 1
        elif any(fresh) or func._schema.is_mutable:  # a view moves nothing
            moved = sum(t.numel() * t.element_size() for t in (*given, *made))
            kernel = float(flops_of(func, args, kwargs or {}, result)), float(moved)
            (piece.backward if self.in_backward else piece.forward)[kernel] += 1
        return result

    def _find_piece(self) -> None:
        node = torch._C._current_autograd_node()
        if node is not None and not hasattr(node, "variable"):
            starts = [piece.first for piece in self.pieces]
            self.at = max(0, bisect_right(starts, node._sequence_nr()) - 1)

    def _new(self, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage()
        known = self.seen.get(storage._cdata)
        if known is not None and known() is storage:
            return False
        key, size = storage._cdata, storage.nbytes()

        def gone(_: Any) -> None:
            self.alive -= size
            self.seen.pop(key, None)

        self.seen[key] = weakref.ref(storage, gone)
        self.alive += size
        return True

    def _gradient(self, parameter: Tensor) -> None:
        """It stays as long as the step: from now on it is counted by itself."""
        piece, own = self.pieces[self.at], local(parameter)
        self.alive -= own.nbytes
        piece.gradients += own.nbytes
        piece.parameters += own.numel()


def _loss(result: Any) -> Tensor:
    loss = getattr(result, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    outputs = [t.sum() for t in tensors_in(result) if t.requires_grad]
    if not outputs:
        raise ValueError("nothing that the module returns needs a gradient: there is no backward to trace")
    return torch.stack(outputs).sum()
