"""The cut that a module names itself, as transformers' models do: ``model.tp_plan``, a style for each name."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle


class SummedGradients(ParallelStyle):
    """Whole on every rank, but used for its own heads alone, such as the norm of each head's queries."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def add_up(parameter: Tensor) -> None:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=device_mesh.get_group())

        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(add_up)
        return module


# Each by its name in a plan, with what it cuts; an output that is gathered and an input that is split are whole outside
STYLES: dict[str, tuple[ParallelStyle | None, type[nn.Module]]] = {
    "colwise": (ColwiseParallel(), nn.Linear),
    "rowwise": (RowwiseParallel(), nn.Linear),
    "colwise_gather_output": (ColwiseParallel(output_layouts=Replicate()), nn.Linear),
    "rowwise_split_input": (RowwiseParallel(input_layouts=Replicate()), nn.Linear),
    "embedding_rowwise": (RowwiseParallel(input_layouts=Replicate()), nn.Embedding),
    "embedding_colwise": (ColwiseParallel(output_layouts=Replicate()), nn.Embedding),
    "replicated_with_grad_allreduce": (SummedGradients(), nn.Module),
    "replicate": (None, nn.Module),
}


def cut_by_plan(model: nn.Module, mesh: DeviceMesh) -> None:
    """Cut a module in place, over a mesh of one axis, by the plan that it, or a module inside of it, carries.

    What the plan does not name stays whole, and what is tied stays tied.

    Raises:
        ValueError: there is no plan, it asks for another style, or heads or columns cannot be dealt out evenly.
    """
    tp, asked = mesh.size(), dict(_asked(model))
    styles: dict[str, ParallelStyle] = {}
    for name, part in (*model.named_modules(), *model.named_parameters()):
        if (style := asked.get(_pattern(name))) is None:
            continue
        known, kind = STYLES.get(style, (None, type(None)))
        if not isinstance(part, kind):
            every = ", ".join(f"{style} of {kind.__name__}" for style, (_, kind) in STYLES.items())
            raise ValueError(
                f"tp must be 1, not {tp}: the tp_plan has {style} for {name}; it may have {every}"
            )
        if isinstance(part, nn.Linear):
            _check_even(model, name, part, style, tp)
        if known:
            styles[name] = known
    if not styles:
        raise ValueError(f"tp must be 1, not {tp}: nothing says how the module is cut, no cut and no tp_plan")
    tied: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        tied.setdefault(id(parameter), []).append(name)
    parallelize_module(model, mesh, styles)
    for first, *others in tied.values():  # each has a DTensor of its own now
        shared = model.get_parameter(first)
        for name in others:
            if getattr(shared, "placements", 0) != getattr(model.get_parameter(name), "placements", 0):
                raise ValueError(f"tp must be 1, not {tp}: {first} and {name} are one, and cut in two ways")
            module, _, own = name.rpartition(".")
            setattr(model.get_submodule(module), own, shared)


def _asked(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Patterns of names, and styles, of the outermost modules that carry a plan."""
    if plan := vars(module).get("_tp_plan"):
        yield from ((_pattern(prefix + name), style) for name, style in plan.items())
    else:
        for name, child in module.named_children():
            yield from _asked(child, f"{prefix}{name}.")


def _pattern(name: str) -> str:
    """``layers.7.mlp`` -> ``layers.*.mlp``."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def _check_even(model: nn.Module, name: str, linear: nn.Linear, style: str, tp: int) -> None:
    """What is cut outside, too, has the same size on all ranks; queries, keys and values are whole heads."""
    if style not in ("colwise", "rowwise"):
        return
    width = linear.out_features if style == "colwise" else linear.in_features
    head = getattr(model.get_submodule(name.rpartition(".")[0]), "head_dim", 1)
    size, what = (head, "heads") if name.endswith(("q_proj", "k_proj", "v_proj")) else (1, "columns")
    if width % (size * tp):
        raise ValueError(f"tp must divide the {width // size} {what} of {name}, not be {tp}")
