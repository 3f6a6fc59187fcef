"""Applies a ``Plan`` to a plain model: the only place where techniques meet. ``apply.py`` is where to begin."""

from course_lib.parallelize.apply import parallelize
from course_lib.parallelize.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from course_lib.parallelize.checks import mesh_axes
from course_lib.parallelize.parallel_model import ParallelModel

__all__ = [
    "ParallelModel",
    "latest_checkpoint",
    "load_checkpoint",
    "mesh_axes",
    "parallelize",
    "save_checkpoint",
]
