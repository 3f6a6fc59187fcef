"""A plain model cut into the stages of a pipeline.

Most models are a chain: each part is called with what the part before it returned. ``chains/`` names the parts of
the course's models in this order. A stage is some parts that follow one another; the tensors that its last part returns
go to the next stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.models.anatomy import anatomy_of, known_families
from course_lib.pipeline.chains.models import CHAINS, Call, Chain, plainly, text_chain
from simulator.inputs.chunks import chunk_sizes
from simulator.pipeline.actions import Schedule


class Stage(nn.Module):
    """Some parts of a model, called one after the other: tensors in, a tensor or a tuple of tensors out.

    Modules and parameters have the names that they have in the whole model, such as ``blocks.3.mlp.up.weight``.

    Attributes:
        index, stages: which stage this is, and how many there are.
        parts: the names of its parts, in order.
        tied: for each parameter that stands in other stages too, the numbers of all stages that have it.
    """

    def __init__(
        self,
        index: int,
        stages: int,
        parts: Mapping[str, tuple[nn.Module | None, Call]],
        held: Mapping[str, nn.Module] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.index, self.stages, self.parts = index, stages, list(parts)
        self.calls = {name: call for name, (_, call) in parts.items()}
        self.tied: dict[str, tuple[int, ...]] = {}
        for name, module in ({name: module for name, (module, _) in parts.items()} | dict(held)).items():
            *path, last = name.split(".")
            holder: nn.Module = self
            for word in path:
                if word not in holder._modules:
                    holder.add_module(word, nn.Module())
                holder = holder.get_submodule(word)
            holder.add_module(last, module)

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        for name, call in self.calls.items():
            tensors = as_tuple(call(attrgetter(name)(self), *tensors))
        return one_or_all(tensors)

    def extra_repr(self) -> str:
        return f"stage {self.index} of {self.stages}: {', '.join(self.parts)}"


def as_tuple(tensors: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tensors if isinstance(tensors, tuple) else (tensors,)


def one_or_all(tensors: Sequence[Tensor]) -> Tensor | Sequence[Tensor]:
    return tensors[0] if len(tensors) == 1 else tensors


def rank_stages(
    model: nn.Module,
    schedule: Schedule,
    mesh: DeviceMesh,
    layers: Sequence[int] | None = None,
    chain: Chain | None = None,
) -> dict[int, Stage]:
    """The stages that this rank holds under ``schedule``, by their numbers.

    The weights of all other stages are freed as soon as nothing else refers to ``model``.

    Args:
        mesh: the ranks of the pipeline, one axis.
        layers, chain: see ``split_model``.
    """
    if mesh.size() != schedule.ranks:
        raise ValueError(f"the schedule is for {schedule.ranks} ranks, but the mesh has {mesh.size()}")
    stages = split_model(model, schedule.stages, layers, chain)
    return {index: stages[index] for index in schedule.stages_of(mesh.get_local_rank())}


def split_model(
    model: nn.Module, stages: int, layers: Sequence[int] | None = None, chain: Chain | None = None
) -> list[Stage]:
    """All stages of ``model``. They share its modules: nothing is copied.

    What comes before the layers belongs to the first stage, what comes after them to the last.

    Args:
        layers: how many layers each stage has; None: as many as the others, and where that is impossible the first
            stages have one more.
        chain: the names of the model's parts in the order in which they are called (None in the place of a call: every
            stage holds the part, and its hooks use it). ``blocks.*`` stands for all
            modules in ``blocks``: these are the layers; without such a name every part is a layer. Where a part is
            not simply called with what the part before it returned, a function ``(module, *tensors)`` for the name.
            None: that of the course's model.

    Raises:
        ValueError: the layers cannot be dealt out like this, or the chain leaves out something of the model.
    """
    parts, held, places = parts_of(model, chain)
    count = len(places)
    if layers is None:
        if not 1 <= stages <= count:
            raise ValueError(
                f"{count} layers cannot be cut into {stages} stages with at least one layer each"
            )
        layers = chunk_sizes(count, stages)
    if len(layers) != stages or min(layers) < 1 or sum(layers) != count:
        raise ValueError(
            f"layers must be {stages} numbers of at least 1 with the sum {count}, not {list(layers)}"
        )
    edges = [0, *(places[done] for done in accumulate(layers[:-1])), len(parts)]
    cut = [Stage(i, stages, dict([*parts.items()][a:b]), held) for i, (a, b) in enumerate(pairwise(edges))]
    mark_tied_parameters(cut)
    return cut


def parts_of(
    model: nn.Module, chain: Chain | None = None
) -> tuple[dict[str, tuple[nn.Module | None, Call]], dict[str, nn.Module], list[int]]:
    """Every part's module and how it is called, by name; what every stage holds; the places of the layers."""
    if chain is None:
        anatomy = anatomy_of(model)
        chain = next((chain for kind, chain in CHAINS.items() if isinstance(model, kind)), None)
        chain = chain or (anatomy and text_chain(anatomy))
        if chain is None:
            known = f"{known_families(text_chain)}, {', '.join(kind.__name__ for kind in CHAINS)}"
            raise ValueError(
                f"there is a chain for {known}, and none for {type(model).__name__}: give one as chain="
            )
    if callable(chain):
        chain = chain(model)
    calls = dict(chain) if isinstance(chain, Mapping) else dict.fromkeys(chain, plainly)
    for name, module in model.named_modules():
        if hasattr(module, "in_chain"):  # what fine-tuning has added knows its own place
            calls = module.in_chain(name, calls)
    parts: dict[str, tuple[nn.Module | None, Call]] = {}
    held: dict[str, nn.Module] = {}
    places: list[int] = []
    for pattern, how in calls.items():
        container, star, _ = pattern.rpartition("*")
        try:
            holder = attrgetter(container.rstrip("."))(model) if container else model
            names = [container + name for name, _ in holder.named_children()] if star else [pattern]
            if how is None:
                held[pattern] = model.get_submodule(pattern)
                continue
            for number, name in enumerate(names):
                places += [len(parts)] if star else []
                behind = getattr(how, "beside", {}).get(number, {})
                parts |= {one: (attrgetter(one)(model), its) for one, its in ({name: how} | behind).items()}
        except AttributeError:
            raise ValueError(f"{type(model).__name__} has no module {pattern.removesuffix('.*')}") from None
    check_complete(model, parts | {name: (module, plainly) for name, module in held.items()})
    return parts, held, places or list(range(len(parts)))


