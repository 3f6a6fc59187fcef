"""The stages that one rank holds, with the methods of a module that a training loop calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.pipeline.stages import Stage
from simulator.pipeline.actions import Schedule


class StageModules:
    """Parameters and states of this rank's stages.

    Args:
        modules: the stages by their numbers; each may be wrapped.
    """

    def __init__(self, modules: Mapping[int, nn.Module]) -> None:
        self.modules = dict(sorted(modules.items()))

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Each parameter once, with its name in the whole model."""
        seen = set()
        for index, module in self.modules.items():
            stage = inner_stage(module)
            for name, parameter in (stage or module).named_parameters():
                if parameter not in seen:
                    seen.add(parameter)
                    yield name if stage is not None else f"{index}.{name}", parameter

    def parameters(self) -> Iterator[nn.Parameter]:
        """For an optimizer."""
        return (parameter for _, parameter in self.named_parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """The entries of the whole model's that belong to this rank's stages."""
        return {
            name: tensor
            for index, module in self.modules.items()
            for name, tensor in self._state_of(index, module).items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take this rank's entries out of the whole model's ``state``.

        Raises:
            ValueError: an entry is missing.
        """
        for index, module in self.modules.items():
            stage = inner_stage(module)
            names = self._state_of(index, module)
            if missing := [name for name in names if name not in state]:
                raise ValueError(f"the state has no {', '.join(missing)}")
            prefix = "" if stage is not None else f"{index}."
            (stage or module).load_state_dict({name.removeprefix(prefix): state[name] for name in names})

    def _state_of(self, index: int, module: nn.Module) -> dict[str, Any]:
        stage = inner_stage(module)
        return stage.state_dict() if stage is not None else module.state_dict(prefix=f"{index}.")

    def train(self, mode: bool = True) -> None:
        for module in self.modules.values():
            module.train(mode)

    def eval(self) -> None:
        self.train(False)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for module in self.modules.values():
            module.zero_grad(set_to_none)


def inner_stage(module: nn.Module) -> Stage | None:
    """The ``Stage`` in a wrapped one; None: the module is none, and holds none."""
    return next((inner for inner in module.modules() if isinstance(inner, Stage)), None)


def check_stages(modules: Mapping[int, nn.Module], schedule: Schedule, mesh: DeviceMesh) -> None:
    """Raises ``ValueError`` if these are not the stages that this rank of ``mesh`` holds under ``schedule``."""
    if mesh.size() != schedule.ranks:
        raise ValueError(f"the schedule is for {schedule.ranks} ranks, but the mesh has {mesh.size()}")
    rank = mesh.get_local_rank()
    if sorted(modules) != schedule.stages_of(rank):
        raise ValueError(
            f"under {schedule.name} rank {rank} holds the stages {schedule.stages_of(rank)}, not {sorted(modules)}"
        )
    for stage in map(inner_stage, modules.values()):
        if stage is not None and stage.stages != schedule.stages:
            raise ValueError(
                f"the model is cut into {stage.stages} stages, but {schedule.name} has {schedule.stages}"
            )
