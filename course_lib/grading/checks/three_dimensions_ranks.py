"""What the checks of chapter 12 run on the ranks: an answer with this rank's part of the gradients, and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from course_lib.grading.checks.three_dimensions_faulty import Batch, flat, own_gradients, process_groups
from course_lib.grading.checks.three_dimensions_mistakes import CUT, TIED, Stages, Whole
from course_lib.observe.ledgers.traffic import record_traffic

ON_CPU = {"backend": "gloo"}
ROWS, WIDTH = 12, 6  # of the matrices: 12 rows can be cut by 2 and by 3


def whole_gradients(stages: int, kind: Whole, seed: int) -> Stages:
    """For each stage the gradients of its parameters, whole; matrices are cut along their rows."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return (kind.size * torch.randn(shape, generator=generator)).to(kind.dtype)

    embedding, found = drawn(2 * ROWS, WIDTH), []
    for stage in range(stages):
        own = {"norm": drawn(WIDTH), "up": drawn(ROWS, WIDTH), "bias": drawn(WIDTH), "down": drawn(ROWS, 2)}
        if stage in (0, stages - 1):
            own["embedding"] = embedding
        found.append({} if stage == kind.empty else own)
    return found


def measures_norm(mesh: DeviceMesh, answer: Callable[..., Any], kind: Whole, seed: int) -> dict[str, Any]:
    """The answer's norm of this rank's gradients, and what it sent."""
    whole = whole_gradients(mesh["pp"].size(), kind, seed)[mesh["pp"].get_local_rank()]
    tp = mesh["tp"]
    own = {
        name: (g.chunk(tp.size())[tp.get_local_rank()] if name in CUT else g).clone()
        for name, g in whole.items()
    }
    before = {name: gradient.clone() for name, gradient in own.items()}
    with record_traffic() as log:
        norm = answer(own, set(CUT), set(TIED), mesh)
    kept = own.keys() == before.keys() and all(torch.equal(own[name], g) for name, g in before.items())
    norm = float(norm) if isinstance(norm, Tensor) and norm.numel() == 1 else norm
    return {
        "norm": norm,
        "kept": kept,
        "held": sum(gradient.nbytes for gradient in before.values()),
        "calls": log.traffic.calls,
        "payload": sum(row.payload for row in log.traffic.rows),
    }


def completes(mesh: DeviceMesh, answer: Callable[..., Any], batch: Batch, seed: int) -> dict[str, Any]:
    """This rank's gradients after the answer's sums, joined by kind, and how many collectives they took."""
    groups = process_groups(mesh)
    gradients, kinds, count = own_gradients(mesh, batch, seed)
    names = list(gradients)
    with record_traffic() as log:
        answer(gradients, kinds, count, groups)
    missing = [name for name in names if name not in gradients]
    if missing:
        raise ValueError(f"the gradient of {missing[0]} is gone from `gradients`")
    return {"gradients": flat(gradients, kinds), "calls": log.traffic.calls}
