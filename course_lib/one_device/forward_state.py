"""What a forward pass reads besides its arguments and weights, kept so that it can be run again with the same result.

Dropout reads the random generators, autocast chooses dtypes, and BatchNorm updates its running averages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn


class ForwardState:
    """The state in which ``function`` is about to be called: some kilobytes, most of them the CPU's random generator.

    Args:
        function: a module, a method of a module, or any other function; the buffers of the module are kept
            unchanged by ``restored``.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        module = getattr(function, "__self__", function)
        self.buffers = list(module.buffers()) if isinstance(module, nn.Module) else []
        self.random = torch.get_rng_state()
        self.gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        self.random_gpu = [torch.cuda.get_rng_state(gpu) for gpu in self.gpus]
        self.autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in ("cpu", "cuda")[: 1 + len(self.gpus)]
        ]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Run the body in this state, with autograd on. Afterwards the present state and buffers are back."""
        buffers = [buffer.clone() for buffer in self.buffers]
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(torch.random.fork_rng(self.gpus))
            torch.set_rng_state(self.random)
            for gpu, state in zip(self.gpus, self.random_gpu, strict=True):
                torch.cuda.set_rng_state(state, gpu)
            for kind, dtype, enabled in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled))
            yield
        for buffer, before in zip(self.buffers, buffers, strict=True):
            buffer.data.copy_(before)  # .data: autograd may have saved this buffer, and must not see a change
