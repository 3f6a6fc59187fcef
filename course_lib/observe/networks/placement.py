"""Who holds which parameters of a model: a table of module names, priced in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from course_lib.observe.networks.render import PALETTE, PLAIN
from course_lib.observe.show.amounts import amount

Holders = tuple[int, ...]


def size_of(parameters: Iterable[nn.Parameter]) -> int:
    """Bytes, each parameter counted once."""
    return sum(p.numel() * p.element_size() for p in {id(p): p for p in parameters}.values())


class Placement:
    """A plan over a model: module names and the ranks (stages, shards) that hold their parameters.

    Args:
        model: the model, whole and on one device.
        table: module name -> one holder, or several that hold equal shares. The longest name that fits decides;
            ``""`` is the whole model.
        label: what a holder is: ``"rank"``, ``"stage"``, ``"shard"``.

    Raises:
        ValueError: a holder that is not a whole number from 0, or none at all.
    """

    def __init__(
        self, model: nn.Module, table: Mapping[str, int | Iterable[int]], label: str = "rank"
    ) -> None:
        self.label = label
        self.table = {name: _holders(name, value) for name, value in table.items()}
        self.bytes: dict[int, float] = {holder: 0 for holders in self.table.values() for holder in holders}
        self.unplaced = 0
        self.total = size_of(model.parameters())
        counted = set()  # a tied parameter is held once by each of its holders
        for name, parameter in model.named_parameters(remove_duplicate=False):
            holders = self.of(name)
            for holder in holders or (None,):
                if (holder, id(parameter)) in counted:
                    continue
                counted.add((holder, id(parameter)))
                if holder is None:
                    self.unplaced += size_of([parameter])
                else:
                    self.bytes[holder] += size_of([parameter]) / len(holders)

    def of(self, name: str) -> Holders:
        """The ranks that hold the module or parameter of this dotted name; empty if none does."""
        while name not in self.table and name:
            name = name.rpartition(".")[0]
        return self.table.get(name, ())

    def describe(
        self, parameters: Mapping[str, nn.Parameter], name: str
    ) -> tuple[list[str], tuple[str, ...]]:
        """What to write on the box of the module ``name`` with these parameters, and its colours."""
        shares: dict[Holders, list[nn.Parameter]] = {}
        for full_name, parameter in parameters.items():
            shares.setdefault(self.of(full_name), []).append(parameter)
        lines = [self._share(holders, size_of(held)) for holders, held in sorted(shares.items())]
        if not shares:
            shares[self.of(name)] = []
            lines = [self._named(self.of(name))] if self.of(name) else []
        holders = sorted({holder for holders in shares for holder in holders})
        return lines, tuple(map(colour_of, holders)) or (PLAIN,)

    def describe_function(self, name: str) -> tuple[list[str], tuple[str, ...]]:
        """The same for a function that the module ``name`` calls: it has no parameters."""
        return self.describe({}, name)

    def _share(self, holders: Holders, size: int) -> str:
        if not holders:
            return f"not placed: {amount(size, 'B')}"
        each = " each" if len(holders) > 1 else ""
        return f"{self._named(holders)}: {amount(size / len(holders), 'B')}{each}"

    def _named(self, holders: Holders) -> str:
        if len(holders) > 2 and holders == tuple(range(holders[0], holders[-1] + 1)):
            return f"{self.label}s {holders[0]}–{holders[-1]}"
        return f"{self.label}{'s' if len(holders) > 1 else ''} {', '.join(map(str, holders))}"

    def legend(self) -> list[tuple[str, str]]:
        """(colour, "stage 0: 2.7 MB, 6 %") for every holder."""
        rows = [(colour_of(h), f"{self.label} {h}: {self._part(self.bytes[h])}") for h in sorted(self.bytes)]
        return [*rows, (PLAIN, f"not placed: {self._part(self.unplaced)}")] if self.unplaced else rows

    def _part(self, size: float) -> str:
        percent = 100 * size / max(self.total, 1)
        return f"{amount(size, 'B')} of parameters, {'under 1' if 0 < percent < 0.5 else f'{percent:.0f}'} %"


def colour_of(holder: int) -> str:
    """Eight colours, then the same again: the number is always written beside."""
    return PALETTE[holder % len(PALETTE)]


def _holders(name: str, value: int | Iterable[int]) -> Holders:
    holders = (value,) if isinstance(value, int) else tuple(sorted(set(value)))
    if not holders or not all(isinstance(holder, int) and holder >= 0 for holder in holders):
        raise ValueError(f"the holder of {name!r} must be a number from 0, or several, not {value!r}")
    return holders
