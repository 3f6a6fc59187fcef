"""Every right step, and every fault with the thread that tells of it and what is to be said about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from course_lib.diagnose.run import Diagnosis
from seeded_steps import data_parallel as dp
from seeded_steps import tensor_parallel as tp
from seeded_steps import tokens as tk

Step = Callable[..., Any]


@dataclass(frozen=True)
class Right:
    name: str
    step: Step
    ranks: int = 2


@dataclass(frozen=True)
class Fault:
    """A seeded fault.

    Attributes:
        thread: where someone met it, or one of the same mechanism.
        expected: ``(kind, verdict, part of a name)`` of the first cause, or ``hang``.
    """

    step: Step
    fault: str
    thread: str
    expected: tuple[str, str, str]
    ranks: int = 2

    @property
    def name(self) -> str:
        return f"{self.step.__name__}: {self.fault}"


def seeded(step: Step, fault: str) -> Callable[[int, int], Any]:
    """The step with a fault on several ranks, and without on one."""
    return partial(_run, step, fault)


def _run(step: Step, fault: str, rank: int, ranks: int) -> Any:
    return step(rank, ranks, fault if ranks > 1 else "")


RIGHT = [
    Right("all-reduce by hand, two steps", dp.by_hand),
    Right("all-reduce by hand, 4 ranks", dp.by_hand, 4),
    Right("one step late, without the lateness", dp.stale),
    Right("unequal tokens, divided by all", dp.tokens_count, 4),
    Right("DistributedDataParallel, clipped", dp.ddp),
    Right("DistributedDataParallel, two microbatches", dp.accumulated),
    Right("FSDP2, clipped", dp.fsdp, 4),
    Right("ZeRO-1 by hand, owners", dp.zero_owner, 4),
    Right("ZeRO-2 by hand, flat shards", dp.zero_flat, 4),
    Right("tied embeddings", dp.tied),
    Right("batch statistics of all ranks", dp.batch_norm),
    Right("Megatron's f and g", tp.megatron),
    Right("Megatron's f and g, 4 ranks", tp.megatron, 4),
    Right("Megatron's sequence parallelism", tp.sequence),
    Right("vocabulary parallel", tp.vocabulary),
    Right("DTensor, sequence parallel styles", tp.dtensor, 4),
    Right("data x tensor parallel", tp.dp_tp, 4),
    Right("context parallel, keys gathered", tk.context),
    Right("context parallel, zigzag", tk.zigzag),
    Right("Ulysses", tk.ulysses),
    Right("expert parallel", tk.experts),
    Right("pipeline, send and receive", tk.pipeline),
    Right("frozen weights and an adapter", tk.lora),
]

GH = "https://github.com/"
MEGATRON, TORCH, TITAN = GH + "NVIDIA/Megatron-LM/", GH + "pytorch/pytorch/", GH + "pytorch/torchtitan/"

FAULTS = [
    # initial values and the batch
    Fault(dp.by_hand, "seed", GH + "facebookresearch/detr/issues/544", ("weight", "unlike", "embed")),
    Fault(dp.by_hand, "one weight", GH + "allenai/OLMo-core/pull/319", ("weight", "unlike", "norm2")),
    Fault(dp.by_hand, "same part", GH + "mehta-lab/VisCy/pull/408", ("output", "missing", "embed")),
    Fault(dp.by_hand, "repeated row", TORCH + "issues/25162", ("output", "repeated", "embed")),
    # the reduction of gradients
    Fault(dp.by_hand, "none", GH + "ByteDance-Seed/VeOmni/pull/1115", ("gradient", "average", "")),
    Fault(dp.by_hand, "no head", TITAN + "issues/4154", ("gradient", "average", "head")),
    Fault(dp.by_hand, "sum", MEGATRON + "issues/906", ("gradient", "factor", "")),
    Fault(dp.by_hand, "twice", GH + "deepspeedai/DeepSpeed/issues/5259", ("gradient", "factor", "")),
    Fault(dp.by_hand, "own scale", MEGATRON + "issues/442", ("gradient", "by rank", "")),
    Fault(dp.by_hand, "wrong group", MEGATRON + "issues/1628", ("gradient", "average", ""), 4),
    Fault(dp.by_hand, "kept", MEGATRON + "issues/7452", ("gradient", "kept", "")),
    Fault(dp.stale, "late", TORCH + "issues/27806", ("gradient", "stale", "")),
    Fault(dp.by_hand, "rank 0 only", GH + "intel/e2eAIOK/issues/197", ("after", "zero", "")),
    Fault(dp.by_hand, "own rate", GH + "FlagOpen/FlagScale/issues/411", ("after", "by rank", "")),
    Fault(dp.tokens_count, "mean of means", GH + "huggingface/transformers/issues/34191", ("flowing", "weights", "")),
    Fault(dp.tokens_count, "own count", TITAN + "pull/2206", ("flowing", "weights", ""), 4),
    Fault(dp.tokens_count, "no factor", GH + "ByteDance-Seed/VeOmni/pull/338", ("gradient", "factor", "")),
    Fault(dp.ddp, "unwrapped", GH + "huggingface/trl/issues/7245", ("unclipped", "average", "")),
    Fault(dp.ddp, "replaced", TORCH + "issues/12603", ("unclipped", "average", "head")),
    Fault(dp.ddp, "detached", GH + "NVIDIA-NeMo/Automodel/issues/1412", ("gradient", "zero", "embed")),
    Fault(dp.ddp, "clipped before", GH + "meta-pytorch/torchtune/pull/2641", ("unclipped", "average", "")),
    Fault(dp.accumulated, "not divided", GH + "verl-project/verl/pull/3332", ("gradient", "factor", "")),
    Fault(dp.accumulated, "never synchronised", GH + "modelscope/FunASR/pull/3472", ("gradient", "average", "")),
    Fault(dp.accumulated, "last only", GH + "karpathy/build-nanogpt/pull/30", ("gradient", "unlike", "")),
    Fault(dp.fsdp, "local norm", TORCH + "issues/170862", ("gradient", "by rank", "")),
    Fault(dp.fsdp, "root", TITAN + "issues/766", ("gradient", "average", "head")),
    Fault(dp.fsdp, "double clip", GH + "mindspore-ai/hyper-parallel/issues/526", ("gradient", "factor", "")),
    Fault(dp.zero_owner, "wrong owner", GH + "InfiniTensor/InfiniTrain/pull/213", ("gradient", "unlike", ""), 4),
    Fault(dp.zero_owner, "not sent", GH + "InfiniTensor/InfiniTrain/pull/217", ("after", "zero", "")),
    Fault(dp.zero_owner, "last not sent", GH + "InfiniTensor/InfiniTrain/pull/217", ("after", "zero", "head")),
    Fault(dp.zero_owner, "sum", GH + "deepspeedai/DeepSpeed/issues/5259", ("gradient", "factor", "")),
    Fault(dp.zero_flat, "order", MEGATRON + "pull/6500", ("after", "unlike", "")),
    Fault(dp.zero_flat, "neighbour", MEGATRON + "issues/7452", ("after", "unlike", "")),
    Fault(dp.zero_flat, "sum", GH + "facebookresearch/fairseq/issues/494", ("after", "factor", "")),
    Fault(dp.tied, "twice", MEGATRON + "issues/299", ("gradient", "factor", "embed")),
    Fault(dp.batch_norm, "own statistics", MEGATRON + "issues/7452", ("output", "mixes", "1")),
    # tensor and sequence parallelism
    Fault(tp.megatron, "no f", GH + "NovaSky-AI/SkyRL/pull/1886", ("flowing", "sum", "blocks.1.norm2")),
    Fault(tp.megatron, "no g", GH + "Wenyueh/MinivLLM/issues/13", ("output", "sum used", "blocks.1.mlp.down")),
    Fault(tp.megatron, "bias", GH + "huggingface/text-generation-inference/issues/1036",
          ("output", "bias", "blocks.1.mlp")),
    Fault(tp.megatron, "g twice", TORCH + "issues/160285", ("output", "factor", "blocks.1.mlp")),
    Fault(tp.megatron, "g averages", MEGATRON + "issues/5956", ("output", "factor", "blocks.1.mlp")),
    Fault(tp.megatron, "g sums backward", TORCH + "issues/58005", ("gradient", "factor", "blocks.1.mlp")),
    Fault(tp.megatron, "no gradient", GH + "huggingface/accelerate/issues/76", ("gradient", "zero", "blocks.1.mlp")),
    Fault(tp.megatron, "packed", MEGATRON + "issues/1989", ("output", "mixes", "blocks.1.attention.mix")),
    Fault(tp.megatron, "same shard", GH + "modelscope/ms-swift/pull/7944", ("weight", "missing", "blocks.1.mlp.up")),
    Fault(tp.megatron, "other rows", GH + "sgl-project/sglang/pull/34529", ("output", "order", "blocks.1.mlp.down")),
    Fault(tp.megatron, "local norm", TORCH + "issues/72548", ("gradient", "by rank", "")),
    Fault(tp.megatron, "counted twice", MEGATRON + "issues/5916", ("gradient", "factor", "")),
    Fault(tp.sequence, "no norm sum", MEGATRON + "issues/443", ("gradient", "sum", "norm")),
    Fault(tp.sequence, "no final norm", MEGATRON + "issues/1446", ("gradient", "sum", "norm.weight")),
    Fault(tp.sequence, "no bias sum", MEGATRON + "pull/236", ("gradient", "sum", "mlp.down.bias")),
    Fault(tp.sequence, "gather without sum", GH + "pytorch/xla/issues/5784", ("flowing", "unlike", "blocks.1.norm2")),
    Fault(tp.sequence, "places", MEGATRON + "issues/560", ("output", "missing", "place")),
    Fault(tp.vocabulary, "no f", GH + "NovaSky-AI/SkyRL/pull/1886", ("flowing", "sum", "norm")),
    Fault(tp.vocabulary, "not masked", MEGATRON + "issues/7452", ("output", "inside", "embed")),
    Fault(tp.vocabulary, "own softmax", MEGATRON + "issues/7452", ("flowing", "unlike", "the model")),
    Fault(tp.dtensor, "plain norm", TITAN + "issues/4154", ("gradient", "sum", "")),
    Fault(tp.dp_tp, "wrong group", MEGATRON + "issues/1628", ("gradient", "average", ""), 4),
    Fault(tp.dp_tp, "no data axis", GH + "huggingface/picotron/pull/5", ("gradient", "average", ""), 4),
    Fault(tp.dp_tp, "world", MEGATRON + "issues/442", ("gradient", "unlike", ""), 4),
    Fault(tp.dp_tp, "wrong sum group", MEGATRON + "issues/1628", ("output", "sum used", "blocks.1.mlp.down"), 4),
    # context, experts, stages
    Fault(tk.context, "own keys", MEGATRON + "issues/7452", ("output", "given", "blocks.0.attention.out")),
    Fault(tk.context, "places", MEGATRON + "issues/560", ("output", "missing", "place")),
    Fault(tk.context, "mask", GH + "huggingface/trl/issues/6843", ("output", "given", "blocks.0.attention.out")),
    Fault(tk.context, "all", GH + "huggingface/trl/issues/6843", ("output", "given", "blocks.0.attention.out")),
    Fault(tk.context, "shifted", GH + "huggingface/transformers/pull/36607", ("flowing", "unlike", "the model")),
    Fault(tk.context, "times ranks", MEGATRON + "issues/673", ("gradient", "factor", "")),
    Fault(tk.context, "averaged too", GH + "ByteDance-Seed/VeOmni/pull/1079", ("gradient", "factor", "")),
    Fault(tk.context, "no sum of keys", TORCH + "issues/120386", ("flowing", "unlike", "blocks.0.attention.qkv")),
    Fault(tk.zigzag, "places", MEGATRON + "pull/5243", ("output", "missing", "place")),
    Fault(tk.ulysses, "layout", GH + "deepspeedai/DeepSpeed/pull/8317", ("output", "given", "blocks.1.attention.out")),
    Fault(tk.ulysses, "heads", GH + "ByteDance-Seed/VeOmni/pull/419", ("output", "given", "blocks.1.attention.out")),
    Fault(tk.ulysses, "group", GH + "ByteDance-Seed/VeOmni/pull/1115", ("gradient", "sum", "")),
    Fault(tk.experts, "times ranks", MEGATRON + "issues/5956", ("gradient", "factor", "experts")),
    Fault(tk.experts, "scores", TITAN + "pull/2416", ("flowing", "sum", "gate")),
    Fault(tk.experts, "no f", GH + "huggingface/transformers/pull/48205", ("flowing", "sum", "gate")),
    Fault(tk.experts, "capacity", MEGATRON + "issues/7452", ("output", "missing", "1.experts")),
    Fault(tk.pipeline, "not divided", GH + "meta-pytorch/torchtune/pull/1917", ("gradient", "factor", "")),
    Fault(tk.pipeline, "halved", GH + "OpenNMT/OpenNMT-py/issues/2209", ("gradient", "factor", "blocks.0")),
    Fault(tk.pipeline, "transposed", MEGATRON + "issues/7452", ("flowing", "unlike", "blocks.0")),
    Fault(tk.lora, "adapter left out", GH + "NVIDIA-NeMo/Automodel/issues/3530", ("gradient", "average", "1.b")),
    Fault(tk.lora, "thawed", GH + "NVIDIA-NeMo/Automodel/issues/3530", ("after", "thawed", "2.")),
    Fault(tk.hangs, "one left out", GH + "dylanyunlon/Neuron_SP/issues/589", ("hang", "", "")),
]  # fmt: skip


def said(row: Fault, result: Diagnosis) -> str:
    """What is wrong with what was said of a fault: nothing, or what was said instead."""
    kind, verdict, name = row.expected
    if result.failed or kind == "hang":
        return "" if result.failed and kind == "hang" else f"failed: {result.sentences[:1]}"
    got = [(c.kind, c.verdict, c.names[0]) for c in result.causes]
    right = len(got) == 1 and got[0][:2] == (kind, verdict) and name in got[0][2]
    return "" if right else f"said {got or 'nothing'}, not {row.expected}"
