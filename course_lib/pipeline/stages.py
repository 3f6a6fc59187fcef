"""A plain model cut into the stages of a pipeline.

Most models are a chain: each part is called with what the part before it returned. ``text_chain`` and ``CHAINS``
name the parts of the course's models in this order. A stage is some parts that follow one another; the tensors that its
last part returns go to the next stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.models.anatomy import Anatomy, anatomy_of, known_families
from course_lib.models.bart import Bart
from course_lib.models.bert import Bert, BertClassifier
from course_lib.models.masked_words import BertMaskedWords
from course_lib.models.masks import check_mask
from course_lib.pipeline.bart_stages import bart_chain
from simulator.inputs.chunks import chunk_sizes
from simulator.pipeline.actions import Schedule

Call = Callable[..., Any]  # (module, *tensors) -> a tensor or a tuple of tensors
Chain = Sequence[str] | Mapping[str, Call]


class Stage(nn.Module):
    """Some parts of a model, called one after the other: tensors in, a tensor or a tuple of tensors out.

    Modules and parameters have the names that they have in the whole model, such as ``blocks.3.mlp.up.weight``.

    Attributes:
        index, stages: which stage this is, and how many there are.
        parts: the names of its parts, in order.
        tied: for each parameter that stands in other stages too, the numbers of all stages that have it.
    """

    def __init__(self, index: int, stages: int, parts: Mapping[str, tuple[nn.Module | None, Call]]) -> None:
        super().__init__()
        self.index, self.stages, self.parts = index, stages, list(parts)
        self.calls = {name: call for name, (_, call) in parts.items()}
        self.tied: dict[str, tuple[int, ...]] = {}
        for name, (module, _) in parts.items():
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
        chain: the names of the model's parts in the order in which they are called. ``blocks.*`` stands for all
            modules in ``blocks``: these are the layers; without such a name every part is a layer. Where a part is
            not simply called with what the part before it returned, a function ``(module, *tensors)`` for the name.
            None: that of the course's model.

    Raises:
        ValueError: the layers cannot be dealt out like this, or the chain leaves out something of the model.
    """
    parts, first, count = parts_of(model, chain)
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
    edges = [first + done for done in accumulate(layers, initial=0)]
    edges[0], edges[-1] = 0, len(parts)
    names = list(parts)
    cut = [
        Stage(index, stages, {name: parts[name] for name in names[a:b]})
        for index, (a, b) in enumerate(pairwise(edges))
    ]
    mark_tied_parameters(cut)
    return cut


def parts_of(
    model: nn.Module, chain: Chain | None = None
) -> tuple[dict[str, tuple[nn.Module | None, Call]], int, int]:
    """Every part's module and how it is called, by name; the place of the first layer; the number of layers."""
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
    calls = chain if isinstance(chain, Mapping) else dict.fromkeys(chain, call)
    parts: dict[str, tuple[nn.Module | None, Call]] = {}
    first, count = 0, 0
    for pattern, how in calls.items():
        container, star, _ = pattern.rpartition("*")
        try:
            holder = attrgetter(container.rstrip("."))(model) if container else model
            names = [container + name for name, _ in holder.named_children()] if star else [pattern]
            found = {name: (attrgetter(name)(model), how) for name in names}
        except AttributeError:
            raise ValueError(f"{type(model).__name__} has no module {pattern.removesuffix('.*')}") from None
        if star:
            first, count = (first if count else len(parts)), count + len(names)  # two lists follow each other
        parts |= found
    check_complete(model, parts)
    return parts, first, count or len(parts)


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
        if not inside(name) and (
            module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
        ):
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


# ---- the course's models ----------------------------------------------------------------------------------


def call(module: nn.Module, *tensors: Tensor) -> Any:
    return module(*tensors)


def bert_embeddings(
    embeddings: nn.Module, tokens: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
) -> Any:
    """The mask goes along from stage to stage, in the form in which the layers take it: ``(batch, 1, 1, seq)``."""
    x = embeddings(tokens, token_types)
    return x if mask is None else (x, mask[:, None, None, :].bool())


def bert_layer(layer: nn.Module, x: Tensor, *mask: Tensor) -> tuple[Tensor, ...]:
    return layer(x, *mask), *mask


def bert_pooler(pooler: nn.Module | None, x: Tensor, *mask: Tensor) -> Any:
    return x if pooler is None else (x, pooler(x))


def text_embedding(embedding: nn.Module, tokens: Tensor, mask: Tensor | None = None) -> Any:
    """The mask goes along as it is: one for each sequence, ``(batch, 1, seq, seq)``."""
    if mask is None:
        return embedding(tokens)
    check_mask(mask, tokens.shape[1], tokens.shape[1])
    return embedding(tokens), mask


def text_layer(layer: nn.Module, x: Tensor, *mask: Tensor) -> tuple[Tensor, ...]:
    return layer(x, **({"mask": mask[0]} if mask else {})), *mask


def without_mask(module: nn.Module, x: Tensor, *mask: Tensor) -> Tensor:
    return module(x)


def text_chain(anatomy: Anatomy) -> dict[str, Call] | None:
    """That of a causal model (GPT, LLaMA, Falcon); None for another."""
    calls = {"layer": text_layer, "final norm": without_mask, "head": call}
    if not anatomy.causal or not anatomy.names("head"):
        return None
    [embedding, *_] = anatomy.names("embedding", "tokens")
    return {embedding: text_embedding} | {n: calls[r] for n, r in anatomy.roles.items() if r in calls}


CHAINS: dict[type[nn.Module], Chain | Callable[[Any], Chain]] = {
    Bert: {"embeddings": bert_embeddings, "encoder.layer.*": bert_layer, "pooler": bert_pooler},
    BertClassifier: {
        "bert.embeddings": bert_embeddings,
        "bert.encoder.layer.*": bert_layer,
        "bert.pooler": without_mask,
        "dropout": call,
        "classifier": call,
    },
    BertMaskedWords: {
        "bert.embeddings": bert_embeddings,
        "bert.encoder.layer.*": bert_layer,
        "cls.predictions": without_mask,
    },
    Bart: bart_chain,
    nn.Sequential: ("*",),
}


def gradients_of(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Zeros where a stage did not use its input."""
    return [torch.zeros_like(t) if t.grad is None else t.grad for t in inputs if t.requires_grad]
