"""DeepSpeed: its JSON file; models and their pipelines are code there."""

from __future__ import annotations

import json
from typing import Any

from simulator.export.asked import Asked, Export

PLAIN: dict[str, Any] = {"lr": 1e-4}
OPTIMIZERS = {
    "adam": {"type": "AdamW", "params": PLAIN},
    "momentum": {"type": "SGD", "params": PLAIN | {"momentum": 0.9}},
    "sgd": {"type": "SGD", "params": PLAIN},
}


def write(asked: Asked) -> Export:
    plan = asked.plan
    asked.only("pp", 1, because="a pipeline is a PipelineModule in your code, not in the file")
    asked.only("ep", 1, because="experts are MoE layers in your code, not in the file")
    asked.only(
        "precision", "mixed", "fp32", because="without master weights or in 8 bits it trains in other ways"
    )
    asked.only("optimizer", *OPTIMIZERS, because="its Muon is chosen by attributes of your parameters")
    asked.whole_copies("it has no hybrid sharding of all states")
    if plan.zero == 3 and plan.tp > 1:
        raise ValueError(
            "for deepspeed zero must be 0, 1 or 2 with tp, not 3: its tensor parallelism refuses it"
        )
    if plan.cp > 1:
        asked.only("context", "all-to-all", because="its sequence parallelism is Ulysses")
    if plan.offload == "optimizer" and plan.zero == 0:
        raise ValueError("for deepspeed zero must be 1, 2 or 3 with offload of the optimizer, not 0")
    file: dict[str, Any] = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.microbatches,
        "gradient_clipping": 1.0,
        "optimizer": OPTIMIZERS[plan.optimizer],
        "bf16": {"enabled": plan.precision == "mixed"},
        "zero_optimization": _zero(asked),
    }
    if plan.gradients == "fp32" and plan.precision == "mixed":
        file |= {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}
    if plan.tp > 1:
        file["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.cp > 1:
        file["sequence_parallel_size"] = plan.cp
    asked.note("Put your learning rate in place of 1e-4, and pass no optimizer to deepspeed.initialize.")
    asked.note(
        "Layers are recomputed if the code says so: model.gradient_checkpointing_enable().",
        plan.recompute == "full",
    )
    asked.only("recompute", "none", "full", because="what a layer keeps is your code's matter")
    nodes, used = asked.nodes
    where = f"--num_nodes {nodes} --num_gpus {used}"
    asked.note(f"deepspeed {where} train.py --deepspeed --deepspeed_config FILE")
    return Export(json.dumps(file, indent=2) + "\n", asked.notes)


def _zero(asked: Asked) -> dict[str, Any]:
    plan = asked.plan
    zero: dict[str, Any] = {"stage": plan.zero, "overlap_comm": "gradients" in plan.overlap}
    moved = {"device": "cpu", "pin_memory": True}
    if plan.offload != "none":
        zero["offload_optimizer"] = moved
    if plan.offload == "parameters":
        zero["offload_param"] = moved
    return zero
