"""Runs on A100-80GB in 16 bits, vocabulary 51,200.

The numbers of that device are one rounded compromise for the rows marked as fitted: no row has a number of its own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.published.row import PublishedRow

MEGATRON = "arXiv:2104.04473, table"
KORTHIKANTI = "arXiv:2205.05198"
TABLES = tomllib.loads((Path(__file__).parent / "a100.toml").read_text(encoding="utf-8"))


def gpt(layers: int, hidden: int, heads: int, sequence: int = 2048) -> ModelShape:
    return ModelShape(layers, hidden, heads, vocab=51200, sequence=sequence)


GPT_22B, GPT_175B, GPT_530B = gpt(48, 6144, 64), gpt(96, 12288, 96), gpt(105, 20480, 128)
# The paper's own method, as its tables call it.
PRESENT: dict[str, Any] = {"sequence_parallel": True, "recompute": "selective"}
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
    for name, layers, hidden, heads, tp, pp, dp, batch, micro, chunks, tflops, fitted in TABLES["megatron_1"]:
        sizes = {"micro_batch": micro, "microbatches": batch // dp // micro, "chunks": chunks}
        plan = Plan(dp, tp, pp, recompute="full", **sizes)
        yield _row(f"{MEGATRON} 1", name, "tflops_per_gpu", tflops, gpt(layers, hidden, heads), plan, fitted)


def megatron_2021_table_2() -> Iterator[PublishedRow]:
    """The same two models under ZeRO-3 without model parallelism, and under tensor and pipeline parallelism.

    A step under ZeRO-3 has one microbatch. The chunks of the pipelines are not printed: taken as 1. All twelve figures
    were compared with the copy of this table in llm-analysis (Cheng Li, 2023), examples/megatron-lm.
    """
    models = {"174.6B": gpt(96, 12288, 96), "529.6B": GPT_530B}
    for name, gpus, micro, tflops, fitted in TABLES["megatron_2_sharded"]:
        plan = Plan(dp=gpus, zero=3, micro_batch=micro, microbatches=1, recompute="full")
        figure = f"{name}, ZeRO-3 on {gpus}", "time", "tflops_per_gpu", tflops, models[name], plan
        yield PublishedRow(f"{MEGATRON} 2", *figure, group="A100 ZeRO-3", fitted=fitted)
    for name, pp, batch, gpus, tflops in TABLES["megatron_2"]:
        dp = gpus // (8 * pp)
        plan = Plan(dp, 8, pp, microbatches=batch // dp, recompute="full")
        named = f"{name}, PTD-P on {gpus}"
        yield _row(f"{MEGATRON} 2", named, "tflops_per_gpu", tflops, models[name], plan, False)


def flashattention_2_2023() -> Iterator[PublishedRow]:
    """GPT-3 on 8 GPUs; attention counted whole, as here. The microbatch is not printed: taken as 4."""
    for name, layers, hidden, heads, sequence, tflops in TABLES["flashattention_2"]:
        shape, named = ModelShape(layers, hidden, heads, 50257, sequence), f"{name}, {sequence} tokens"
        plan = Plan(dp=8, micro_batch=4, microbatches=4, attention="flash")
        yield _row("arXiv:2307.08691, table 1", named, "model_tflops_per_gpu", tflops, shape, plan, False)


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
    trillion: dict[str, Any] = {"tp": 8, "pp": 64, "microbatches": 512}
    # The last two of a row: what Calculon's own validation printed (calculon-ai/calculon, the log of its tests, 0.1.0).
    table = [  # the third row is the abstract's, on 2,240 GPUs
        ("22B", GPT_22B, small, "table 5", "seconds", 1.42, 1.10, True, (1.40, 1.14)),
        ("175B", GPT_175B, large, "table 5", "seconds", 18.13, 13.75, True, (18.03, 13.64)),
        ("530B", GPT_530B, largest, "abstract", "mfu", 0.421, 0.542, True, ()),
        ("530B", GPT_530B, largest | {"dp": 1}, "table 5", "seconds", 49.05, 37.83, False, (49.89, 34.47)),
        ("1T", gpt(128, 25600, 160), trillion, "table 5", "seconds", 94.42, 71.49, False, (90.08, 66.04)),
    ]
    for name, shape, axes, where, quantity, full, present, fitted, calculon in table:
        source, plans = f"{KORTHIKANTI}, {where}", (Plan(**axes, recompute="full"), Plan(**axes, **PRESENT))
        peers = [("Calculon", seconds) for seconds in calculon] or [None, None]
        ways = zip(("full recomputation", "present work"), (full, present), plans, peers, strict=True)
        for way, printed, plan, peer in ways:
            yield replace(_row(source, f"{name}, {way}", quantity, printed, shape, plan, fitted), peer=peer)


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


def _row(
    source: str, name: str, quantity: str, printed: float, shape: ModelShape, plan: Plan, fitted: bool
) -> PublishedRow:
    group = "A100 time" if fitted else "A100 more runs"
    return PublishedRow(source, name, "time", quantity, printed, shape, plan, group=group, fitted=fitted)
