"""Which dropout masks agree across tensor-parallel ranks, and which must not.

Where every rank has the whole tensor, the masks must be equal, or the ranks would compute different things. Where each
has its own part (attention's heads; tokens, with sequence parallelism) they must differ, or all parts would be dropped
alike. So all ranks start with one random state, and for a part a rank takes a state of its own for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh


def share_random_state(mesh: DeviceMesh) -> None:
    """Give all ranks of the mesh the random state of its first rank: that of the CPU, and that of the present GPU."""
    torch.set_rng_state(_of_first_rank(torch.get_rng_state(), mesh))
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(_of_first_rank(torch.cuda.get_rng_state(), mesh))


@contextmanager
def own_random_state(mesh: DeviceMesh) -> Iterator[None]:
    """A random state that differs by rank, inside the ``with``; then the common one continues, equal on all ranks.

    The seed is drawn from the common state. So whoever restores the common state, as recomputation does, gets the
    same masks again on every rank.
    """
    seed = int(torch.randint(2**62, (), device="cpu"))
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(gpus):
        torch.manual_seed(seed + mesh.get_local_rank())
        yield


def use_own_random_state(module: nn.Module, mesh: DeviceMesh) -> None:
    """Let a module that drops something (``nn.Dropout``, the core of attention) draw from this rank's own state."""
    # forward becomes an attribute of the instance, so names and parameters stay as they are.
    module.forward = partial(_forward_with_own_random_state, module, module.forward, mesh)


def _forward_with_own_random_state(
    module: nn.Module, forward: Callable[..., Any], mesh: DeviceMesh, *inputs: Any, **named: Any
) -> Any:
    drops = getattr(module, "p", getattr(module, "dropout", 0))  # a probability
    if not (module.training and drops):
        return forward(*inputs, **named)
    with own_random_state(mesh):
        return forward(*inputs, **named)


def _of_first_rank(state: Tensor, mesh: DeviceMesh) -> Tensor:
    on_device = state.to(mesh.device_type)
    dist.broadcast(on_device, group=mesh.get_group(), group_src=0)
    return on_device.cpu()
