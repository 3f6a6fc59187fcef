"""Megatron-LM: one command whose flags describe the model, the plan and the training."""

from __future__ import annotations

from typing import Any

from simulator.export.asked import Asked, Export
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape

CONTEXT = {"ring": "p2p", "all-gather": "all_gather"}
RECIPES = {"tensor": "tensorwise", "delayed": "delayed", "block": "blockwise", "mx": "mxfp8"}
SHARDED = {2: "optim_grads", 3: "optim_grads_params"}


def write(asked: Asked) -> Export:
    plan, shape = asked.plan, asked.shape
    asked.only("precision", "mixed", "fp32", "fp8", because="its 16-bit training keeps fp32 master weights")
    asked.only("offload", "none", because="what it moves to the host, it moves in another way")
    asked.only("schedule", "1f1b", "interleaved-1f1b", because="it has no other pipeline")
    asked.only("dispatch", "same", because="tokens travel as the layers compute")
    asked.only("node_limit", None, because="its router is limited by groups of experts, not by nodes")
    asked.only("zigzag", True, because="its context parallelism has no other order")
    if plan.ulysses > 1:
        asked.only("context", "ring", "all-to-all", because="between ranks that deal out heads it has a ring")
    if shape.decoder_layers:
        raise ValueError("for megatron decoder_layers must be 0: its flags describe models of one stack")
    if plan.zero > 1:
        asked.whole_copies("its FSDP shards over all data-parallel ranks")
    flags = _model(shape) | {
        "micro-batch-size": plan.micro_batch,
        "global-batch-size": plan.global_batch,
        "tensor-model-parallel-size": plan.tp,
        "sequence-parallel": plan.sequence_parallel or None,
        "context-parallel-size": plan.cp,
        **(_context(plan) if plan.cp > 1 else {}),
        "expert-model-parallel-size": plan.ep,
        "expert-tensor-parallel-size": 1 if plan.tp > 1 and shape.experts > 1 else None,
        **_pipeline(asked),
        **_states(asked),
        "recompute-granularity": None if plan.recompute == "none" else plan.recompute,
        "recompute-method": "uniform" if plan.recompute == "full" else None,
        "recompute-num-layers": 1 if plan.recompute == "full" else None,
        "attention-backend": plan.attention,
        "cross-entropy-loss-fusion": plan.loss == "fused" or None,
    }
    asked.note(
        f"Attention has a window of {shape.window} tokens: see --window-size.", shape.window is not None
    )
    asked.note("Add your data and tokenizer in place of the last line.")
    return asked.command("pretrain_gpt.py", flags, "--mock-data --tokenizer-type NullTokenizer")


def _context(plan: Plan) -> dict[str, Any]:
    if plan.head_ranks in (1, plan.cp):
        return {"cp-comm-type": "a2a" if plan.head_ranks > 1 else CONTEXT[plan.context]}
    sizes = f"{plan.head_ranks} {plan.cp // plan.head_ranks}"
    return {"cp-comm-type": "a2a+p2p", "hierarchical-context-parallel-sizes": sizes}


def _model(s: ModelShape) -> dict[str, Any]:
    flags: dict[str, Any] = {
        "num-layers": s.layers,
        "hidden-size": s.hidden,
        "ffn-hidden-size": s.ffn,
        "num-attention-heads": s.heads,
        "kv-channels": None if s.kv_rank else s.head_size,
        "seq-length": s.sequence,
        "max-position-embeddings": s.sequence,
        "vocab-size": s.vocab,
        "position-embedding-type": "learned_absolute" if s.learned_positions else "rope",
        "swiglu": s.activation == "swiglu" or None,
        "normalization": "LayerNorm" if s.norm_vectors == 2 else "RMSNorm",
        "disable-bias-linear": not s.biases or None,
        "untie-embeddings-and-output-weights": not s.tied or None,
        "mtp-num-layers": s.next_tokens or None,
        "attention-dropout": 0.1 if s.dropout else 0.0,
        "hidden-dropout": 0.1 if s.dropout else 0.0,
    }
    if s.kv_heads != s.heads:
        flags |= {"group-query-attention": True, "num-query-groups": s.kv_heads}
    if s.kv_rank:
        flags |= {
            "multi-latent-attention": True,
            "q-lora-rank": s.q_rank,
            "kv-lora-rank": s.kv_rank,
            "qk-head-dim": s.head_size,
            "qk-pos-emb-head-dim": s.rope_dim,
            "v-head-dim": s.value_size,
        }
    if s.experts > 1:
        flags |= {
            "num-experts": s.experts,
            "moe-router-topk": s.experts_per_token,
            "moe-ffn-hidden-size": s.mlp_width,
            "moe-grouped-gemm": True,
            "moe-token-dispatcher-type": "alltoall",
            "moe-shared-expert-intermediate-size": s.shared_experts * s.mlp_width or None,
            "moe-layer-freq": f'"[0]*{s.dense_layers}+[1]*{s.layers - s.dense_layers}"',
        }
    return flags


def _pipeline(asked: Asked) -> dict[str, Any]:
    plan = asked.plan
    flags: dict[str, Any] = {"pipeline-model-parallel-size": plan.pp}
    layers = plan.layers_by_stage(asked.shape)
    if plan.pp > 1 and plan.chunks > 1 and plan.microbatches % plan.pp:
        raise ValueError(
            f"for megatron microbatches must be a multiple of pp {plan.pp}, not {plan.microbatches}, with chunks"
        )
    if len(set(layers)) > 1:
        stages = "|".join(f"t*{n}" for n in layers)
        return flags | {"pipeline-model-parallel-layout": f'"E{stages}L"'}
    if plan.chunks > 1:
        flags["num-virtual-stages-per-pipeline-rank"] = plan.chunks
        flags["no-overlap-p2p-communication"] = "pipeline" not in plan.overlap or None
    return flags


def _states(asked: Asked) -> dict[str, Any]:
    """How parameters, gradients and optimizer states are kept and sent."""
    plan = asked.plan
    asked.only("recompute", "none", "selective", "full", because="it offloads single modules")
    asked.only("optimizer", "adam", "momentum", "sgd", because="its Muon is sharded in ways of its own")
    sixteen = plan.precision != "fp32"
    return {
        "bf16": sixteen or None,
        "fp8-format": "hybrid" if plan.precision == "fp8" else None,
        "fp8-recipe": RECIPES[plan.scaling] if plan.precision == "fp8" else None,
        "grad-reduce-in-bf16": (sixteen and plan.gradients == "same") or None,
        "optimizer": "adam" if plan.optimizer == "adam" else "sgd",
        "sgd-momentum": {"momentum": 0.9, "sgd": 0.0}.get(plan.optimizer),
        "use-distributed-optimizer": plan.zero > 0 or None,
        "num-distributed-optimizer-instances": asked.copies if plan.zero == 1 and asked.copies > 1 else None,
        "use-megatron-fsdp": plan.zero > 1 or None,
        "data-parallel-sharding-strategy": SHARDED.get(plan.zero),
        "overlap-grad-reduce": "gradients" in plan.overlap or None,
        "overlap-param-gather": (plan.zero > 0 and ("parameters" in plan.overlap or plan.zero == 3)) or None,
        "overlap-moe-expert-parallel-comm": (plan.ep > 1 and "experts" in plan.overlap) or None,
        "tp-comm-overlap": (plan.tp > 1 and "tensor" in plan.overlap) or None,
    }
