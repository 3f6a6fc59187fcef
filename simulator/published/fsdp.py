"""Runs of PyTorch's FSDP on A100 and H100. Nothing was fitted to them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from simulator.inputs.hardware import Hardware
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.step import step_cost
from simulator.published.row import PublishedRow

TABLES = tomllib.loads((Path(__file__).parent / "fsdp.toml").read_text(encoding="utf-8"))
BF16_SHARDS: dict[str, Any] = {"zero": 3, "microbatches": 1, "precision": "bf16"}


def all_cards(gpu: str, bits: float) -> Hardware:
    """The device in nodes that send ``bits`` a second, in rings through all eight cards.

    Which part of that a message gets is taken from the H100's file: the A100's was fitted to runs with one ring.
    """
    network = replace(GPUS["h100"].network, bandwidth=bits / 8 / 8)
    return replace(GPUS[gpu], network=network, flat_ring=0.0)


# The paper prints a network of 2 Tbit/s: taken as what a node sends.
FSDP_CLUSTER = all_cards("a100-80gb", 2e12)
FMS_CLUSTER = all_cards("a100-80gb", 4e11)


def fsdp_2023() -> Iterator[PublishedRow]:
    """PyTorch's FSDP on 8 to 512 GPUs: full shards, bf16, every layer recomputed.

    The text prints that T5's GPUs compute 7 % less in a second on 512 than on 8, not whether with 8 or 16 sequences on
    each, and which rate GPT-3's exceed on 128 to 512.
    """
    common: dict[str, Any] = {"group": "A100 FSDP, 8 to 512", "fitted": False, "hardware": FSDP_CLUSTER}
    source, shape = "arXiv:2304.11277", MODELS["t5-11b"]

    def plan(gpus: int, texts: int) -> Plan:
        return Plan(gpus, micro_batch=texts, recompute="full", **BF16_SHARDS)

    def kept(texts: int) -> float:
        few, many = (step_cost(shape, plan(gpus, texts), FSDP_CLUSTER) for gpus in (8, 512))
        return many.tflops_per_gpu / few.tflops_per_gpu

    for texts in (8, 16):
        figure = f"T5-11B, part kept from 8 to 512, {texts} a GPU", "time", "part_of_ideal", 0.93
        yield PublishedRow(source, *figure, shape, plan(512, texts), predict=partial(kept, texts), **common)
    for texts, tflops in ((1, 173), (2, 186)):
        figure = f"175B on 512, {texts} a GPU", "time", "tflops_per_gpu", tflops
        yield PublishedRow(source, *figure, MODELS["gpt3-175b"], plan(512, texts), **common)


def fsdp_2024() -> Iterator[PublishedRow]:
    """PyTorch's FSDP on 128 GPUs with 400 Gbit/s a node: hybrid shards of 8, and full ones.

    Sequences of 4,096 tokens, FlashAttention 2, bf16 throughout.
    """
    for name, model, full, micro_batch, tokens in TABLES["fms"]:
        options: dict[str, Any] = {"recompute": "full"} if full else {"shard": 8}
        plan = Plan(128, micro_batch=micro_batch, attention="flash", **BF16_SHARDS, **options)
        way = "full shards, recomputation" if full else "hybrid shards"
        figure = f"{name}, {way}", "time", "tokens_per_gpu", tokens, MODELS[model], plan
        ran: dict[str, Any] = {"group": "A100 FSDP", "fitted": False, "hardware": FMS_CLUSTER}
        yield PublishedRow("foundation-model-stack/fms-fsdp", *figure, **ran)


def llm_foundry() -> Iterator[PublishedRow]:
    """GPTs of 125 million to 70 billion parameters on 8 to 128 GPUs: every row of 2,048 tokens.

    Not in the tables: attention, by the scripts' default a Triton kernel of FlashAttention's first version, where the
    devices' files price the second; in how many bits gradients are added up, taken as 16; the H100s' network, taken as
    their file has it.
    """
    clusters = {gpu: all_cards(gpu, 1.6e12) for gpu in ("a100-80gb", "a100-40gb")} | {"h100": GPUS["h100"]}
    for gpu, hardware in clusters.items():
        for name, gpus, texts, microbatches, recomputed, tokens in TABLES[gpu]:
            shape = ModelShape(*TABLES["sizes"][name], vocab=50368, sequence=2048, dropout=False)
            ways: dict[str, Any] = {"recompute": "full"} if recomputed else {}
            sizes = {"micro_batch": texts, "microbatches": microbatches}
            plan = Plan(gpus, zero=3, attention="flash", **sizes, **ways)
            figure = f"{name} on {gpus}, {texts} a GPU", "time", "tokens_per_gpu", tokens, shape, plan, gpu
            group = f"llm-foundry, {gpu}"
            yield PublishedRow(TABLES["source"], *figure, group=group, fitted=False, hardware=hardware)
