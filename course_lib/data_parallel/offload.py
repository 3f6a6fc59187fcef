"""ZeRO-Offload (arXiv:2101.06840): the CPU keeps the optimizer's states and updates; the device keeps the model.

In mixed precision a parameter takes 16 bytes. With offload the device keeps only the 2 bytes of the 16-bit weight. The
work of the update grows with the number of parameters and not with the batch, so the slower CPU can do it. For each
parameter 2 bytes of gradient are copied to the CPU and 2 bytes of the new weight back, which is the least that
such a split must copy. Copies overlap with computation: a gradient is copied as soon as backward has computed it, and
a weight as soon as it has been updated.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.one_device.adam import Adam, AdamW
from course_lib.runtime import trace


class CopyLane:
    """Copies one tensor after the other while the device computes: a thread, and on a GPU a stream of its own.

    Attributes:
        moved: bytes copied so far, by direction: ``{"to host": …, "to device": …}``.
    """

    def __init__(self, device: torch.device) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="copy")
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.moved = {"to host": 0, "to device": 0}

    def start(
        self, target: Tensor, source: Tensor, direction: str, name: str, *, add: bool = False
    ) -> Future:
        """Copy ``source`` to ``target``, or add it to ``target``, once the copies started earlier and the work given to
        the current stream so far are done. Returns the copy's future."""
        ready = torch.cuda.current_stream().record_event() if self.stream else None
        return self.thread.submit(self._copy, target, source, direction, name, add, ready)

    @torch.no_grad()
    def _copy(
        self,
        target: Tensor,
        source: Tensor,
        direction: str,
        name: str,
        add: bool,
        ready: torch.cuda.Event | None,
    ) -> None:
        with torch.cuda.stream(self.stream), trace.span("copy", name):
            if self.stream:
                self.stream.wait_event(ready)
            if add:
                target.add_(source.to(target.device))
            else:
                target.copy_(source, non_blocking=True)  # asynchronous only from and to pinned memory
            if self.stream:
                self.stream.synchronize()
        self.moved[direction] += source.nbytes


@dataclass
class _Slot:
    """One parameter and what the host holds for it, per element: 4 bytes in ``master``, 2 in ``wire``, 8 of Adam."""

    name: str
    parameter: nn.Parameter
    master: Tensor  # fp32
    wire: Tensor  # in the parameter's dtype, pinned: receives the gradient, then holds the new value to be sent back
    arrival: Future | None = None  # done once the gradient has been copied


