"""The norm of the gradient of the whole model, whose stages are on different ranks.

``torch.nn.utils.clip_grad_norm_`` takes the norm of this rank's stages. It differs by rank, so each would scale its
gradients by another factor. And a tied parameter, of which two ranks have copies, is one parameter of the model.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.stage_modules import inner_stage
from course_lib.training.clipping import scale_gradients


@torch.no_grad()
def clip_grad_norm_(pipeline: Pipeline, max_norm: float, error_if_nonfinite: bool = False) -> Tensor:
    """Scale all gradients so that their norm is at most ``max_norm``; return the norm before. Call it on all ranks.

    Raises:
        ValueError: the norm is not finite and ``error_if_nonfinite``; no gradient is changed.
    """
    norm = grad_norm(pipeline)
    if error_if_nonfinite and not norm.isfinite():
        raise ValueError(f"the norm of the gradient is {norm:g}, so no gradient was changed")
    scale_gradients((p.grad for p in pipeline.parameters() if p.grad is not None), norm, max_norm)
    return norm


@torch.no_grad()
def grad_norm(pipeline: Pipeline) -> Tensor:
    """The root of the sum of all squares, each element counted once: one all-reduce of one number."""
    mesh = pipeline.mesh
    square = torch.zeros((), dtype=torch.float64, device=mesh.device_type)
    for parameter in counted_parameters(pipeline).values():
        if parameter.grad is not None:
            square += parameter.grad.norm(dtype=torch.float64).square()
    dist.all_reduce(square, group=mesh.get_group())
    return square.sqrt()


def counted_parameters(pipeline: Pipeline) -> dict[str, nn.Parameter]:
    """This rank's parameters, a tied one only where the first stage that has it is."""
    elsewhere = set()
    for stage in map(inner_stage, pipeline.modules.values()):
        if stage is not None:
            elsewhere |= {
                stage.get_parameter(name)
                for name, stages in stage.tied.items()
                if min(stages) not in pipeline.modules
            }
    return {name: parameter for name, parameter in pipeline.named_parameters() if parameter not in elsewhere}
