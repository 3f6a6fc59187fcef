"""torchtitan (0.3): a function of its registry describes the model, and flags say how it is spread."""

from __future__ import annotations

from typing import Any

from simulator.export.asked import Asked, Export
from simulator.inputs.traced import Traces

MODELS = {
    "llama-3-8b": ("llama3", "llama3_8b"),
    "llama-3-70b": ("llama3", "llama3_70b"),
    "llama-3-405b": ("llama3", "llama3_405b"),
    "qwen3-30b-a3b": ("qwen3", "qwen3_30b_a3b"),
    "deepseek-v3": ("deepseek_v3", "deepseek_v3_671b"),
    "gpt-oss-120b": ("gpt_oss", "gpt_oss_120b"),
}
SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}


def write(asked: Asked) -> Export:
    plan, shape = asked.plan, asked.shape
    asked.only("zero", 0, 2, 3, because="FSDP2 shards gradients with the optimizer states")
    asked.only("dispatch", "same", because="8 bits are a choice of the model's function")
    asked.only("optimizer", "adam", because="its flags know AdamW")
    asked.only("offload", "none", "parameters", because="it offloads all states or none")
    asked.only("precision", "mixed", "bf16", "fp32", because="8 bits are a converter in the model's function")
    asked.only(
        "recompute", "none", "full", because="its selective recomputation keeps products, not layers' inputs"
    )
    asked.only("context", "ring", "all-gather", because="its context parallelism does not deal out heads")
    asked.only("ulysses", 1, because="its context parallelism does not deal out heads")
    if plan.pp > 1:
        # zb-h1 would be PyTorch's InterleavedZeroBubble with a stage a rank; torchtitan wants two of it or more
        asked.only(
            "schedule", *SCHEDULES, because="it takes no other of PyTorch's with so many stages a rank"
        )
        if len(set(plan.layers_by_stage(shape))) > 1:
            raise ValueError(f"for torchtitan {plan.stages} stages must divide the {shape.layers} layers")
    if plan.zero == 0 and (plan.cp > 1 or plan.ep > 1):
        raise ValueError(
            "for torchtitan zero must be 2 or 3 with cp or ep, not 0: FSDP shards over these ranks"
        )
    if plan.zero and plan.shard % plan.cp:
        raise ValueError(f"for torchtitan shard must be a multiple of cp {plan.cp}, not {plan.shard}")
    module, config = MODELS.get(asked.model or "", ("MODULE", "CONFIG"))
    asked.note(
        "Write a function that describes the model, and put its module and name for MODULE and CONFIG.",
        asked.model not in MODELS,
    )
    asked.note(
        "torchtitan keeps and sends gradients in fp32: price it with --gradients fp32.",
        plan.precision == "mixed" and plan.gradients == "same",
    )
    asked.note("Its attention is fused: price it with --attention flash.", plan.attention == "unfused")
    flags: dict[str, Any] = {
        "module": module,
        "config": config,
        "training.seq-len": None if isinstance(shape, Traces) else shape.sequence,
        "training.local-batch-size": plan.micro_batch * (plan.microbatches if plan.pp > 1 else 1),
        "training.global-batch-size": plan.global_batch,
        "training.dtype": "bfloat16" if plan.precision == "bf16" else "float32",
        "training.mixed-precision-param": "float32" if plan.precision == "fp32" else "bfloat16",
        "training.enable-cpu-offload": plan.offload == "parameters" or None,
        "training.disable-cuda-graphs": plan.pp * plan.ep > 1 or None,  # it refuses them there
    }
    flags |= {f"parallelism.{name}": value for name, value in _parallelism(asked).items()}
    recomputed = "full" if plan.recompute == "full" else "none"
    return asked.command("-m torchtitan.train", flags, f"activation-checkpoint:{recomputed}")


def _parallelism(asked: Asked) -> dict[str, Any]:
    plan = asked.plan
    sharded = {
        "data-parallel-replicate-degree": asked.copies if plan.zero else plan.dp,
        "data-parallel-shard-degree": plan.shard // plan.cp if plan.zero else 1,
        "fsdp-reshard-after-forward": {2: "never", 3: "always"}.get(plan.zero),
    }
    parts = {
        "tensor-parallel-degree": plan.tp,
        "no-enable-sequence-parallel": (plan.tp > 1 and not plan.sequence_parallel) or None,
        "context-parallel-degree": plan.cp,
        "context-parallel-load-balancer": None if plan.zigzag else "None",
        "expert-parallel-degree": plan.ep,
        "pipeline-parallel-degree": plan.pp,
    }
    if plan.pp == 1:
        return sharded | parts
    return (
        sharded
        | parts
        | {
            "pipeline-parallel-schedule": SCHEDULES[plan.schedule],
            "pipeline-parallel-microbatch-size": plan.micro_batch,
            "pipeline-parallel-layers-per-stage": asked.shape.layers // plan.stages,
            "pipeline-parallel-first-stage-less-layers": 0,
            "pipeline-parallel-last-stage-less-layers": 0,
        }
    )
