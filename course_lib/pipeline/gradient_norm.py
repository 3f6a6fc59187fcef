"""The norm of the gradient of a model whose stages are on different ranks; see ``course_lib.runtime.gradient_norm``."""

from __future__ import annotations

from torch import Tensor

from course_lib.pipeline.executor import Pipeline
from course_lib.runtime import gradient_norm


def clip_grad_norm_(pipeline: Pipeline, max_norm: float, error_if_nonfinite: bool = False) -> Tensor:
    """Scale all gradients so that their norm is at most ``max_norm``; return the norm before. Call it on all ranks.

    Raises:
        ValueError: the norm is not finite and ``error_if_nonfinite``; no gradient is changed.
    """
    gradients, group, device = held(pipeline), pipeline.mesh.get_group(), pipeline.mesh.device_type
    return gradient_norm.clip_grad_norm(gradients, max_norm, group, device, error_if_nonfinite)


def grad_norm(pipeline: Pipeline) -> Tensor:
    """The norm of the whole gradient, on every rank."""
    return gradient_norm.grad_norm(held(pipeline), pipeline.mesh.get_group(), pipeline.mesh.device_type)


def held(pipeline: Pipeline) -> list[tuple[Tensor, int]]:
    """Each gradient that this rank has, and how many ranks have it: several, where a parameter is tied."""
    others = dict(pipeline.tied.shared())
    return [(p.grad, 1 + len(others.get(p, ()))) for p in pipeline.parameters() if p.grad is not None]
