"""The checks of chapter 13: unequal parts, steps between layouts, heads of devices, bytes of four ways, a loss."""

from course_lib.grading.checks.galaxy_bytes import check_13_4
from course_lib.grading.checks.galaxy_heads import check_13_3
from course_lib.grading.checks.galaxy_layouts import check_13_2
from course_lib.grading.checks.galaxy_loss import check_13_5
from course_lib.grading.checks.galaxy_parts import check_13_1

__all__ = ["check_13_1", "check_13_2", "check_13_3", "check_13_4", "check_13_5"]