def check_complete(model: nn.Module, parts: Mapping[str, tuple[nn.Module | None, Call]]) -> None:
    """Refuse a chain under which a parameter would be lost, or a hook would no longer run."""

    def inside(name: str) -> bool:
        return any(name == part or name.startswith(f"{part}.") for part in parts)

    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    # A module may have several names, of which one is enough.
    held = {inner for module, _ in parts.values() if module is not None for inner in module.modules()}
    for name, _ in tensors:
        if model.get_submodule(name.rpartition(".")[0]) not in held:
            raise ValueError(f"{name} is in no part of the chain {', '.join(parts)}")
    for name, module in model.named_modules():
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        hooks = [h for h in hooks if not hasattr(getattr(h, "__self__", None), "in_chain")]
        if not inside(name) and (hooks or "forward" in vars(module)):
            raise ValueError(
                f"{name or type(model).__name__} has hooks, but stages call the parts {', '.join(parts)} without it: "
                "put the hooks on a part"
            )


def mark_tied_parameters(stages: Sequence[Stage]) -> None:
    """Note in each stage which of its parameters other stages have, too."""
    holders: dict[Tensor, dict[int, str]] = {}
    for stage in stages:
        for name, parameter in stage.named_parameters():
            holders.setdefault(parameter, {})[stage.index] = name
    for names in holders.values():
        if len(names) > 1:
            for index, name in names.items():
                stages[index].tied[name] = tuple(names)


def gradients_of(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Zeros where a stage did not use its input."""
    return [torch.zeros_like(t) if t.grad is None else t.grad for t in inputs if t.requires_grad]
