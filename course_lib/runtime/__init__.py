"""Runs functions on ranks: processes that send each other tensors, started from a notebook, a script or torchrun."""

from course_lib.runtime.devices import current_device
from course_lib.runtime.errors import RankError
from course_lib.runtime.launch import launch

__all__ = ["RankError", "current_device", "launch"]
