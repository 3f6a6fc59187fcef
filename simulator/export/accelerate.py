"""Hugging Face's accelerate: the YAML file of ``accelerate launch``, with FSDP2 or DDP."""

from __future__ import annotations

from typing import Any

from simulator.export.asked import Asked, Export
from simulator.inputs.traced import Traces


def write(asked: Asked) -> Export:
    plan = asked.plan
    asked.only("pp", 1, because="its file has no pipeline")
    asked.only("ep", 1, because="its file has no experts")
    asked.only("zero", 0, 2, 3, because="FSDP2 shards gradients too; for 1 take deepspeed's file")
    asked.only("precision", "mixed", "fp32", because="it keeps fp32 parameters")
    asked.only("recompute", "none", "full", because="it recomputes whole layers")
    asked.only("offload", "none", "parameters", because="FSDP offloads all states or none")
    if plan.zero == 0 and plan.tp * plan.cp > 1:
        raise ValueError(
            "for accelerate zero must be 2 or 3 with tp or cp, not 0: it composes them with FSDP"
        )
    if plan.zero and plan.shard % plan.cp:
        raise ValueError(f"for accelerate shard must be a multiple of cp {plan.cp}, not {plan.shard}")
    if plan.cp > 1:
        asked.only("zigzag", True, because="FSDP2's context parallelism balances so")
        asked.only(
            "context", "ring", "all-gather", because="FSDP2's context parallelism does not deal out heads"
        )
        asked.only("ulysses", 1, because="FSDP2's context parallelism does not deal out heads")
    nodes, used = asked.nodes
    file: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if plan.zero else "MULTI_GPU" if plan.ranks > 1 else "NO",
        "mixed_precision": "no" if plan.precision == "fp32" else "bf16",
        "num_machines": nodes,
        "num_processes": plan.ranks,
        "machine_rank": 0,
        "use_cpu": False,
        "debug": False,
    }
    if plan.zero:
        file |= {"fsdp_config": _fsdp(asked), "parallelism_config": _axes(asked)}
    asked.note(
        f"In the script: Accelerator(gradient_accumulation_steps={plan.microbatches}), and a DataLoader with "
        f"batch_size={plan.micro_batch}."
    )
    asked.note(
        f"{nodes} nodes: set machine_rank, main_process_ip and main_process_port in each ({used} devices).",
        nodes > 1,
    )
    asked.note(
        "If it is no model of transformers, name its blocks' class in fsdp_transformer_layer_cls_to_wrap.",
        isinstance(asked.shape, Traces) and plan.zero > 0,
    )
    asked.note("Layers are recomputed if the code says so.", plan.recompute == "full" and not plan.zero)
    return Export("\n".join(_yaml(file)) + "\n", asked.notes)


def _fsdp(asked: Asked) -> dict[str, Any]:
    plan = asked.plan
    return {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": plan.zero == 3,
        "fsdp_offload_params": plan.offload == "parameters",
        "fsdp_activation_checkpointing": plan.recompute == "full",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _axes(asked: Asked) -> dict[str, Any]:
    plan = asked.plan
    sizes: dict[str, Any] = {
        "dp_replicate_size": asked.copies,
        "dp_shard_size": plan.shard // plan.cp,
        "tp_size": plan.tp,
        "cp_size": plan.cp,
    }
    if plan.cp > 1:
        sizes["cp_comm_strategy"] = "alltoall" if plan.context == "ring" else "allgather"
    return {f"parallelism_config_{name}": value for name, value in sizes.items()}


def _yaml(table: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for name, value in table.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name}:", *_yaml(value, indent + "  ")]
        else:
            text = str(value).lower() if isinstance(value, bool) else f"'{value}'" if value == "no" else value
            lines.append(f"{indent}{name}: {text}")
    return lines
