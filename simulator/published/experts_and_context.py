"""Tokens on their way to experts, sequences cut over ranks, and 8 bits: what projects and papers print of them.

No number was fitted to any of these rows. What a source does not print is said beside its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.predict.collective_time import dispatch_seconds
from simulator.predict.layer_time import core_seconds, layer_seconds
from simulator.predict.memory import plan_memory
from simulator.predict.step import step_cost
from simulator.published.row import PublishedRow

V3 = MODELS["deepseek-v3"]
LLAMA, LARGE = MODELS["llama-3-8b"], MODELS["llama-3-405b"]
A100, B200 = GPUS["a100-80gb"], GPUS["b200"]
HELD: dict[str, Any] = {"fitted": False}
MEGATRON: dict[str, Any] = {"zero": 1, "attention": "flash", "gradients": "fp32"}


def experts_and_context() -> Iterator[PublishedRow]:
    """Every row."""
    yield from _deep_ep()
    yield from _ring_flash_attention()
    yield from _ring_attention()
    yield from _llama_3()
    yield from _deepseek_v3()
    yield from _mxfp8()


def _deep_ep() -> Iterator[PublishedRow]:
    """4,096 tokens, 8 of 256 experts, at most 4 nodes: there in 8 bits, back in 16. Bytes as DeepEP counts them: every
    copy inside a node; between nodes, one for each node that a token visits, its own among them."""
    table = {8: (153, 158), 16: (43, 43), 32: (58, 57), 64: (51, 50)}
    tokens, k, plan = 4096, V3.experts_per_token, Plan(dp=64, ep=64, dispatch="fp8", node_limit=4)
    for ranks, printed in table.items():
        nodes = min(4, ranks // 8)
        copies = k if ranks == 8 else nodes * (1 - (1 - 1 / nodes) ** k)
        for way, size, rate in zip(
            ("dispatch", "combine"), (V3.hidden * (1 + 4 / 128), V3.hidden * 2), printed, strict=True
        ):

            def predicted(ranks: int = ranks, size: float = size, copies: float = copies) -> float:
                return tokens * copies * size / dispatch_seconds(tokens, k, size, ranks, 1, 4, GPUS["h800"])

            yield PublishedRow(
                *(
                    "DeepEP, V1",
                    f"{way} on {ranks}",
                    "time",
                    "bytes_per_second",
                    rate * 1e9,
                    V3,
                    plan,
                    "h800",
                ),
                group="experts' messages",
                predict=predicted,
                **HELD,
            )


def _ring_flash_attention() -> Iterator[PublishedRow]:
    """Attention of Llama 3.1 8B on 8 ranks with 8,192 tokens each, as a part of one device's rate."""
    table = {
        "h800": {"ring": (52.1, 53.9), "zigzag": (85.2, 90.2)},
        "a100-80gb": {"ring": (51.4, 52.5), "zigzag": (81.7, 89.8)},
    }
    shape = replace(LLAMA, sequence=8 * 8192)
    for gpu, ways in table.items():
        for way, printed in ways.items():
            plan = Plan(cp=8, attention="flash", zigzag=way == "zigzag")
            for passes, percent in enumerate(printed, start=1):

                def predicted(plan: Plan = plan, passes: int = passes, gpu: str = gpu) -> float:
                    layer, hardware = layer_seconds(shape, plan, GPUS[gpu]), GPUS[gpu]
                    ideal = core_seconds(shape, plan, hardware, shape.heads, shape.sequence)
                    balanced = core_seconds(shape, plan, hardware, shape.heads, shape.sequence // 8)
                    waits = 1 if plan.zigzag else 2 - 1 / plan.cp
                    ways = (layer.forward, layer.backward)[:passes]
                    messages = sum(way["context_parallel"] for way in ways)
                    return sum(ideal[:passes]) / 8 / (waits * sum(balanced[:passes]) + messages)

                yield PublishedRow(
                    "ring-flash-attention",
                    f"{way}, {'forward' if passes == 1 else 'both ways'}",
                    *("time", "part_of_ideal", percent / 100, shape, plan, gpu),
                    group="context parallel time",
                    predict=predicted,
                    **HELD,
                )


def _ring_attention() -> Iterator[PublishedRow]:
    """Tokens of one sequence that fit, in powers of 2 and in fp32, on GPUs taken as those of 80 GB. A step has as many
    tokens as fit into all ranks without the ring (section 5.1): here that is one sequence. 3B as OpenLLaMA's.
    """
    small = replace(MODELS["llama-7b"], layers=26, hidden=3200, ffn=8640)
    models = {"3B": small, "7B": MODELS["llama-7b"], "13B": MODELS["llama-13b"]}
    table = {8: {"3B": 512, "7B": 256, "13B": 128}, 32: {"7B": 4096, "13B": 2048}}
    for ranks, sizes in table.items():
        plan = Plan(cp=ranks, zero=3, microbatches=1, recompute="full", attention="flash", precision="fp32")
        for name, longest in sizes.items():

            def predicted(shape: Any = models[name], plan: Plan = plan) -> float:
                return (
                    2.0
                    ** max(
                        n
                        for n in range(30)
                        if plan_memory(replace(shape, sequence=2**n * plan.cp), plan, A100)[0].occupied
                        <= A100.memory
                    )
                    * plan.cp
                )

            yield PublishedRow(
                *("arXiv:2310.01889, table 3", f"{name} on {ranks}", "memory", "tokens", longest * 1024),
                *(models[name], plan),
                group="longest contexts",
                predict=predicted,
                **HELD,
            )


def _llama_3() -> Iterator[PublishedRow]:
    """A chunk is one layer (section 3.3.2), and the first and the last one hold embedding and output alone: priced as
    128 layers. Microbatches of one sequence. Tensor-parallel messages are not said to overlap. Attention counts whole.
    """
    ways: dict[str, Any] = {"sequence_parallel": True, "overlap": ("gradients", "parameters", "pipeline")}
    for dp, cp, sequence, microbatches, percent in (
        (64, 1, 8192, 32, 43),
        (128, 1, 8192, 16, 41),
        (8, 16, 131072, 16, 38),
    ):
        axes = {"dp": dp, "tp": 8, "pp": 16, "cp": cp, "chunks": 8, "microbatches": microbatches}
        plan = Plan(**axes, context="all-gather", **ways, **MEGATRON)
        yield PublishedRow(
            *("arXiv:2407.21783, table 4", f"405B on {plan.ranks}, {sequence} tokens", "time", "mfu"),
            *(percent / 100, replace(LARGE, layers=128, sequence=sequence), plan, "h100"),
            group="context parallel steps",
            **HELD,
        )


def _deepseek_v3() -> Iterator[PublishedRow]:
    """A step, from 2,664,000 device-hours for 14.8 trillion tokens in batches of 15,360, though the first 469 billion
    came in smaller ones. DualPipe as its V form, with light ends. Not priced: norms and up-projections, which are
    recomputed, and restarts.
    """
    steps, shape = 14.8e12 / (15360 * V3.sequence), replace(V3, next_tokens=1)
    eight_bits: dict[str, Any] = {"precision": "fp8", "scaling": "block", "dispatch": "fp8", "node_limit": 4}
    plan = Plan(
        dp=128,
        pp=16,
        ep=64,
        microbatches=120,
        schedule="dualpipe-v",
        loss="fused",
        stage_layers=(1, *[2] * 29, 1, 1),
        overlap=("gradients", "parameters", "pipeline", "experts"),
        **eight_bits,
        **MEGATRON,
    )
    seconds = 2_664_000 * 3600 / plan.ranks / steps
    yield PublishedRow(
        *("arXiv:2412.19437, table 1", "V3 on 2048", "time", "seconds", seconds, shape, plan, "h800"),
        group="DeepSeek-V3's hours",
        **HELD,
    )


def _mxfp8() -> Iterator[PublishedRow]:
    """Llama 3 8B, FSDP on 8 devices with limited power, one sequence of 8192 each. Single operations are recomputed,
    which a plan cannot express: taken as whole layers, because of the memory.
    """
    table = {
        "16 bits": (Plan(), 8307.5, 33.7),
        "mx": (Plan(precision="fp8", scaling="mx"), 9969, 33.9),
        "a scale a tensor": (Plan(precision="fp8"), 10417, 33.4),
    }
    source, tokens = "torchtitan, docs/mxfp8", LLAMA.sequence
    more: dict[str, Any] = {"zero": 3, "microbatches": 1, "gradients": "fp32", "recompute": "full"}
    for name, (precision, rate, gigabytes) in table.items():
        plan = replace(precision, dp=8, shard=8, attention="flash", **more)
        row: dict[str, Any] = {"shape": LLAMA, "plan": plan, "gpu": "b200"} | HELD
        yield PublishedRow(source, name, "time", "tokens_per_gpu", rate, **row, group="B200 torchtitan time")
        yield PublishedRow(
            source, name, "memory", "peak_bytes", gigabytes * 1e9, **row, group="B200 torchtitan memory"
        )
        if precision == Plan():
            continue

        def saved(plan: Plan = plan) -> float:
            plain = replace(plan, precision="mixed", scaling="tensor")
            return step_cost(LLAMA, plain, B200).seconds - step_cost(LLAMA, plan, B200).seconds

        seconds = tokens / table["16 bits"][1] - tokens / rate
        yield PublishedRow(
            *(source, f"{name}: what 8 bits save", "time", "saved_seconds", seconds),
            **row,
            group="B200 saved by 8 bits",
            predict=saved,
        )
