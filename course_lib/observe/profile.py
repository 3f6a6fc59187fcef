"""A model's profile: what each of its modules computes, takes and holds, as a tree down to a depth.

FLOPs and MACs are counted, not measured (``ledgers/flops.py``); parameters and what is saved for backward are counted,
too (``ledgers/saved.py``); seconds are measured (``ledgers/module_seconds.py``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from course_lib.observe.ledgers.flops import ModuleFlops, flops_by_module
from course_lib.observe.ledgers.module_calls import with_containers
from course_lib.observe.ledgers.module_seconds import ModuleSeconds, module_seconds
from course_lib.observe.ledgers.saved import saved_tensors
from course_lib.observe.networks.placement import size_of
from course_lib.observe.show.amounts import amount
from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table


@dataclass(frozen=True)
class ModuleProfile:
    """One module with all that is inside it.

    Args:
        name: dotted; ``""`` is the model.
        kind: its class.
        parameters: how many, each counted once; ``parameter_bytes``: what they take.
        flops: of one step.
        saved_bytes: what its forward keeps for backward, without parameters; a tensor that several modules keep
            counts for the first.
        seconds: measured; None: it was not run.
    """

    name: str
    kind: str
    parameters: int
    parameter_bytes: int
    flops: ModuleFlops
    saved_bytes: int
    seconds: ModuleSeconds | None = None

    @property
    def depth(self) -> int:
        return len(self.name.split(".")) if self.name else 0


class Profile(Shown):
    """Shows itself as a table. ``modules``: every module of the model, in its order, whatever the depth shown."""

    def __init__(self, modules: list[ModuleProfile], depth: int) -> None:
        self.modules = modules
        shown = [module for module in modules if module.depth <= depth and _does_something(module)]
        header, rows = _rows(shown)
        drawn = table(header, rows)
        super().__init__(drawn.text, drawn.html)

    def __getitem__(self, name: str) -> ModuleProfile:
        return next(module for module in self.modules if module.name == name)

    def as_json(self) -> list[dict[str, Any]]:
        """One entry a module; bytes, seconds, and FLOPs by their names."""
        return [
            asdict(module)
            | {"flops": module.flops._asdict() | {"macs": module.flops.macs}}
            | {"seconds": module.seconds and module.seconds._asdict()}
            for module in self.modules
        ]


def profile(model: nn.Module, *inputs: Any, depth: int = 2, run: bool = True, repeats: int = 5) -> Profile:
    """FLOPs, MACs, parameters, saved bytes and seconds of each module in a step of ``model(*inputs)``.

    Args:
        model: any module; it stays as it is, and is profiled in the mode in which it is.
        depth: levels of submodules that the table shows; 0 is the model alone.
        run: measure seconds, too; without, nothing is computed, so that any size is quick.
        repeats: steps of which the median counts.

    Raises:
        ValueError: a negative depth, fewer than 1 repeat.
    """
    if depth < 0:
        raise ValueError(f"depth must be 0 or more, not {depth}")
    flops = flops_by_module(model, *inputs)
    saved: Counter[str] = Counter()
    for tensor in saved_tensors(model, *inputs):
        for name in with_containers(tensor.saved_in):
            saved[name] += tensor.bytes
    seconds = module_seconds(model, *inputs, repeats=repeats) if run else {}
    return Profile(
        [
            ModuleProfile(
                name,
                type(module).__name__,
                sum(p.numel() for p in module.parameters()),
                size_of(module.parameters()),
                flops[name],
                saved[name],
                seconds.get(name),
            )
            for name, module in model.named_modules()
        ],
        depth,
    )


def _does_something(module: ModuleProfile) -> bool:
    return bool(not module.name or module.parameters or any(module.flops) or module.saved_bytes)


def _rows(modules: list[ModuleProfile]) -> tuple[list[str], list[list[Any]]]:
    header = ["module", "MACs", "FLOP forward", "backward", "elementwise", "parameters", "bytes", "saved"]
    measured = modules[0].seconds is not None
    header += ["forward", "backward"] if measured else []
    rows = []
    for module in modules:
        name = "\u2003" * module.depth + (module.name.rpartition(".")[2] or "model")
        flops = module.flops
        row = [f"{name} ({module.kind})", _count(flops.macs)]
        row += [_count(flops.forward), _count(flops.backward), _count(flops.elementwise)]
        row += [
            _count(module.parameters),
            amount(module.parameter_bytes, "B"),
            amount(module.saved_bytes, "B"),
        ]
        rows.append(row + ([amount(seconds, "s") for seconds in module.seconds] if measured else []))
    return header, rows


def _count(number: int) -> str:
    """``"13.5 G"``: without the name of what is counted, which stands above the column."""
    return amount(number, "FLOP").removesuffix("FLOP").strip()
