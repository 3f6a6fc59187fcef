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
from simulator.inputs.plan import Plan

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


def check_compression(plan: Plan, compression: Mapping[str, Any] | None) -> None:
    """Raise a ValueError if gradients cannot be compressed like this, or not under this plan."""
    if make_hook(compression) is None:
        return
    if plan.zero > 0:
        raise ValueError(
            f"zero must be 0 with compression, not {plan.zero}: a hook averages whole gradients, and ZeRO sends shards"
        )
    if plan.pp > 1:
        raise ValueError(
            f"pp must be 1 with compression, not {plan.pp}: a pipeline averages at its end, and without buckets"
        )
    if plan.tp > 1:
        raise ValueError(
            f"tp must be 1 with compression, not {plan.tp}: tensor-parallel ranks would lose different digits of the "
            "parameters that they share"
        )
    if plan.dp == 1:
        raise ValueError("dp must be at least 2 with compression, not 1: a single rank sends no gradients")
    if "gradients" not in plan.overlap:
        raise ValueError(
            "overlap must be gradients with compression, not none: the buckets of DDP call the hook"
        )
    if plan.precision == "bf16":
        raise ValueError(
            "precision must be fp32 or mixed with compression, not bf16: a residual would lose its digits"
        )
    if compression["method"] == "one-bit" and plan.optimizer == "adam":
        raise ValueError(
            "optimizer must be sgd or momentum with one-bit, not adam: all gradients of a chunk arrive with the same "
            "size, and Adam divides by the size"
        )
