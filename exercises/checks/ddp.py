"""Chapter 05: a model whose halves may be computed in either order, and a backward pass that is watched."""

from collections.abc import Iterable, Sequence
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.observe.ledgers.traffic import record_traffic


class Chain(nn.Module):
    """Six layers in two halves, which may be computed in either order."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.left = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.right = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, crossed: bool) -> Tensor:
        halves = [self.left, self.right]
        if not crossed:  # one after the other
            return self.half([*self.left, *self.right], x)
        out = {half: self.half(half, x) for half in (halves if dist.get_rank() == 0 else halves[::-1])}
        return out[self.left] + 2 * out[self.right]

    def half(self, layers: Sequence[nn.Module], x: Tensor) -> Tensor:
        for layer in layers:
            x = torch.tanh(layer(x))
        return x


def samples_seen(module: nn.Module) -> list[int]:
    """A list that grows by the samples of each forward pass: the first dimension of the first argument."""
    seen: list[int] = []
    module.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(len((*args, *kwargs.values())[0])), with_kwargs=True
    )
    return seen


def others_samples(seen: list[int], own: int) -> str:
    """What is wrong, for a rank that has ``own`` samples and computes those of others, too."""
    return f"the model sees {sum(seen)} samples, and this rank has {own}" if sum(seen) > own else ""


def gradients(parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in parameters}


class Handle:
    """Of an asynchronous all-reduce; remembers whether anybody used it. A hang shows the answer's own line."""

    used = False

    def __init__(self, work: dist.Work) -> None:
        self.work = work

    def __getattr__(self, name: str) -> object:
        self.used = True
        return getattr(self.work, name)


WAIT = "averages are read, and nobody has waited for their all-reduce (`work.wait()`)"


def observe_step(answer, loss: Tensor, buckets: list[list[Tensor]], parameters: dict[str, Tensor]) -> dict:
    ready: list[int] = []  # parameters whose gradients are there, in order
    issued: list[int] = []  # how many were there when a message began
    blocking: list[bool] = []
    handles: list[Handle] = []
    all_reduce = dist.all_reduce

    def watched(*given, **named):
        issued.append(len(ready))
        waits = not (given[3] if len(given) > 3 else named.get("async_op", False))
        blocking.append(waits and len(ready) < len(parameters))
        if work := all_reduce(*given, **named):
            handles.append(Handle(work))
            return handles[-1]

    hooks = {p: p.register_post_accumulate_grad_hook(lambda p: ready.append(id(p)))
             for p in parameters.values()}  # fmt: skip
    with record_traffic() as log, mock.patch.object(dist, "all_reduce", watched):
        answer(loss, buckets)
    kept = sum(hook.id in (p._post_accumulate_grad_hooks or {}) for p, hook in hooks.items())
    for hook in hooks.values():
        hook.remove()
    left = sum(len(p._post_accumulate_grad_hooks or ()) + len(p._backward_hooks or ()) for p in hooks)
    of, n = f"of {len(hooks)} hooks of the caller", len(hooks)
    return {
        "averages": gradients(parameters.items()),
        "called": f"{of} {len(ready)} were called" if len(ready) != n else "",
        "kept": f"{of} {kept} are left when the function has returned" if kept != n else "",
        "waited": WAIT if not all(handle.used for handle in handles) else "",
        "left": f"{left} hooks of the answer are left on the parameters" if left else "",
        "messages": log.traffic.calls,
        "blocking": sum(blocking),
        "ready": ready,
        "issued": issued,
    }
