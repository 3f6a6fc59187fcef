"""The compressed exchanges of chapter 19 by their names: what ``parallelize`` gives to DDP as a communication hook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_lib.compression.bytegrad import ByteGrad
from course_lib.compression.hook import CommHook
from course_lib.compression.methods import HOOKED
from course_lib.compression.onebit import OneBit
from course_lib.compression.powersgd import PowerSGD
from course_lib.compression.sparsify import RandomK, TopK
from simulator.inputs.checks import one_of

HOOKS: dict[str, type[CommHook]] = {
    "bytegrad": ByteGrad,
    "top-k": TopK,
    "random-k": RandomK,
    "powersgd": PowerSGD,
    "one-bit": OneBit,
}


def make_hook(compression: Mapping[str, Any] | None) -> CommHook | None:
    """A new hook, with the residuals of one model; None: DDP's own all-reduce.

    Args:
        compression: ``method``, a name of ``compression.methods.HOOKED``, and its settings.

    Raises:
        ValueError: there is no such method, or a setting is out of its range.
    """
    settings = {"method": "none"} if compression is None else dict(compression)
    method = settings.pop("method", None)
    one_of("the method of compression", method, HOOKED)
    return HOOKS[method](**settings) if method in HOOKS else None
