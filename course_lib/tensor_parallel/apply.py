"""Tensor parallelism applied to a plain model from outside, by a table: name of a module -> style.

>>> apply_tensor_parallel(model, mesh["tp"])                                         # doctest: +SKIP
>>> loss_fn = VocabParallelCrossEntropy(256, mesh["tp"])                             # doctest: +SKIP
>>> optimizer = AdamW(model.parameters())  # afterwards                              # doctest: +SKIP
>>> loss_fn(model(tokens), targets).backward()                                       # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from course_lib.models.names import matching, replace_module
from course_lib.tensor_parallel.gather_again import gather_and_keep_shard, linear_of_gathered
from course_lib.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear, f
from course_lib.tensor_parallel.random_state import share_random_state, use_own_random_state
from course_lib.tensor_parallel.sequence import (
    SequenceRowParallelLinear,
    SequenceVocabParallelEmbedding,
    own_positions,
    whole_sequence,
    work_on_shard,
)
from course_lib.tensor_parallel.shard import Shard, equal_shard, kv_shard, vocabulary_shard
from course_lib.tensor_parallel.tables import table_of
from course_lib.tensor_parallel.vocab import VocabParallelEmbedding, embedding_shard

STYLES = {
    "enter": "the input enters through f (g)",
    "column": "cut by columns",
    "heads": "cut by columns, whole heads",
    "kv heads": "cut by columns, whole heads; where heads are fewer than ranks, several ranks have the same head",
    "grouped heads": "cut by columns, whole groups: the queries that share a head of keys and values, and that head",
    "copied": "whole on every rank, which computes a part of its gradient (A of LoRA, before a B cut by columns)",
    "core": "attention on this rank's heads: dropout differs by rank",
    "row": "cut by rows; the output leaves through g (g-bar)",
    "vocabulary": "an embedding cut by words; the output leaves through g (g-bar)",
    "vocabulary head": "the input enters through f (g); cut by words, and so are the logits",
    "part": "whole on every rank, which computes a part of its gradients",
    "replicated": "every rank computes it in full",
    # with sequence parallelism; without it every rank computes these in full, too
    "sequence": "works on each token by itself (norm, dropout): on this rank's tokens",
    "positions": "an embedding looked up for each position: for this rank's tokens",
    "whole": "the output is gathered for what follows",
}
COLUMNS = ("column", "heads", "kv heads", "grouped heads", "copied")


def apply_tensor_parallel(
    model: nn.Module,
    mesh: DeviceMesh,
    table: Mapping[str, str] | None = None,
    *,
    sequence_parallel: bool = False,
) -> nn.Module:
    """Cut ``model`` in place over the ranks of ``mesh``, and return it. Train it with the same batch on all of them.

    Every rank starts with its part of the values that the mesh's first rank has, so a model does not depend on the
    number of ranks; and with the first rank's random state, so that dropout agrees where it must. Names stay as they
    are. Logits come out cut by words: their loss is ``VocabParallelCrossEntropy``. Make optimizers afterwards, and
    clip with ``gradient_norm.clip_grad_norm_``. Apply recomputation and data parallelism after this.

    Args:
        mesh: one axis.
        table: for each name of modules (``models/names.py``) a style of ``STYLES``; None: the table of
            the course's GPT, BERT, LLaMA, Falcon or BART.
        sequence_parallel: norms, dropout and residual sums work on a p-th of the tokens on each rank.

    Raises:
        ValueError: the mesh, a name, a style or a size cannot be used; the model is as it was. In forward: p does not
            divide the length of a sequence.
    """
    if mesh.ndim != 1:
        raise ValueError(f'the mesh must have one axis, such as mesh["tp"], not {mesh.ndim}')
    styles = _styles(model, table)
    if sequence_parallel:
        _check_sequence_parallel(model, styles)
    shards = {name: _shard(model, name, style, mesh) for name, style in styles.items()}
    tied = _tied(model, styles, shards)
    _start_equal(model, mesh)
    for name, style in styles.items():
        _apply_style(model, name, style, shards[name], mesh, sequence_parallel)
    enter_in_parts(model, mesh)
    for first, *others in tied:
        for name in others:
            module, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(module), attribute, model.get_parameter(first))
    return model


def _styles(model: nn.Module, table: Mapping[str, str] | None) -> dict[str, str]:
    """A style for each module that the table names."""
    styles: dict[str, str] = {}
    modules = [name for name, _ in model.named_modules() if name]
    for pattern, style in (table_of(model) if table is None else table).items():
        if style not in STYLES:
            raise ValueError(f"{pattern} has the style {style!r}; the styles are {', '.join(STYLES)}")
        called = matching(pattern, modules)
        if not called:
            raise ValueError(f"{type(model).__name__} has no module {pattern}; it has {', '.join(modules)}")
        for name in called:
            styles |= _styles_inside(model, name, style)
    # An Identity that enters does so for the modules beside it (BART's MLP has no module of its own).
    entered = {name for name, style in styles.items() if style == "enter"}
    entered |= {name.rpartition(".")[0] for name in entered if type(model.get_submodule(name)) is nn.Identity}
    for name, style in styles.items():
        around = [name[:i] for i, letter in enumerate(name) if letter == "."]
        if style in COLUMNS and not any(outer in entered for outer in around):
            raise ValueError(
                f"{name} is cut by columns, but no module around it has the style 'enter': its input would get "
                "a part of its gradient"
            )
    return styles


def _styles_inside(model: nn.Module, name: str, style: str) -> dict[str, str]:
    """The module's style, or those of its parts, where it is a layer around a plain one (LoRA) and knows them."""
    module = model.get_submodule(name)
    if not hasattr(module, "tensor_parallel_styles"):
        return {name: style}
    try:
        return {f"{name}.{part}": inner for part, inner in module.tensor_parallel_styles(style).items()}
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check_sequence_parallel(model: nn.Module, styles: Mapping[str, str]) -> None:
    """What would be silently wrong where each rank has its own tokens."""
    for name, module in model.named_modules():
        if name not in styles and next(module.parameters(recurse=False), None) is not None:
            raise ValueError(
                f"with sequence parallelism the table must name every module that has parameters, and "
                f"{name or 'the model'} is not in it: is it 'sequence' (works on this rank's tokens) or 'replicated' "
                "(works on all)?"
            )
    if "vocabulary" not in styles.values():
        raise ValueError(
            "sequence parallelism begins at an embedding with the style 'vocabulary', which gives each rank its "
            "tokens: the table has none"
        )


