"""The course's own training: the TOML file of ``python -m course_lib.train --config``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from simulator.export.asked import Asked, Export
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape


def write(asked: Asked) -> Export:
    plan, shape = asked.plan, asked.shape
    if sentence := next(plan_refusals(plan), None):
        raise ValueError(f"for course_lib {sentence}")
    model = _model(shape)
    own = {"kv heads": shape.kv_heads == shape.heads, "MLP's width": _width(shape) == shape.ffn}
    other = [name for name, same in own.items() if not same] + ["vocabulary"]
    asked.note(f"The model has these sizes, but for its {', '.join(other)}: course_lib.train has its own.")
    asked.note("python -m course_lib.train --config FILE starts all ranks, and under torchrun joins them.")
    tables = {
        "model": model,
        "plan": _plan(plan),
        "training": {"global_batch": plan.global_batch, "steps": 20},
    }
    lines = [f"world = {plan.ranks}"]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return Export("\n".join(lines) + "\n", asked.notes)


def plan_refusals(p: Plan) -> Iterator[str]:
    """Every reason for which ``course_lib`` does not run a plan, whatever the model is."""
    if p.ep > 1 and p.zero == 3 and p.shard < p.dp * p.cp:
        yield f"shard must be the {p.dp * p.cp} data-parallel ranks with ep {p.ep}, not {p.shard}: experts have fewer"
    if p.ep > 1 and p.node_limit:
        yield f"node_limit must be left out with ep, not {p.node_limit}: it is priced, but not run yet"
    if p.zero in (2, 3) and p.pp > 1:
        yield (
            f"zero must be 0 or 1 with pp {p.pp}, not {p.zero}: gradients are kept whole until a pipeline's last "
            "microbatch, and parameters would be gathered for each of them"
        )
    if p.zero in (1, 2) and p.shard < p.dp * p.cp:
        yield (
            f"shard must be the {p.dp * p.cp} data-parallel ranks with zero {p.zero}, not {p.shard}: hybrid sharding "
            "is run with zero 3"
        )
    if p.offload == "optimizer":
        yield "offload must be none, or parameters with zero 3, not optimizer"
    if p.optimizer == "muon" and p.tp > 1:
        yield f"tp must be 1 with the optimizer muon, not {p.tp}: it turns whole matrices, and a rank has parts"
    if p.precision == "fp8" and p.sequence_parallel:
        yield (
            "sequence_parallel must be no with precision fp8, so tp must be 1 for a model with experts: what is "
            "gathered for a product is in 16 bits yet"
        )
    if p.precision == "bf16" and p.gradients == "fp32":
        yield "gradients must be same with precision bf16, not fp32: PyTorch keeps them as the parameters"
    if others := [traffic for traffic in p.overlap if traffic not in ("gradients", "experts")]:
        yield f"overlap must be none, gradients or experts, not {', '.join(others)}: that is priced, but not run yet"
    if "experts" in p.overlap:
        alone = p.tp * p.cp == 1 and p.recompute == "none"
        if p.ep == 1 or p.schedule != "dualpipe-v" or not alone:
            yield (
                "overlap of experts needs ep, the schedule dualpipe-v, tp and cp of 1 and recompute none: a forward "
                "and a backward that run at once would share process groups, or the state of random numbers"
            )


def _model(shape: ModelShape) -> dict[str, Any]:
    if shape.experts > 1 or shape.kv_rank:
        raise ValueError("for course_lib a model must have neither experts nor a kv rank")
    if shape.decoder_layers not in (0, shape.layers // 2):
        raise ValueError("for course_lib an encoder must have as many layers as the decoder")
    name = "bart" if shape.decoder_layers else "llama" if shape.activation == "swiglu" else "gpt"
    sizes = {"hidden": shape.hidden, "heads": shape.heads, "sequence": shape.sequence}
    return {"name": name, "layers": shape.layers - shape.decoder_layers, **sizes}


def _width(shape: ModelShape) -> int:
    """Of the MLP that ``course_lib.train`` makes."""
    if shape.activation == "swiglu":
        return 8 * shape.hidden // 3 // shape.heads * shape.heads
    return 4 * shape.hidden


def _plan(plan: Plan) -> dict[str, Any]:
    """What is not by default. Attention is left to the device; precision would be, too, and must not."""
    left = {"microbatches", "attention", "precision"} | (
        {"shard"} if plan.shard == plan.dp * plan.cp else set()
    )
    names = [field.name for field in fields(Plan) if field.name not in left]
    table = {name: getattr(plan, name) for name in names if getattr(plan, name) != getattr(Plan(), name)}
    return table | {"precision": plan.precision}
