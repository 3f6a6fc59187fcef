"""Running ranks: processes that talk, started from a notebook cell, a script or torchrun."""

from course_lib.runtime.devices import current_device
from course_lib.runtime.launch import launch
from course_lib.runtime.report import RankError

__all__ = ["RankError", "current_device", "launch"]
