"""The ways to send less by name: one spelling for ``parallelize``, ``course_lib.train`` and the comparison.

Imports no torch, so that a file is checked before anything heavy is loaded. ``parallelize/comm_hooks.py`` and
``comparison/compression/methods.py`` build them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.inputs.typed import Count, Finite, Whole


@dataclass(frozen=True)
class Compression:
    """One way to send.

    Attributes:
        title: in tables and pictures.
        settings: what it takes, each with the type that it must have in a file; None: ``parallelize`` does not run
            it, since it is more than another all-reduce of gradients: it is an optimizer, or it averages weights.
    """

    title: str
    settings: Mapping[str, Any] | None = None


WARM_UP = {"warmup_steps": Whole}
SPARSE = {"density": Finite, "error_feedback": bool, **WARM_UP}
POWER_SGD = {"matrix_rank": Count, "error_feedback": bool, "warm_start": bool, "min_compression": Finite}

COMPRESSIONS = {
    "none": Compression("DDP", {}),
    "bytegrad": Compression("8 bits", WARM_UP),
    "one-bit": Compression("1 bit", WARM_UP),  # of gradients, for SGD
    "one-bit-adam": Compression("1-bit Adam"),  # of Adam's momentum
    "q-adam": Compression("QAdam, 8 bits"),
    "top-k": Compression("top-k", SPARSE),
    "random-k": Compression("random-k", SPARSE),
    "powersgd": Compression("PowerSGD", POWER_SGD | WARM_UP),
    "ring": Compression("decentralised, ring"),
    "pairs": Compression("decentralised, pairs"),
    "ring-8-bits": Compression("decentralised, ring, 8 bits"),
    "asynchronous": Compression("asynchronous"),
    "local-sgd": Compression("local SGD"),
    "diloco": Compression("DiLoCo"),
    "streaming-diloco": Compression("Streaming DiLoCo"),
}
# Those of gradients, with their settings.
HOOKED = {name: way.settings for name, way in COMPRESSIONS.items() if way.settings is not None}