def _shard(model: nn.Module, name: str, style: str, mesh: DeviceMesh) -> Shard | None:
    """This rank's part of a module's weight."""
    module = model.get_submodule(name)
    kind = {"vocabulary": nn.Embedding, "positions": nn.Embedding}.get(style, nn.Linear)
    if style in (*COLUMNS, "row", "vocabulary", "vocabulary head", "positions") and not isinstance(
        module, kind
    ):
        raise ValueError(
            f"{name} is a {type(module).__name__}; the style {style!r} is for an nn.{kind.__name__}"
        )
    around = [model.get_submodule(name[:i]) for i, letter in enumerate(name) if letter == "."]
    size = next((outer.head_size for outer in reversed(around) if hasattr(outer, "head_size")), None)
    if "heads" in style and size is None:
        raise ValueError(f"{name} cannot be cut by heads: no module around it has a head_size")
    try:
        match style:
            case "column":
                return equal_shard(module.out_features, mesh)
            case "heads":
                return equal_shard(module.out_features, mesh, unit=size, what="heads")
            case "kv heads":
                return kv_shard(module.out_features, mesh, unit=size)
            case "grouped heads":
                group = next(outer.group for outer in reversed(around) if hasattr(outer, "group"))
                return equal_shard(module.out_features, mesh, unit=group * size, what="groups of heads")
            case "copied":
                return Shard(0, 0, module.out_features, module.out_features, copies=mesh.size())
            case "row":
                return equal_shard(module.in_features, mesh, dim=1, what="rows")
            case "vocabulary":
                return embedding_shard(module, mesh)
            case "vocabulary head":
                return vocabulary_shard(module.out_features, mesh)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return None


