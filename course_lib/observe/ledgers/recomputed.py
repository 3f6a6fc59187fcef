"""What recomputation will keep and bring back in a given model: the simulator's input, found by tracing."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from torch import nn

from course_lib.observe.ledgers.saved import SavedTensor, saved_tensors
from course_lib.one_device.recompute import apply_recompute
from simulator.predict.recomputation import Segment


def recomputed_segments(model: nn.Module, what: str | Iterable[str] | None, *inputs: Any) -> list[Segment]:
    """The parts of ``model(*inputs)`` in the order in which they save, for ``simulator.predict.recomputation``.

    A part is a submodule that ``apply_recompute(model, what)`` would recompute, or any other that saves
    something. Its work is 1 for each submodule in it that saves. Both forwards are traced on fake tensors: nothing is
    computed, and the model stays as it is.

    Args:
        what: as for ``apply_recompute``; None: nothing is recomputed.
    """
    plain = saved_tensors(model, *inputs)
    submodules = _by_part(plain, [])
    if what is None:
        return [Segment(size) for size in submodules.values()]
    recomputed = copy.deepcopy(model)
    regions = apply_recompute(recomputed, what)
    before = _by_part(plain, regions)
    after = _by_part(saved_tensors(recomputed, *inputs), regions)
    segments = []
    for part, size in before.items():
        kept = after.get(part, 0)
        inner = tuple(size for name, size in submodules.items() if _inside(name, part))
        if part in regions:
            segments.append(Segment(kept, size - kept, len(inner), len(inner), inner))
        else:
            segments.append(Segment(kept, size - kept))
    return segments


def _by_part(saved: Iterable[SavedTensor], regions: list[str]) -> dict[str, int]:
    total: dict[str, int] = {}
    for tensor in saved:
        part = next((region for region in regions if _inside(tensor.saved_in, region)), tensor.saved_in)
        total[part] = total.get(part, 0) + tensor.bytes
    return total


def _inside(name: str, region: str) -> bool:
    return f"{name}.".startswith(f"{region}.")