class OffloadedOptimizer:
    """Adam or AdamW on the host for parameters on a device. In fp32 its results equal Adam's on the device bit for bit.

    ``parameter.grad`` is None after backward, because every gradient is copied to the host and freed as soon as it is
    ready. If several backward passes run before a step, their gradients add up on the host. Where the parameters are on
    the CPU, "device" and "host" are two places in the same memory, and all else works alike.

    Args:
        params: parameters, (name, parameter) pairs, or groups of either, as any optimizer takes them.
        optimizer: ``Adam`` or ``AdamW`` of ``course_lib.one_device.adam``.
        settings: what that optimizer takes besides: ``lr=…``.

    Attributes:
        host: the optimizer on the host, with its groups (for a learning rate schedule) and states.
        moved: bytes copied so far, by direction: ``{"to host": …, "to device": …}``.

    Raises:
        ValueError: ``params`` lists a parameter twice, or lists parameters of two devices, or all are frozen.
    """

    def __init__(self, params: Iterable[Any], optimizer: type[Adam] = AdamW, **settings: Any) -> None:
        groups = list(params)
        if not (groups and isinstance(groups[0], dict)):
            groups = [{"params": groups}]
        self.slots: dict[nn.Parameter, _Slot] = {}
        host_groups = []
        for number, group in enumerate(groups):
            named = [
                entry if isinstance(entry, tuple) else (f"parameter {i} of group {number}", entry)
                for i, entry in enumerate(group["params"])
            ]
            host_groups.append({**group, "params": [(name, self._take(name, p)) for name, p in named]})
        if not self.slots:
            raise ValueError("there is nothing to offload: no parameter among those given needs a gradient")
        self.host = optimizer(host_groups, **settings)
        self.lane = CopyLane(next(iter(self.slots)).device)

    def _take(self, name: str, parameter: nn.Parameter) -> Tensor:
        if not parameter.requires_grad:
            return parameter  # frozen: it never gets a gradient, so it stays in its group and is not copied
        if parameter in self.slots:
            raise ValueError(f"{name} is the same parameter as {self.slots[parameter].name}; give it once")
        if self.slots and parameter.device != (first := next(iter(self.slots))).device:
            raise ValueError(
                f"{name} is on {parameter.device}, the others are on {first.device}: all must be on one device"
            )
        pinned = parameter.is_cuda
        wire = torch.empty_like(parameter, device="cpu", pin_memory=pinned, requires_grad=False)
        master = parameter.detach().to("cpu", torch.float32, copy=True)
        self.slots[parameter] = _Slot(name, parameter, master, wire)
        parameter.register_post_accumulate_grad_hook(self.collect)
        return master

    @property
    def moved(self) -> dict[str, int]:
        return self.lane.moved

    @property
    def host_bytes(self) -> int:
        """Bytes that the host holds: fp32 weights, buffers for copies, and the optimizer's states."""
        tensors = [t for slot in self.slots.values() for t in (slot.master, slot.wire)]
        tensors += [t for state in self.host.state.values() for t in state.values() if t.ndim]
        return sum(t.nbytes for t in tensors)

    def collect(self, parameter: nn.Parameter) -> None:
        """Start to copy the gradient of ``parameter`` to the host, and set ``parameter.grad`` to None.

        Autograd calls this for each parameter. Code that sets ``.grad`` itself, such as that of a shard after a
        reduce-scatter, may call it at once; ``step`` calls it for every gradient that is still on the device.
        """
        slot = self.slots[parameter]
        gradient, parameter.grad = parameter.grad, None
        slot.arrival = self.lane.start(
            slot.wire, gradient.detach(), "to host", f"gradient {slot.name}", add=slot.arrival is not None
        )

    def gradients(self) -> list[Tensor]:
        """The gradients on the host, once all have been copied. Clipping may change them in place before ``step``."""
        return [slot.wire for slot in self._arrived()]

    def _arrived(self) -> list[_Slot]:
        for parameter in self.slots:
            if parameter.grad is not None:
                self.collect(parameter)
        slots = [slot for slot in self.slots.values() if slot.arrival is not None]
        for slot in slots:
            slot.arrival.result()
        return slots

    def zero_grad(self) -> None:
        """Drop the gradients that were computed since the last step."""
        for slot in self._arrived():
            slot.arrival = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient, and copy each to the device while the next one is updated.

        Raises:
            ValueError: a gradient is not finite. No parameter and no state has changed, and the gradients are
                dropped, so that training can go on with another batch.
        """
        slots = self._arrived()
        for slot in slots:  # all of them before the first update, which cannot be undone
            if not slot.wire.isfinite().all():
                self.zero_grad()
                raise ValueError(
                    f"the gradient of {slot.name} is not finite; all parameters are as before the step"
                )
        group_of = {master: group for group in self.host.param_groups for master in group["params"]}
        returning = []
        for slot in slots:
            with trace.span("compute", f"update {slot.name}"):
                self.host.update(slot.master, slot.wire.float(), group_of[slot.master])
                # The wire no longer needs the gradient. Rounded on the host, half as many bytes are copied.
                slot.wire.copy_(slot.master)
            returning.append(
                self.lane.start(slot.parameter, slot.wire, "to device", f"parameter {slot.name}")
            )
            slot.arrival = None
        for copy in returning:
            copy.result()

    def state_dict(self) -> dict[str, Any]:
        """The host optimizer's ``state_dict``, which Adam without offloading can load, and the fp32 weights by name
        under ``"masters"``."""
        masters = {slot.name: slot.master for slot in self.slots.values()}
        return {**self.host.state_dict(), "masters": masters}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state_dict``. The parameters take the values of its fp32 weights, rounded to their own dtype."""
        self.host.load_state_dict({key: state[key] for key in ("state", "param_groups")})
        for slot in self.slots.values():
            slot.master.copy_(state["masters"][slot.name])
            slot.parameter.copy_(slot.master)
