"""One module of checks for each chapter with exercises, loaded when a notebook first names it.

``from course_lib.grading import checks`` and then ``checks.ddp.check_05_2(assign_buckets)``.
How to write one: ``course_lib.grading.report``.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise  # the module is there: something it needs is not
        raise AttributeError(f"there are no checks named {name!r} in {__name__}") from None
