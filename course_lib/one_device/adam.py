"""Adam (arXiv:1412.6980) and AdamW (arXiv:1711.05101), with their state in plain sight.

For every parameter the optimizer remembers two tensors of the same shape, ``exp_avg`` (the paper's m) and
``exp_avg_sq`` (v). In fp32 these are 8 bytes a parameter: what ZeRO shards first and offloading moves away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


@torch.no_grad()
def adam_update(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: int,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> None:
    """One update, in place, of ``parameter`` and its two moments.

    Every element is updated by itself, so the four tensors may as well be a flat shard of many parameters: a
    shard's update is that of the whole, cut the same way.

    Args:
        parameter, gradient, exp_avg, exp_avg_sq: the same shape, any.
        step: how many updates there will have been with this one, from 1 (the paper's t).
        decoupled: shrink the parameter itself (AdamW) rather than add its decay to the gradient (Adam).
    """
    beta1, beta2 = betas
    if weight_decay and decoupled:
        parameter.mul_(1 - lr * weight_decay)
    elif weight_decay:
        gradient = gradient.add(parameter, alpha=weight_decay)
    exp_avg.lerp_(gradient, 1 - beta1)  # m <- b1 m + (1 - b1) g
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)  # v <- b2 v + (1 - b2) g²
    # Both start at 0, so they are too small at first, by 1 - beta^t.
    m_scale, v_scale = 1 - beta1**step, 1 - beta2**step
    denominator = (exp_avg_sq.sqrt() / v_scale**0.5).add_(eps)
    parameter.addcdiv_(exp_avg, denominator, value=-lr / m_scale)


class Adam(Optimizer):
    """Adam; weight decay is added to the gradient.

    Groups, ``zero_grad``, hooks and state dicts are those of every ``torch.optim.Optimizer``; a state dict can
    be exchanged with ``torch.optim.Adam``'s. The state is ``optimizer.state[parameter]``, a dict of ``step``,
    ``exp_avg`` and ``exp_avg_sq``, made when the parameter's first gradient comes.

    Args:
        params: parameters, (name, parameter) pairs, or dicts of a group's ``params`` and its own settings.

    Raises:
        ValueError: a setting is out of its range; a gradient is sparse.
    """

    decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        settings = {**self.defaults, **param_group}
        for name in ("lr", "eps", "weight_decay"):
            if not settings[name] >= 0:
                raise ValueError(f"{name} must be at least 0, not {settings[name]}")
        for beta in settings["betas"]:
            if not 0 <= beta < 1:
                raise ValueError(f"both betas must be at least 0 and below 1, not {settings['betas']}")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update every parameter that has a gradient; return what ``closure`` returned, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, group)
        return loss

    @torch.no_grad()
    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update one parameter with the settings of its ``group``."""
        if gradient.is_sparse:
            raise ValueError("the gradient is sparse; Adam needs a dense one (nn.Embedding(…, sparse=False))")
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())  # a tensor only so that torch.optim.Adam can read it
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["step"] += 1
        adam_update(
            parameter,
            gradient,
            state["exp_avg"],
            state["exp_avg_sq"],
            int(state["step"]),
            lr=float(group["lr"]),
            betas=group["betas"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            decoupled=self.decoupled,
        )


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter itself, by lr * weight_decay a step."""

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
