"""From a folder to a model: how a family of models is made of its settings, and where each parameter stands."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course_lib.models.pretrained.folder import Folder, Part


class Source(NamedTuple):
    """Where a parameter stands in the files.

    Attributes:
        name: of the tensor.
        transposed: it is kept as ``(in, out)``.
        number, of: the parameter is one of several of equal size that stand side by side in the tensor.
    """

    name: str
    transposed: bool = False
    number: int = 0
    of: int = 1


@dataclass(frozen=True)
class Family:
    """Models of one kind.

    Attributes:
        kinds: of ``model_type``, and what each of them sets in the course's configuration.
        computes: what a ``config.json`` may say: the one thing that the course's class computes.
        config: the course's configuration, from the folder.
        model: what is made of it.
        sources: for the name of a parameter where it may stand, the likeliest place first.
        unread: whether the course's class has no place for a tensor of this name, and needs none.
        stacked: for the name of a parameter of all experts the tensors of one of them, which stand one above the other
            in it; ``*`` is the expert's number. Nothing for another parameter.
    """

    kinds: Mapping[str, Mapping[str, Any]]
    config: Callable[[Folder], Any]
    model: Callable[[Any], nn.Module]
    sources: Callable[[str], Iterable[Source]]
    computes: Mapping[str, Any] = field(default_factory=dict)
    unread: Callable[[str], bool] = lambda name: False
    stacked: Callable[[str], tuple[str, ...]] = lambda name: ()


class Pretrained:
    """The weights of one model in a folder.

    Raises:
        ValueError: no model of the family, or one that the course's class does not compute.
    """

    def __init__(self, source: str | Path | Folder, family: Family) -> None:
        self.folder = source if isinstance(source, Folder) else Folder(source)
        self.family = family
        if self.folder.kind not in family.kinds:
            raise ValueError(
                f"{self.folder.path} has model_type {self.folder.kind!r}; only "
                f"{' or '.join(map(repr, family.kinds))} is supported."
            )
        self.folder.check(family.computes)

    def make_model(self) -> nn.Module:
        """Without values, on the meta device."""
        config = self.family.config(self.folder)
        with torch.device("meta"):
            return self.family.model(config)

    def source(self, name: str) -> Source | None:
        """Where a parameter stands; None: the files do not have it."""
        return next((s for s in self.family.sources(name) if s.name in self.folder.files), None)

    def read(self, name: str, part: Part) -> Tensor:
        """A part of the parameter ``name``, of which no more is read than that (of experts, all their rows)."""
        if self.family.stacked(name):
            (low, high), rows, columns = part
            experts = [self._of_expert(name, expert) for expert in range(low, high)]
            read = [[self._rows(one, columns) for one in names] for names in experts]
            return torch.stack([torch.cat(tensors)[slice(*rows)] for tensors in read])
        source = self.source(name)
        if source.of > 1:
            (low, high), *columns = part
            shape = self.folder.shape(source.name)
            above = source.number * (shape[-1 if source.transposed else 0] // source.of)
            part = [(above + low, above + high), *columns]
        tensor = self.folder.read(source.name, part[::-1] if source.transposed else part)
        return tensor.T if source.transposed and tensor.dim() > 1 else tensor

    def _of_expert(self, name: str, expert: int) -> list[str]:
        return [one.replace("*", str(expert)) for one in self.family.stacked(name)]

    def _rows(self, tensor: str, columns: tuple[int, int]) -> Tensor:
        return self.folder.read(tensor, [(0, self.folder.shape(tensor)[0]), columns])

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError where the files lack a parameter, have one more, or one of another shape."""
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        stacks = {name: range(len(t)) for name, t in named.items() if self.family.stacked(name)}
        stacks = {name: [self._of_expert(name, e) for e in numbers] for name, numbers in stacks.items()}
        inside = [one for of_experts in stacks.values() for names in of_experts for one in names]
        found = {name: self.source(name) for name in named if name not in stacks}
        missing = [name for name in inside if name not in self.folder.files]
        if missing := missing + [name for name, source in found.items() if source is None]:
            raise ValueError(
                f"{self.folder.path} has no {', '.join(missing[:3])}, which its config.json asks for."
            )
        for name, source in found.items():
            there = list(self.folder.shape(source.name))
            there = there[::-1] if source.transposed else there
            if there != [source.of * named[name].shape[0], *named[name].shape[1:]]:
                raise ValueError(
                    f"{self.folder.path}: {source.name} is {tuple(there)}, and config.json makes it "
                    f"{tuple(named[name].shape)}."
                )
        for name, of_experts in stacks.items():
            for names in of_experts:
                shapes, wanted = [self.folder.shape(one) for one in names], tuple(named[name].shape[1:])
                if (sum(rows for rows, _ in shapes), shapes[0][1]) != wanted:
                    raise ValueError(
                        f"{self.folder.path}: {', '.join(names)} are {', '.join(map(str, shapes))}, and config.json "
                        f"makes them {wanted} together."
                    )
        known = {s.name for name in model.state_dict() for s in self.family.sources(name)} | {*inside}
        if more := [n for n in self.folder.files if n not in known and not self.family.unread(n)]:
            raise ValueError(f"{self.folder.path} has {', '.join(more[:3])}, for which there is no place.")

    def load(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The whole model, in evaluation mode."""
        model = self.make_model().to(dtype)
        self.check(model)
        fill([model], lambda name, t: self.read(name, [(0, n) for n in t.shape]))
        return model.eval()


@torch.no_grad()
def fill(
    roots: Iterable[nn.Module],
    values: Callable[[str, Tensor], Tensor],
    device: torch.device | str = "cpu",
    chosen: Container[Tensor] | None = None,
) -> None:
    """Give values to all parameters and buffers on the meta device; a shared one stays shared.

    Args:
        values: of its name, and the tensor that has none. They are copied.
        chosen: these alone.
    """
    made: dict[Tensor, Tensor] = {}
    for root in roots:
        for path, module in root.named_modules():
            for held in (module._parameters, module._buffers):
                for attribute, t in held.items():
                    if t is None or not t.is_meta or (chosen is not None and t not in chosen):
                        continue
                    if t not in made:
                        new = (
                            values(f"{path}.{attribute}".lstrip("."), t)
                            .to(device, t.dtype, copy=True)
                            .contiguous()
                        )
                        made[t] = nn.Parameter(new, t.requires_grad) if isinstance(t, nn.Parameter) else new
                    held[attribute] = made[t]


def known_settings(config_class: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a configuration of the course has under the same name."""
    names = {one.name for one in fields(config_class)}
    return {name: value for name, value in settings.items() if name in names}
