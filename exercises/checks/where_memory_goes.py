"""What the checks of chapter 03 watch: tensors that are made, and numbers that the CPU asks for."""

from __future__ import annotations

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Asked(TorchFunctionMode):
    """Counts what hands a tensor's values over without an operator: ``tolist`` and ``numpy``."""

    numbers_read = 0

    def __torch_function__(self, func, types, args: tuple = (), kwargs: dict | None = None):
        self.numbers_read += getattr(func, "__name__", "") in ("tolist", "numpy", "__array__")
        return func(*args, **(kwargs or {}))


class Watch(TorchDispatchMode):
    """Counts what passes the dispatcher: bytes of new storages, and numbers that the CPU asks a tensor for."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.numbers = 0
        self.asked = _Asked()

    @property
    def numbers_read(self) -> int:
        return self.numbers + self.asked.numbers_read

    def __enter__(self) -> Watch:
        self.asked.__enter__()
        return super().__enter__()

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        self.asked.__exit__(*error)

    def __torch_dispatch__(self, func, types, args: tuple = (), kwargs: dict | None = None):
        # A number, or all of them: .item(), bool(), float(), torch.equal, masks and nonzero need the values here.
        name = func._schema.name.partition("::")[2]
        self.numbers += name in ("_local_scalar_dense", "equal", "nonzero")
        there = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and id(tensor.untyped_storage()) not in there:
                self.bytes += tensor.untyped_storage().nbytes()
        return result


class Held(TorchDispatchMode):
    """Keeps the storage of every tensor that is made, so that no address is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: list = []

    def __torch_dispatch__(self, func, types, args: tuple = (), kwargs: dict | None = None):
        result = func(*args, **(kwargs or {}))
        self.storages += [t.untyped_storage() for t in tree_leaves(result) if isinstance(t, Tensor)]
        return result
