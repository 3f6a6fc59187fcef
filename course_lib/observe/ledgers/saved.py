"""What autograd saves in a forward for the backward: every tensor, by who made it and who keeps it.

Nothing is computed: the model is copied to fake tensors, which have shapes and storages but no data, and take
the same path through PyTorch as real ones on the CPU. So any size is quick, and the model stays as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from course_lib.one_device.nested_tensors import map_tensors


class SavedTensor(NamedTuple):
    """One tensor kept for backward; views of one storage are one tensor, as they take its bytes once.

    Args:
        made_in: dotted name of the innermost submodule in whose forward it was written (``""``: the model's own).
        producer: the operator that wrote it (``"native_layer_norm"``), or ``"input"``: it came from outside.
        saved_in: the submodule whose forward saved it first.
        shape: as it was first saved.
        dtype: of its elements.
        bytes: of its whole storage.
    """

    made_in: str
    producer: str
    saved_in: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int


def saved_tensors(model: nn.Module | Callable[[], nn.Module], *inputs: Any) -> list[SavedTensor]:
    """The tensors that ``model(*inputs)`` saves, in the order in which it does; parameters and buffers left out.

    Args:
        model: any module, in the mode (training or evaluation) that is to be measured; one on ``meta`` is measured
            as on the CPU. Or a function that builds one: for a module with closures, which no copy takes along.
        inputs: what it takes, not on ``meta``; those of floating point get a gradient, as the output of an earlier
            layer would.
    """
    mode = FakeTensorMode()
    fake, inputs = fake_copy(model, mode), map_tensors(mode.from_tensor, inputs)
    with mode:
        return _run(fake, inputs)


def saved_bytes_by_module(
    model: nn.Module | Callable[[], nn.Module], *inputs: Any, depth: int = 1
) -> dict[str, int]:
    """Bytes saved by each submodule: its dotted name, cut to ``depth`` parts, to bytes, in order of saving.

    A tensor that several save counts for the first, so the values add up to the model's.
    """
    total: dict[str, int] = {}
    for tensor in saved_tensors(model, *inputs):
        name = ".".join(tensor.saved_in.split(".")[:depth])
        total[name] = total.get(name, 0) + tensor.bytes
    return total


def fake_copy(model: nn.Module | Callable[[], nn.Module], mode: FakeTensorMode) -> nn.Module:
    """A module, or what a function builds, on fake tensors."""
    if not isinstance(model, nn.Module):
        return _built(model, mode)
    with mode:  # what is on meta is taken to the CPU, whose operators save other tensors
        moved = {id(b): torch.empty(b.shape, dtype=b.dtype) for b in model.buffers() if b.is_meta}
        moved |= {
            id(p): nn.Parameter(torch.empty(p.shape, dtype=p.dtype), p.requires_grad)
            for p in model.parameters()
            if p.is_meta
        }
    for p in model.parameters():  # three times as quick as to let deepcopy clone each of them
        if type(p) is nn.Parameter and not p.is_meta:
            moved[id(p)] = mode.from_tensor(p)
    with FakeCopyMode(mode):
        return copy.deepcopy(model, moved)


def _built(build: Callable[[], nn.Module], mode: FakeTensorMode) -> nn.Module:
    """Built on meta, where it takes no time. Then its tensors are exchanged: closures keep its modules."""
    with torch.device("meta"):
        model = build()
    with mode:
        return exchanged(model)


def exchanged(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """The module with new tensors, those of floating point in ``dtype``; None: in their own."""
    moved: dict[Tensor, Tensor] = {}  # what is tied stays tied
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    own = dtype if dtype and tensor.is_floating_point() else tensor.dtype
                    new = torch.empty(
                        tensor.shape, dtype=own, device=None if tensor.is_meta else tensor.device
                    )
                    if isinstance(tensor, nn.Parameter):
                        new = nn.Parameter(new, tensor.requires_grad)
                    table[name] = moved.setdefault(tensor, new)
    return model


def _run(model: nn.Module, inputs: tuple) -> list[SavedTensor]:
    inputs = map_tensors(lambda t: t.detach().requires_grad_(t.is_floating_point()), inputs)
    own = WeakIdKeyDictionary()
    for tensor in (*model.parameters(), *model.buffers()):
        own[tensor.untyped_storage()] = True
    saved: list[SavedTensor] = []
    seen = WeakIdKeyDictionary()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage not in own and storage not in seen:
            seen[storage] = True
            made_in, producer = writers.of.get(storage, ("", "input"))
            saved.append(
                SavedTensor(
                    made_in, producer, current[-1], tuple(tensor.shape), tensor.dtype, storage.nbytes()
                )
            )
        return tensor

    with _where(model) as current, _Writers(current) as writers, saved_tensors_hooks(pack, lambda t: t):
        model(*inputs)
    return saved


@contextmanager
def _where(model: nn.Module) -> Iterator[list[str]]:
    """A list whose last entry is the name of the submodule whose forward is running."""
    stack = [""]
    handles = []
    for name, module in model.named_modules():
        if name:
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: stack.append(name)))
            handles.append(module.register_forward_hook(lambda *_: _drop(stack.pop())))
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


def _drop(_: str) -> None:
    """A forward hook that returns something would replace the module's result."""


class _Writers(TorchDispatchMode):
    """Remembers for every storage which operator wrote it last, and in which module."""

    def __init__(self, current: list[str]) -> None:
        super().__init__()
        self.current = current
        self.of = WeakIdKeyDictionary()

    def __torch_dispatch__(
        self, func: Callable, types: Iterable[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        before = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                # A view has its input's storage, and writes nothing unless it is an in-place operator.
                if id(storage) not in before or func._schema.is_mutable:
                    self.of[storage] = self.current[-1], func._schema.name.partition("::")[2]
        return result


# ---- one layer against the paper --------------------------------------------------------------------------


class Term(NamedTuple):
    """One addend of sbh (34 + 5as/h), arXiv:2205.05198, section 4.1, and what was found of it.

    Args:
        name: what is kept.
        formula: the addend, for 2 bytes an element and 1 a mask's.
        predicted: its bytes for the element size at hand.
        measured: the bytes found.
        tensors: what they are.
    """

    name: str
    formula: str
    predicted: int
    measured: int
    tensors: tuple[SavedTensor, ...]


# name; elements and mask elements, in units of s b h (or of a s² b: the scores); where they are saved; kind
_TERMS = (
    ("inputs of the two norms", 2, 0, "sbh", ("norm_1", "norm_2"), "value"),
    ("input of query, key and value", 1, 0, "sbh", ("attention.query",), "value"),
    ("query, key and value", 3, 0, "sbh", ("attention.core",), "value"),
    ("softmax of the scores", 1, 0, "as²b", ("attention.core",), "softmax"),
    ("its dropout mask", 0, 1, "as²b", ("attention.core",), "mask"),
    ("softmax after dropout", 1, 0, "as²b", ("attention.core",), "dropped"),
    ("input of the projection", 1, 0, "sbh", ("attention.core", "attention.output"), "attended"),
    ("dropout mask of the projection", 0, 1, "sbh", ("attention.dropout",), "mask"),
    ("input of the first linear layer", 1, 0, "sbh", ("mlp.up",), "value"),
    ("input of GELU", 4, 0, "sbh", ("mlp",), "value"),
    ("input of the second linear layer", 4, 0, "sbh", ("mlp.down",), "value"),
    ("dropout mask of the MLP", 0, 1, "sbh", ("mlp.dropout",), "mask"),
    ("statistics of norms and softmax", 0, 0, "sbh", ("norm_1", "norm_2", "attention.core"), "statistics"),
)


def _kind(t: SavedTensor) -> str:
    fused = t.producer.startswith("_scaled_dot_product")
    if t.shape[-1] == 1 or (fused and len(t.shape) == 3):  # one number a row
        return "statistics"
    if t.dtype == torch.bool or t.producer in ("bernoulli_", "div_"):
        return "mask"
    if "softmax" in t.producer:
        return "softmax"
    if fused or t.saved_in == "attention.output":
        return "attended"
    return (
        "dropped" if t.saved_in == "attention.core" and t.producer in ("mul", "native_dropout") else "value"
    )


def itemise_layer(saved: Iterable[SavedTensor], batch: int, seq: int, hidden: int, heads: int) -> list[Term]:
    """What one GPT block saves (``saved_tensors(block, x)``), beside the terms of sbh (34 + 5as/h).

    The scores' terms, 5 as²b, are those of attention that is not fused: measure inside
    ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)``, and in fp32, to which the CPU takes 16 bits there.
    Two things differ from the paper. It leaves out the statistics of the norms. And a dropout mask takes one byte an
    element on a GPU, but on the CPU it is as wide as what it masks.

    Raises:
        ValueError: a tensor has no place in the layer: it is another kind of layer.
    """
    rest = list(saved)
    itemsize = max((t.dtype.itemsize for t in rest), default=0)
    units = {"sbh": seq * batch * hidden, "as²b": heads * seq**2 * batch}
    terms = []
    for name, elements, masks, unit, places, kind in _TERMS:
        found = tuple(t for t in rest if t.saved_in in places and _kind(t) == kind)
        rest = [t for t in rest if t not in found]
        terms.append(
            Term(
                name,
                f"{2 * elements + masks} {unit}",
                (itemsize * elements + masks) * units[unit],
                sum(t.bytes for t in found),
                found,
            )
        )
    if rest:
        raise ValueError(
            f"the formula is that of a GPT block; it has no term for what {rest[0].producer} made in "
            f"{rest[0].made_in!r} and {rest[0].saved_in!r} saved"
        )
    return terms
