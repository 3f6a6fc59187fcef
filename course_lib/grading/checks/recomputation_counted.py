"""What the checks of chapter 08 count: bytes alive, and targets of several cases that tell one story."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from course_lib.grading.report import Report


class Alive(TorchDispatchMode):
    """Bytes of the storages made while it is on, and still alive: now, and at most."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = WeakIdKeyDictionary()
        self.made = WeakIdKeyDictionary()
        self.most = 0
        for tensor in known:
            self.known[tensor.untyped_storage()] = True

    @property
    def now(self) -> int:
        return sum(storage.nbytes() for storage in self.made)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage() not in self.known:
                self.made[tensor.untyped_storage()] = True
        self.most = max(self.most, self.now)
        return result


class Counted(NamedTuple):
    """What an answer needed in one case, what it may need, and what each likely mistake would need there."""

    case: str
    got: int
    limit: int
    mistakes: Mapping[str, Callable[[], int]]

    def fits(self, sentence: str) -> bool:
        """Whether the mistake needs here what the answer needed, where either is too much."""
        value = self.mistakes[sentence]()
        return value == self.got or max(value, self.got) <= self.limit


def state_targets(report: Report, what: str, counted: Sequence[Counted], task: str) -> None:
    """State one target of several cases; a mistake is named only where it fits all of them."""
    sentences = counted[0].mistakes if any(each.got > each.limit for each in counted) else ()
    fitting = [s for s in sentences if all(each.fits(s) for each in counted)]
    for each in counted:
        with report.case(each.case):
            mistakes = {sentence: each.mistakes[sentence]() for sentence in fitting}
            report.at_most(what, each.got, each.limit, mistakes=mistakes, task=task)
