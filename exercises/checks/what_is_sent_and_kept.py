"""Exercise 10.1: whether tensors are dense where they are sent, and what autograd functions keep without its hooks."""

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Dense(TorchDispatchMode):
    """Refuses what Gloo takes and NCCL does not: inputs whose elements do not lie one behind the other."""

    def __torch_dispatch__(self, func, types, args: tuple = (), kwargs: dict | None = None):
        names = {"c10d::_allgather_base_": "all_gather", "c10d::_reduce_scatter_base_": "reduce_scatter"}
        if (name := names.get(func._schema.name)) and not args[1].is_contiguous():
            raise ValueError(f"{name} got an input whose elements do not lie one behind the other")
        return func(*args, **(kwargs or {}))


def on_contexts(out: Tensor) -> list[Tensor]:
    """Tensors that autograd functions on the way to ``out`` keep as attributes of ``ctx``, unseen by hooks."""
    nodes, kept = [out.grad_fn] if out.grad_fn else [], []  # a leaf has no function before it
    for node in nodes:
        kept += tree_leaves(list(getattr(node, "__dict__", {}).values()))
        nodes += [before for before, _ in node.next_functions if before is not None and before not in nodes]
    return [value for value in kept if isinstance(value, Tensor)]
