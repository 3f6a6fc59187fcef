"""What the checks of chapter 03 hold answers against: counters, the right update and its slips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.models.gpt import GPT, GPTConfig


class Watch(TorchDispatchMode):
    """Counts what passes the dispatcher: bytes of new storages, and numbers that the CPU asks a tensor for."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.numbers_read = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        # A number, or all of them: .item(), bool(), float(), torch.equal, masks and nonzero need the values here.
        name = func._schema.name.partition("::")[2]
        self.numbers_read += name in ("_local_scalar_dense", "equal", "nonzero")
        there = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and id(tensor.untyped_storage()) not in there:
                self.bytes += tensor.untyped_storage().nbytes()
        return result


# ---- 03.1: models with something to trip over -------------------------------------------------------------


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3, bias=False))


def tied(frozen: bool) -> nn.Module:
    model = GPT(GPTConfig.tiny(num_layers=1, hidden_size=16, num_heads=2))
    model.embedding.requires_grad_(not frozen)
    return model


def adapter() -> nn.Module:
    model = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 4))
    model[0].requires_grad_(False)
    return model


# ---- 03.2: a run with overflows ---------------------------------------------------------------------------

SCRIPT = "..x...xx....."  # a good step, or one that overflows


def play(
    step: Callable[..., Any], interval: int, shapes: Sequence[tuple[int, ...]]
) -> tuple[Tensor, list[float], list[Any], int]:
    """Run the script: the parameters after each step, the scales, what was returned, the most numbers read."""
    draw = torch.Generator().manual_seed(interval)
    parameters = [nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    state = {"scale": 1024.0, "good_steps": 0, "interval": interval}
    path, scales, returned, most = [], [], [], 0
    for number, kind in enumerate(SCRIPT):
        for p in parameters:
            p.grad = torch.randn(p.shape, generator=draw) * state["scale"]
        if kind == "x":  # not always in the same tensor, and not always the same
            where = parameters[number % len(parameters)].grad
            where.view(-1)[number % where.numel()] = float("nan") if number % 2 else float("inf")
        with Watch() as watch:
            returned.append(step(parameters, optimizer, state, 0.5))
        most = max(most, watch.numbers_read)
        path.append(torch.cat([p.detach().flatten() for p in parameters]))
        scales.append(state["scale"])
    return torch.stack(path), scales, returned, most


def reference(slip: str = "") -> Callable[..., bool]:
    """The update of exercise 03.2, right or with one slip."""

    def step(parameters: list[Tensor], optimizer: Any, state: dict, max_norm: float) -> bool:
        if slip == "clip":
            clip_grad_norm_(parameters, max_norm)
        finite = all(bool(p.grad.isfinite().all()) for p in parameters)
        if finite or slip == "momentum":
            for p in parameters:
                p.grad.div_(1.0 if slip == "unscale" else state["scale"])
                p.grad.mul_(0.0 if not finite else 1.0).nan_to_num_(0.0, 0.0, 0.0)
            if slip not in ("clip", "none"):
                clip_grad_norm_(parameters, max_norm)
            optimizer.step()
        if not finite:
            state["scale"] /= 2
            state["good_steps"] = state["good_steps"] if slip == "keep" else 0
            return False
        state["good_steps"] += 1
        at = state["interval"] + (slip == "late")
        if state["good_steps"] == at or (slip == "again" and state["good_steps"] > at):
            state["scale"] *= 2
            state["good_steps"] = state["good_steps"] if slip == "again" else 0
        return True

    return step


def scales_with(interval: int, slip: str) -> list[float]:
    """The scale after each step of the script, with that slip."""
    return play(reference(slip), interval, [(2,)])[1]


# ---- 03.3: what autograd keeps ----------------------------------------------------------------------------


class Columns(nn.Module):
    """Keeps one column of a wide tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2)[:, 0].sin()


class Twice(nn.Module):
    """Two layers read the same input, one of them a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x).tanh() * self.right(x.view(-1, 6))


def by_hooks(model: nn.Module, inputs: tuple, *, once: bool, own: bool, views: bool = False) -> int:
    """The count with slips: every call of pack, parameters too, the view instead of its storage."""
    mine = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    found: list[tuple[int, int]] = []

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if own or storage.data_ptr() not in mine:
            found.append((storage.data_ptr(), t.nbytes if views else storage.nbytes()))
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        output = model(*inputs)
    del output
    return sum(dict(reversed(found)).values()) if once else sum(size for _, size in found)


# ---- 03.4: AdamW ------------------------------------------------------------------------------------------


def adamw(w: Tensor, gradients: Sequence[Tensor], slip: str, **settings: Any) -> Tensor:
    """AdamW by the formulas, in fp64, right or with one slip."""
    lr, (b1, b2), eps, decay = (settings[k] for k in ("lr", "betas", "eps", "weight_decay"))
    w, m, v = w.double().clone(), torch.zeros_like(w).double(), torch.zeros_like(w).double()
    for t, g in enumerate((g.double() for g in gradients), start=1):
        if slip == "coupled":
            g = g + decay * w
        elif slip != "no decay":
            w = w - lr * decay * w
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        m_hat, v_hat = (m, v) if slip == "bias" else (m / (1 - b1**t), v / (1 - b2**t))
        w = w - lr * (m_hat / (v_hat + eps).sqrt() if slip == "inside" else m_hat / (v_hat.sqrt() + eps))
    return w.float()


def forgetful(start: Tensor, gradients: Sequence[Tensor], settings: dict[str, Any]) -> Tensor:
    """Each update as if it were the first."""
    w = start
    for g in gradients:
        w = adamw(w, [g], "", **settings)
    return w
