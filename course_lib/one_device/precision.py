"""Mixed precision (arXiv:1710.03740): 16-bit parameters and gradients, fp32 master weights, loss scaling.

16 bits halve memory and traffic, and matrix units are several times faster on them. Two things go wrong, each
with its remedy. An update of less than half the distance to the next 16-bit number is rounded away: the
optimizer updates a copy in fp32. And gradients below 6e-8 are zero in fp16: the loss is multiplied by a large
number first. bf16 has fp32's range and needs no scaling, but fewer digits, so it needs the copy the more.

A parameter takes 2 + 2 bytes, and 4 + 8 for the copy and Adam's two moments: 16 (arXiv:1910.02054, section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class LossScaler:
    """Dynamic loss scaling: as large a scale as gradients bear without overflowing.

    When a gradient is infinite or not a number the step is skipped and the scale reduced; after ``interval``
    good steps in a row it grows again.

    Attributes:
        scale: what the next loss is multiplied by.
        good_steps: how many steps in a row went well since the scale last changed.

    Raises:
        ValueError: a setting is out of its range.
    """

    def __init__(
        self, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000
    ) -> None:
        if not (scale > 0 and math.isfinite(scale)):
            raise ValueError(f"scale must be a positive number, not {scale}")
        if not growth > 1:
            raise ValueError(f"growth must be more than 1, not {growth}")
        if not 0 < backoff < 1:
            raise ValueError(f"backoff must lie between 0 and 1, not {backoff}")
        if interval < 1:
            raise ValueError(f"interval must be at least 1 step, not {interval}")
        self.scale, self.growth, self.backoff, self.interval = scale, growth, backoff, interval
        self.good_steps = 0

    def scale_loss(self, loss: Tensor) -> Tensor:
        """What to call ``backward`` on; in fp32, as the product would overflow in fp16."""
        return loss.float() * self.scale

    @torch.no_grad()
    def unscale(self, gradients: Iterable[Tensor]) -> bool:
        """Divide by the scale in place; returns whether all of them are finite.

        Ranks that hold different gradients must agree on the answer before they go on.
        """
        finite = True
        for gradient in gradients:
            gradient.mul_(1 / self.scale)
            finite = finite and bool(gradient.isfinite().all())
        return finite

    def update(self, finite: bool) -> None:
        """Set the scale for the next step by how this one went."""
        if not finite:
            self.scale *= self.backoff
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == self.interval:
            if self.scale * self.growth <= torch.finfo(torch.float32).max:  # the loss is multiplied in fp32
                self.scale *= self.growth
            self.good_steps = 0

    def step(self, optimizer: Optimizer) -> bool:
        """Unscale the gradients of the optimizer's parameters, then update or skip; returns whether it updated."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        finite = self.unscale(p.grad for p in parameters if p.grad is not None)
        if finite:
            optimizer.step()
        self.update(finite)
        return finite


class MixedPrecision:
    """A model in 16 bits and the optimizer of its fp32 master weights.

    The model is converted in place, buffers too. ``masters`` is what to save: with it, training resumes where
    it was, and the 16-bit parameters are its rounding.

    Args:
        model: a module in fp32. Frozen parameters are converted, and have no master.
        make_optimizer: makes the optimizer from (name, master) pairs: ``lambda named: AdamW(named, lr=1e-3)``.
        dtype: ``torch.bfloat16`` or ``torch.float16``.
        scaler: by default a ``LossScaler()`` for fp16, none for bf16.

    Raises:
        ValueError: ``dtype`` is another one, or the model is not in fp32.
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[list[tuple[str, nn.Parameter]]], Optimizer],
        dtype: torch.dtype = torch.bfloat16,
        scaler: LossScaler | None = None,
    ) -> None:
        if dtype not in (torch.bfloat16, torch.float16):
            raise ValueError(f"dtype must be torch.bfloat16 or torch.float16, not {dtype}")
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        for name, p in self.parameters.items():
            if p.dtype != torch.float32:
                raise ValueError(f"masters are made of fp32 parameters; {name} is {p.dtype}")
        self.masters = {name: nn.Parameter(p.detach().clone()) for name, p in self.parameters.items()}
        model.to(dtype)
        self.optimizer = make_optimizer(list(self.masters.items()))
        self.scaler = LossScaler() if scaler is None and dtype == torch.float16 else scaler

    def backward(self, loss: Tensor) -> None:
        """Backward of the scaled loss; 16-bit gradients add up over several calls before a step."""
        (loss if self.scaler is None else self.scaler.scale_loss(loss)).backward()

    def step(self) -> bool:
        """Update the masters and round them to the model; returns False when an overflow made it skip.

        Raises:
            ValueError: a gradient is not finite and there is no scaler that could help. Nothing has changed.
        """
        for name, parameter in self.parameters.items():
            gradient, parameter.grad = parameter.grad, None
            self.masters[name].grad = None if gradient is None else gradient.float()
        if self.scaler is not None:
            updated = self.scaler.step(self.optimizer)
        else:
            self.check()
            self.optimizer.step()
            updated = True
        self.optimizer.zero_grad()
        if updated:
            self.publish()
        return updated

    def check(self) -> None:
        for name, master in self.masters.items():
            if master.grad is not None and not master.grad.isfinite().all():
                self.optimizer.zero_grad()
                raise ValueError(
                    f"the gradient of {name} is not finite; the parameters are as before the step"
                )

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters to the model's parameters."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self.masters[name])

    def state_dict(self) -> dict[str, Any]:
        """Masters, the optimizer's state and the scale: all that training needs to go on."""
        scaler = self.scaler and {"scale": self.scaler.scale, "good_steps": self.scaler.good_steps}
        masters = {name: master.detach() for name, master in self.masters.items()}
        return {"masters": masters, "optimizer": self.optimizer.state_dict(), "scaler": scaler}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a ``state_dict`` of the same model."""
        for name, master in self.masters.items():
            master.copy_(state["masters"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler is not None:
            self.scaler.scale, self.scaler.good_steps = (
                state["scaler"]["scale"],
                state["scaler"]["good_steps"],
            )
        self.publish()
