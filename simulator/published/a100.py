"""Runs on A100-80GB in 16 bits, vocabulary 51,200.

The numbers of that device are one rounded compromise for the rows marked as fitted: no row has a number of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.step import step_cost
from simulator.published.row import PublishedRow

MEGATRON = "arXiv:2104.04473, table 1"
KORTHIKANTI = "arXiv:2205.05198"


def gpt(layers: int, hidden: int, heads: int, sequence: int = 2048) -> ModelShape:
    return ModelShape(layers, hidden, heads, vocab=51200, sequence=sequence)


GPT_22B, GPT_175B, GPT_530B = gpt(48, 6144, 64), gpt(96, 12288, 96), gpt(105, 20480, 128)
# The paper's own method, as its tables call it.
PRESENT: dict[str, Any] = {"sequence_parallel": True, "recompute": "selective"}
BF16_SHARDS: dict[str, Any] = {"zero": 3, "microbatches": 1, "precision": "bf16"}
WAYS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "sequence parallelism": {"sequence_parallel": True},
    "full recomputation": {"recompute": "full"},
    "selective recomputation": {"recompute": "selective"},
    "selective + sequence": PRESENT,
}


def megatron_2021() -> Iterator[PublishedRow]:
    """End to end, full recomputation; microbatch and chunks from the authors' scripts (Megatron-LM, examples/sc21).

    Teraflops count recomputation. The last row is confirmed by the 502 petaFLOP/s on 3,072 GPUs of the abstract.
    """
    #   name, layers, hidden, heads, tp, pp, dp, global batch, microbatch, chunks, TFLOP/s per GPU
    table = [
        ("1.7B", 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137),
        ("7.5B", 36, 4096, 32, 4, 1, 32, 512, 16, 1, 142),
        ("18.4B", 40, 6144, 48, 8, 1, 32, 1024, 8, 1, 135),
        ("39.1B", 48, 8192, 64, 8, 2, 32, 1536, 4, 1, 138),
        ("145.6B", 80, 12288, 96, 8, 8, 24, 2304, 2, 2, 148),
        ("529.6B", 105, 20480, 128, 8, 35, 9, 2520, 1, 3, 163),
        ("1008B", 128, 25600, 160, 8, 64, 6, 3072, 1, 1, 163),
    ]
    for name, layers, hidden, heads, tp, pp, dp, batch, micro, chunks, tflops in table:
        plan = Plan(
            dp, tp, pp, micro_batch=micro, microbatches=batch // dp // micro, chunks=chunks, recompute="full"
        )
        yield PublishedRow(MEGATRON, name, "time", "tflops_per_gpu", tflops, gpt(layers, hidden, heads), plan)


def megatron_2021_table_2() -> Iterator[PublishedRow]:
    """The same two models under ZeRO-3 without model parallelism, and under tensor and pipeline parallelism.

    A step under ZeRO-3 has one microbatch. The chunks of the pipelines are not printed: taken as 1. All twelve figures
    were compared with the copy of this table in llm-analysis (Cheng Li, 2023), examples/megatron-lm.
    """
    models = {"174.6B": gpt(96, 12288, 96), "529.6B": gpt(105, 20480, 128)}
    #   name, GPUs, microbatch, TFLOP/s per GPU, fitted
    sharded = [
        ("174.6B", 384, 4, 144, True),
        ("174.6B", 768, 2, 88, False),
        ("174.6B", 1536, 1, 44, True),
        ("529.6B", 640, 4, 138, False),
        ("529.6B", 1120, 2, 98, True),
        ("529.6B", 2240, 1, 48, False),
    ]
    for name, gpus, micro, tflops, fitted in sharded:
        plan = Plan(dp=gpus, zero=3, micro_batch=micro, microbatches=1, recompute="full")
        yield PublishedRow(
            f"{MEGATRON[:-1]}2",
            f"{name}, ZeRO-3 on {gpus}",
            "time",
            "tflops_per_gpu",
            tflops,
            models[name],
            plan,
            group="A100 ZeRO-3",
            fitted=fitted,
        )
    #   name, pipeline, global batch, GPUs, TFLOP/s per GPU
    table = [
        ("174.6B", 12, 1536, 384, 153),
        ("174.6B", 12, 1536, 768, 149),
        ("174.6B", 12, 1536, 1536, 141),
        ("529.6B", 35, 2240, 560, 171),
        ("529.6B", 35, 2240, 1120, 167),
        ("529.6B", 35, 2240, 2240, 159),
    ]
    for name, pp, batch, gpus, tflops in table:
        dp = gpus // (8 * pp)
        plan = Plan(dp, 8, pp, microbatches=batch // dp, recompute="full")
        yield PublishedRow(
            f"{MEGATRON[:-1]}2",
            f"{name}, PTD-P on {gpus}",
            "time",
            "tflops_per_gpu",
            tflops,
            models[name],
            plan,
            group="A100 more runs",
            fitted=False,
        )


def flashattention_2_2023() -> Iterator[PublishedRow]:
    """GPT-3 1.3B on 8 GPUs; attention counted whole, as here. The microbatch is not printed: taken as 4."""
    for sequence, tflops in ((2048, 196), (8192, 220)):
        shape = ModelShape(24, 2048, 16, 50257, sequence)
        plan = Plan(dp=8, micro_batch=4, microbatches=4, attention="flash")
        yield PublishedRow(
            "arXiv:2307.08691, table 1",
            f"1.3B, {sequence} tokens",
            "time",
            "model_tflops_per_gpu",
            tflops,
            shape,
            plan,
            group="A100 more runs",
            fitted=False,
        )


def korthikanti_2022() -> Iterator[PublishedRow]:
    """One layer of the 22B model, and whole steps with full recomputation and with the paper's method."""
    for (way, options), milliseconds in zip(WAYS.items(), (19.6, 19.0, 27.2, 20.9, 20.3), strict=True):
        plan = Plan(tp=8, micro_batch=4, **options)
        source = f"{KORTHIKANTI}, table 4"
        yield PublishedRow(
            source, f"22B layer, {way}", "time", "layer_seconds", milliseconds / 1e3, GPT_22B, plan
        )
    small: dict[str, Any] = {"tp": 8, "micro_batch": 4, "microbatches": 1}
    large: dict[str, Any] = {"tp": 8, "pp": 8, "microbatches": 64, "chunks": 3}
    largest: dict[str, Any] = {"tp": 8, "pp": 35, "dp": 8, "microbatches": 280, "chunks": 3}
    table = [  # the third row is the abstract's, on 2,240 GPUs
        ("22B", GPT_22B, small, "table 5", "seconds", 1.42, 1.10),
        ("175B", GPT_175B, large, "table 5", "seconds", 18.13, 13.75),
        ("530B", GPT_530B, largest, "abstract", "mfu", 0.421, 0.542),
    ]
    for name, shape, axes, where, quantity, full, present in table:
        source = f"{KORTHIKANTI}, {where}"
        recompute = Plan(**axes, recompute="full")
        yield PublishedRow(source, f"{name}, full recomputation", "time", quantity, full, shape, recompute)
        yield PublishedRow(
            source, f"{name}, present work", "time", quantity, present, shape, Plan(**axes, **PRESENT)
        )


