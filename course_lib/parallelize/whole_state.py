"""From the parts that ranks hold to whole tensors, as on one device, and back: over tensor, expert
and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.data_parallel.checkpoint import ONE_NUMBER
from course_lib.expert_parallel.apply import DealtExperts
from course_lib.tensor_parallel.full_tensors import full_tensor, shards_of
from course_lib.tensor_parallel.shard import Shard


class Whole:
    """Knows every parameter of the whole model, by name, and which part of it this rank holds.

    Args:
        model: the whole model, cut by tensor and expert parallelism, before a pipeline takes its stages.
        experts: the mesh of experts, with an axis ep; None: no experts are dealt out.
        meaning: what else there is to know of the plain model; see ``meaning_of``.

    Attributes:
        buffers: the shape of each buffer that a ``state_dict`` holds, by its name.
        first_name: of each parameter by each of its names; a tied parameter has several.
        tied: for the first name of a parameter that several pipeline ranks hold, how many do.
    """

    def __init__(
        self,
        model: nn.Module,
        mesh: DeviceMesh,
        meaning: Mapping[str, Any],
        experts: DeviceMesh | None = None,
    ) -> None:
        self.tp, self.pp, self.meaning = mesh["tp"], mesh["pp"], meaning
        self.dealt, self.ep = dealt_shards(model), experts and experts["ep"]
        self.shards, self.tied = shards_of(model) | self.dealt, dict[str, int]()
        names = {p: name for name, p in model.named_parameters()}
        self.first_name = {name: names[p] for name, p in model.named_parameters(remove_duplicate=False)}
        self.shapes = {names[p]: self._shape(name, p) for name, p in model.named_parameters()}
        self.names = [name for name, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)]
        buffers = dict(model.named_buffers(remove_duplicate=False))
        self.buffers = {name: tuple(buffers[name].shape) for name in self.names if name in buffers}

    def _shape(self, name: str, parameter: Tensor) -> tuple[int, ...]:
        shape = list(parameter.shape)
        if name in self.shards:
            shape[self.shards[name].dim] = self.shards[name].whole
        return tuple(shape)

    def holders(self, name: str) -> int:
        """How many ranks that differ in tp or pp hold the same elements of a parameter."""
        on_tp = name in self.shards and name not in self.dealt
        copies = self.shards[name].copies if on_tp else self.tp.size()
        return copies * self.tied.get(self.first_name[name], 1)

    def full(self, name: str, part: Tensor) -> Tensor:
        """Whole, in the CPU's memory; all ranks that have another part of it call it."""
        mesh = self.ep if self.ep and name in self.dealt else self.tp
        whole = full_tensor(part, self.shards[name], mesh) if name in self.shards else part
        return whole.detach().as_subclass(Tensor).to("cpu", copy=True)

    def everywhere(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """From this rank's part of each parameter or buffer that it holds, those of the whole model, in its order."""
        own = {self.first_name.get(name, name): self.full(name, t) for name, t in parts.items()}
        return self._joined(own)

    def _joined(self, own: dict[str, Any]) -> dict[str, Any]:
        """What the pipeline ranks have under the names of their parameters."""
        found = {name: value for stage in self._stages(own) for name, value in stage.items()}
        return {name: found[name] for name in (*self.shapes, *self.buffers) if name in found}

    def _stages(self, own: Any) -> list[Any]:
        """What each pipeline rank has."""
        stages = [own] * self.pp.size()
        if len(stages) > 1:
            dist.all_gather_object(stages, own, group=self.pp.get_group())
        return stages

    def under_all_names(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: whole[self.first_name.get(name, name)] for name in self.names}

    def own_parts(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of a state of the whole model this rank's parts, as views, under all names."""
        if missing := set(self.names) ^ state.keys():
            raise ValueError(
                "the state and the model must hold the same names; only one of them has "
                + ", ".join(sorted(missing))
            )
        shapes = self.shapes | self.buffers
        for name in self.names:
            if tuple(state[name].shape) != (shape := shapes[self.first_name.get(name, name)]):
                raise ValueError(
                    f"{name} must have the model's shape {shape}, not {tuple(state[name].shape)}"
                )
        return {name: self.part(name, state[name]) for name in self.names}

    def part(self, name: str, whole: Tensor) -> Tensor:
        return self.shards[name].of(whole) if name in self.shards else whole

    # ---- the optimizer's states -----------------------------------------------------------------------------------

    def optimizer_everywhere(self, local: Mapping[str, Any]) -> dict[str, Any]:
        """States by name, of this rank's parts, to those of one device."""
        own = {
            self.first_name[name]: {
                key: self.full(name, value) if _has_elements(key, value) else deepcopy(value)
                for key, value in state.items()
            }
            for name, state in local["state"].items()
        }
        return {"state": self._joined(own), "param_groups": self.groups_everywhere(local["param_groups"])}

    def groups_everywhere(self, local: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The optimizer's groups with the names of all parameters, whichever pipeline rank holds them."""
        here = [{self.first_name[name] for name in group["params"]} for group in local]
        groups = []
        for group, *together in zip(local, *self._stages(here), strict=True):
            names = set().union(*together)
            settings = {key: deepcopy(value) for key, value in group.items() if key != "params"}
            groups.append({**settings, "params": [name for name in self.shapes if name in names]})
        return groups

    def own_optimizer_parts(self, state: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """The way back: of the parameters that this rank holds, by the names that they have here."""
        states = {
            name: {
                key: self.part(name, value) if _has_elements(key, value) else value
                for key, value in state["state"][self.first_name[name]].items()
            }
            for name in names
            if self.first_name[name] in state["state"]
        }
        groups = [
            {**group, "params": [name for name in names if self.first_name[name] in group["params"]]}
            for group in state["param_groups"]
        ]
        return {"state": states, "param_groups": groups}


def dealt_shards(model: nn.Module) -> dict[str, Shard]:
    """For the name of each parameter of experts that are dealt to ranks, this rank's part."""
    return {
        f"{path}.{name}": Shard(0, module.first, len(p), module.experts)
        for path, module in model.named_modules()
        if isinstance(module, DealtExperts)
        for name, p in module.named_parameters()
    }


def _has_elements(key: str, value: Any) -> bool:
    return key not in ONE_NUMBER and isinstance(value, torch.Tensor)