def _tied(model: nn.Module, styles: Mapping[str, str], shards: Mapping[str, Shard | None]) -> list[list[str]]:
    """The names of each parameter that several modules share; all of them must cut it alike."""
    names: dict[nn.Parameter, dict[str, Shard | None]] = {}
    for module_name, module in model.named_modules():
        for attribute, p in module.named_parameters(recurse=False):
            name = f"{module_name}.{attribute}" if module_name else attribute
            whole = styles.get(module_name) == "row" and attribute == "bias"
            names.setdefault(p, {})[name] = None if whole else shards.get(module_name)
    for cut in names.values():
        if len(set(cut.values())) > 1:
            raise ValueError(f"{' and '.join(cut)} are one tensor: the table must cut them alike")
    return [list(cut) for cut in names.values() if len(cut) > 1]


def _start_equal(model: nn.Module, mesh: DeviceMesh) -> None:
    """Parameters, buffers and random state of the mesh's first rank on all ranks, on the mesh's device."""
    for tensor in [*model.parameters(), *model.buffers()]:
        if not tensor.is_meta:
            tensor.data = tensor.data.to(mesh.device_type).contiguous()
            dist.broadcast(tensor.data, group=mesh.get_group(), group_src=0)
    share_random_state(mesh)


def _apply_style(
    model: nn.Module,
    name: str,
    style: str,
    shard: Shard | None,
    mesh: DeviceMesh,
    sequence_parallel: bool,
) -> None:
    module = model.get_submodule(name)
    if sequence_parallel:
        operator, multiply = gather_and_keep_shard, linear_of_gathered
        row_linear, embedding = SequenceRowParallelLinear, SequenceVocabParallelEmbedding
    else:
        operator, multiply = f, F.linear
        row_linear, embedding = RowParallelLinear, VocabParallelEmbedding
    enter = partial(_on_first_input, operator, mesh)
    match style:
        case "enter":
            module.register_forward_pre_hook(enter)
        case "column" | "heads" | "kv heads" | "grouped heads" | "copied":
            part = ColumnParallelLinear(module, mesh, shard, multiply)
            replace_module(model, name, part)
        case "row":
            replace_module(model, name, row_linear(module, mesh, shard))
        case "vocabulary":
            words = embedding(module, mesh)
            words._forward_hooks = module._forward_hooks  # a prompt stands behind it
            replace_module(model, name, words)
        case "vocabulary head":
            part = ColumnParallelLinear(module, mesh, shard, multiply)
            part.register_forward_pre_hook(enter)
            replace_module(model, name, part)
        case "part":
            work_on_shard(module, mesh)
        case "core":
            use_own_random_state(module, mesh)
        case "sequence" | "positions" if sequence_parallel:
            if module._parameters:
                work_on_shard(module, mesh)
            if isinstance(module, nn.modules.dropout._DropoutNd):
                use_own_random_state(module, mesh)
            if style == "positions":
                module.register_forward_pre_hook(partial(_on_first_input, own_positions, mesh))
        case "whole" if sequence_parallel:
            module.register_forward_hook(lambda _module, _inputs, x: whole_sequence(x, mesh.get_group()))


def enter_in_parts(model: nn.Module, mesh: DeviceMesh) -> None:
    """What every rank computes in full and uses for its own heads alone (a prefix) enters there through f."""
    for module in model.modules():
        if hasattr(module, "enter"):
            module.enter = partial(f, group=mesh.get_group())


def _on_first_input(
    operator: Callable[[Tensor, ProcessGroup], Tensor],
    mesh: DeviceMesh,
    module: nn.Module,
    inputs: tuple[Any, ...],
) -> tuple[Any, ...]:
    if not inputs:
        raise ValueError(
            f"{type(module).__name__} must get the tensor that it works on as its first argument, without a name"
        )
    return operator(inputs[0], mesh.get_group()), *inputs[1:]