def zero_bubble_2023() -> Iterator[PublishedRow]:
    """F + B + W of one microbatch, the mean over 8 stages whose ends have one layer less, sequence 1024."""
    table = [
        ("1.5B", 22, 2304, 24, 6, (18.522, 18.086, 9.337)),
        ("6.2B", 30, 4096, 32, 3, (29.718, 29.444, 19.927)),
    ]
    for name, layers, hidden, heads, micro, milliseconds in table:
        shape, middle = gpt(layers, hidden, heads, sequence=1024), (layers + 2) // 8
        plan = Plan(pp=8, micro_batch=micro, stage_layers=(middle - 1, *[middle] * 6, middle - 1))
        printed = sum(milliseconds) / 1e3
        yield PublishedRow(
            "arXiv:2401.10241, table 9",
            f"{name} stage",
            "time",
            "stage_seconds",
            printed,
            shape,
            plan,
            fitted=False,
        )


def fsdp_2024() -> Iterator[PublishedRow]:
    """PyTorch's FSDP on 128 GPUs with 400 Gbit/s a node: hybrid shards of 8, and full ones. None was fitted.

    Sequences of 4,096 tokens, FlashAttention 2, bf16 throughout. The device's own network, whose rate was fitted to
    other runs, brings 384 Gbit/s to a node, and is taken as it is.
    """
    hybrid: dict[str, Any] = {"shard": 8}
    full: dict[str, Any] = {"recompute": "full"}
    table = [
        ("7B", "llama-2-7b", hybrid, 2, 3760),
        ("13B", "llama-2-13b", hybrid, 1, 1700),
        ("34B", "codellama-34b", full, 8, 772),
        ("70B", "llama-2-70b", full, 6, 380),
    ]
    for name, model, options, micro_batch, tokens in table:
        plan = Plan(128, micro_batch=micro_batch, attention="flash", **BF16_SHARDS, **options)
        way = "hybrid shards" if options is hybrid else "full shards, recomputation"
        figure = f"{name}, {way}", "time", "tokens_per_gpu", tokens, MODELS[model], plan
        yield PublishedRow("foundation-model-stack/fms-fsdp", *figure, group="A100 FSDP", fitted=False)


