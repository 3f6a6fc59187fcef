"""Bytes that papers print as formulas or compute from them."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.inputs.plan import Plan
from simulator.published.a100 import GPT_22B, GPT_175B, GPT_530B, KORTHIKANTI, PRESENT, WAYS
from simulator.published.row import PublishedRow

ZERO = "arXiv:1910.02054, table 1"
FORMULA = {"group": "activations", "fitted": False}
STATES = {"group": "states", "fitted": False}


def activations() -> Iterator[PublishedRow]:
    """Bytes that the paper's formulas give: table 2 for a layer, equation 6 for the first pipeline stage."""
    t, s = 8, 2048
    for name, shape, b in (("22B", GPT_22B, 4), ("175B", GPT_175B, 1), ("530B", GPT_530B, 1)):
        sbh, scores = s * b * shape.hidden, 5 * shape.heads * s / shape.hidden
        factors = (10 + 24 / t + scores / t, 34 / t + scores / t, 2, 10 + 24 / t, 34 / t)
        for (way, options), factor in zip(WAYS.items(), factors, strict=True):
            plan = Plan(tp=t, micro_batch=b, **options)
            source = f"{KORTHIKANTI}, table 2"
            yield PublishedRow(
                source,
                f"{name} layer, {way}",
                "activations",
                "layer_bytes",
                sbh * factor,
                shape,
                plan,
                **FORMULA,
            )
    for name, shape, p, v in (("175B", GPT_175B, 8, 3), ("530B", GPT_530B, 35, 3)):
        plan = Plan(tp=t, pp=p, chunks=v, **PRESENT)
        layers = 34 * s * shape.hidden * shape.layers / t * (1 + (p - 1) / (p * v))
        total = layers + s * shape.hidden * p / t
        source = f"{KORTHIKANTI}, section 4.3"
        yield PublishedRow(
            source, f"{name} first stage", "activations", "stage_bytes", total, shape, plan, **FORMULA
        )


def zero_2019() -> Iterator[PublishedRow]:
    """Model states of 7.5 billion parameters, rounded as the paper prints them."""
    table = {
        1: (52.5, 35.6, 31.4, 30.4, 30.1),
        2: (41.3, 21.6, 16.6, 15.4, 15.1),
        3: (30, 7.5, 1.88, 0.47, 0.12),
    }
    for stage, cells in table.items():
        for ranks, gigabytes in zip((4, 16, 64, 256, 1024), cells, strict=True):
            plan, name = Plan(dp=ranks, zero=stage), f"7.5B, stage {stage}, {ranks} ranks"
            yield PublishedRow(ZERO, name, "states", "state_bytes", gigabytes * 1e9, GPT_22B, plan, **STATES)
