"""Recomputation: drop what autograd saved, and run the forward again when backward asks for it.

Also known as activation checkpointing (arXiv:1604.06174). For one more forward a layer keeps its input only
(2 sbh bytes of a GPT layer's sbh (34 + 5as/h)). Selective recomputation (arXiv:2205.05198) repeats attention
without its weights, which holds much memory and costs few FLOPs.

Autograd hands every tensor that it would save to ``pack`` and asks ``unpack`` for it in backward. All of the
technique is: keep a number instead of the tensor, and count to it again later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

T = TypeVar("T")


def checkpoint(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """``function(*args, **kwargs)``, keeping its arguments instead of what its backward needs.

    Arguments and results may be anything, nested or not; gradients also reach tensors that ``function`` takes
    from elsewhere, such as a module's parameters. They are those without recomputation to the bit: random
    state and autocast are as they were the first time, and the buffers of a module (batch norm's averages) are
    updated once.

    The second forward ends as soon as all is there that backward needs. It is a whole forward when the last
    operation saves something, as dropout does; a last linear layer is spared.

    Raises (in backward):
        RuntimeError: an argument was changed in place since; or ``function`` did something else the second time.
    """
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    region = _Region(function, args, kwargs)
    with saved_tensors_hooks(region.pack, region.unpack):
        return function(*args, **kwargs)


class _Region:
    """One call of ``checkpoint``; its life ends with the part of the graph that it stands for."""

    def __init__(self, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> None:
        self.function = function
        self.leaves, self.structure = tree_flatten((args, kwargs))
        self.places = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]
        # The result rather than its grad_fn: in torch 2.11 that forgets what it saved when the result dies.
        self.keeper = _Keep.apply(torch.empty(0, requires_grad=True), *(self.leaves[i] for i in self.places))
        for i in self.places:
            self.leaves[i] = None
        self.saved: list[tuple] = []  # shape, dtype and device of each tensor that autograd would have kept
        self.recomputed: dict[int, Tensor] = {}
        # A method's owner, or the module that is called, may update its buffers.
        owner = getattr(function, "__self__", function)
        self.buffers = list(owner.buffers()) if isinstance(owner, nn.Module) else []
        self.random = torch.get_rng_state()
        self.gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        self.random_gpu = [torch.cuda.get_rng_state(gpu) for gpu in self.gpus]
        self.autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in ("cpu", "cuda")[: 1 + len(self.gpus)]
        ]

    def pack(self, tensor: Tensor) -> int:
        """First forward: note what is saved, and keep its number alone."""
        self.saved.append(_kind(tensor))
        return len(self.saved) - 1

    def unpack(self, number: int) -> Tensor:
        """Backward: the first request runs the forward again, and each tensor is handed out once."""
        if number not in self.recomputed:
            self.recompute()
        return self.recomputed.pop(number)

    def recompute(self) -> None:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, self.keeper.grad_fn.saved_tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self.structure)
        self.recomputed.clear()
        count = 0

        def pack(tensor: Tensor) -> None:
            nonlocal count
            if _kind(tensor) != self.saved[count]:
                self.complain(count, tensor)
            self.recomputed[count] = tensor.detach()
            count += 1
            if count == len(self.saved):
                raise _Enough

        with self.as_it_was(), saved_tensors_hooks(pack, _never), suppress(_Enough):
            self.function(*args, **kwargs)
        if count < len(self.saved):
            self.complain(count, None)

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """The state that the first forward met; afterwards again the present one."""
        buffers = [buffer.clone() for buffer in self.buffers]
        with ExitStack() as state:
            state.enter_context(torch.enable_grad())
            state.enter_context(torch.random.fork_rng(self.gpus))
            torch.set_rng_state(self.random)
            for gpu, before in zip(self.gpus, self.random_gpu, strict=True):
                torch.cuda.set_rng_state(before, gpu)
            for kind, dtype, enabled in self.autocast:
                state.enter_context(torch.autocast(kind, dtype, enabled))
            yield
        for buffer, before in zip(self.buffers, buffers, strict=True):
            buffer.data.copy_(before)  # unseen by autograd: others may have saved this very buffer

    def complain(self, number: int, tensor: Tensor | None) -> None:
        raise RuntimeError(
            f"the recomputed forward differs from the first: saved tensor {number + 1} of {len(self.saved)} was "
            f"{_say(self.saved[number])}, now {_say(None if tensor is None else _kind(tensor))}"
        )


class _Keep(torch.autograd.Function):
    """Saves the arguments the way any operation saves what it needs.

    So autograd notices when one is changed in place, whoever counts saved tensors sees them, and a checkpoint
    around this one drops them in its turn. Its backward never runs.
    """

    @staticmethod
    def forward(ctx: Any, _: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)


class _Enough(Exception):  # noqa: N818
    """Leaves a forward whose rest nobody needs."""


def _never(_: None) -> Tensor:
    raise RuntimeError("the graph of a recomputed forward has no backward of its own")


def _kind(tensor: Tensor) -> tuple:
    return tensor.shape, tensor.dtype, tensor.device


def _say(kind: tuple | None) -> str:
    return "missing" if kind is None else f"{str(kind[1]).removeprefix('torch.')}{list(kind[0])} on {kind[2]}"


# ---- applied to a model from outside ----------------------------------------------------------------------

RECOMPUTE = {  # names of submodules
    "full": ("*blocks.*", "*layer.*", "*layers.*", "layer[1-4].*"),  # GPT; BERT; other names; ResNet
    "selective": ("*.core",),
}


def apply_recompute(model: nn.Module, what: str | Iterable[str]) -> list[str]:
    """Recompute some submodules of ``model`` in its backward; returns their names.

    The model computes, and is saved and loaded, as before. ``remove_recompute`` takes it back.

    Args:
        what: ``"full"``: every block (layer); ``"selective"``: the core of every attention, between its linear
            layers; or names of submodules, ``*`` standing for any characters (``"blocks.*.mlp"``). Of modules
            inside each other the outermost is taken.

    Raises:
        ValueError: no submodule has such a name.
    """
    patterns = RECOMPUTE.get(what, (what,)) if isinstance(what, str) else tuple(what)
    modules = {name: module for name, module in model.named_modules() if name}
    chosen: list[str] = []
    for name in modules:  # parents come before their children
        inside = any(name.startswith(f"{outer}.") for outer in chosen)
        if not inside and any(fnmatchcase(name, pattern) for pattern in patterns):
            chosen.append(name)
    if not chosen:
        raise ValueError(
            f"{type(model).__name__} has no submodule that matches {' or '.join(patterns)}; "
            f"it has {', '.join(modules)}"
        )
    for name in chosen:
        # An attribute of the instance: hooks, names and parameters of the module stay where they are.
        modules[name].forward = partial(checkpoint, modules[name].forward)
    return chosen


def remove_recompute(model: nn.Module) -> None:
    """Take back every ``apply_recompute``."""
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, partial) and forward.func is checkpoint:
            del module.forward