# PyTorch's FSDP paper prints a network of 2 Tbit/s: taken as what a node sends, in rings through all eight cards. Which
# part of that a message gets is taken from the H100's file.
_network = replace(GPUS["h100"].network, bandwidth=2e12 / 8 / 8)
FSDP_CLUSTER = replace(GPUS["a100-80gb"], network=_network, flat_ring=0.0)


def fsdp_2023() -> Iterator[PublishedRow]:
    """PyTorch's FSDP on 8 to 512 GPUs: full shards, bf16, every layer recomputed. Nothing was fitted.

    The text prints that T5's GPUs compute 7 % less in a second on 512 than on 8, not whether with 8 or 16 sequences on
    each, and which rate GPT-3's exceed on 128 to 512.
    """

    def rate(name: str, gpus: int, texts: int) -> float:
        plan = Plan(gpus, micro_batch=texts, recompute="full", **BF16_SHARDS)
        return step_cost(MODELS[name], plan, FSDP_CLUSTER).tflops_per_gpu

    def falls(texts: int) -> float:
        return rate("t5-11b", 512, texts) / rate("t5-11b", 8, texts)

    table = [
        ("T5-11B, part kept from 8 to 512", "t5-11b", 8, "part_of_ideal", 0.93, partial(falls, 8)),
        ("T5-11B, part kept from 8 to 512", "t5-11b", 16, "part_of_ideal", 0.93, partial(falls, 16)),
        ("175B on 512", "gpt3-175b", 1, "tflops_per_gpu", 173, partial(rate, "gpt3-175b", 512, 1)),
        ("175B on 512", "gpt3-175b", 2, "tflops_per_gpu", 186, partial(rate, "gpt3-175b", 512, 2)),
    ]
    for name, model, texts, quantity, printed, predict in table:
        plan = Plan(512, micro_batch=texts, recompute="full", **BF16_SHARDS)
        figure = f"{name}, {texts} a GPU", "time", quantity, printed, MODELS[model], plan
        yield PublishedRow(
            "arXiv:2304.11277", *figure, group="A100 FSDP, 8 to 512", fitted=False, predict=predict
        )
