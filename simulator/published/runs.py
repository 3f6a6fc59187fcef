"""Measured training runs on B200 and H100, read from the tables beside this file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.published.row import PublishedRow

HERE = Path(__file__).parent
MEGATRON: dict[str, Any] = {"zero": 1, "attention": "flash", "gradients": "fp32"}
OVERLAPPED: dict[str, Any] = {"overlap": ("gradients", "parameters", "tensor", "pipeline")}


def measured_runs() -> Iterator[PublishedRow]:
    """Every row of the tables."""
    tables = _read("b200")
    yield from _b200(tables)
    yield from _b200_experts(tables["source"], tables["experts"])
    tables = _read("h100")
    yield from _megatron_readme(tables["megatron_readme"])
    yield from _recipes(tables["recipes"], tables["shapes"])
    yield from _torchtitan(tables["torchtitan"])


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))


def _rows(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (dict(zip(table["columns"], row, strict=True)) for row in table["rows"])


def _b200(table: dict[str, Any]) -> Iterator[PublishedRow]:
    """Slices of Llama on one node: seconds of a step, and the most bytes that any rank had allocated."""
    for row in _rows(table):
        shape = replace(MODELS[row["model"]], layers=row["layers"], sequence=row["sequence"])
        axes = {axis: row[axis] for axis in ("tp", "pp", "cp", "dp", "microbatches")}
        together = {
            "sequence_parallel": row["tp"] > 1,
            "overlap": (),
            "loss": "fused",
            "context": "all-to-all",
        }
        plan = Plan(**axes, **together, **MEGATRON)
        name = f"{row['model'][8:].upper()} tp{row['tp']} pp{row['pp']} cp{row['cp']}"
        name += f", {row['microbatches']} x {row['sequence']}"
        yield from _time_and_memory(table["source"], name, row, shape, plan, "B200")


def _b200_experts(source: str, table: dict[str, Any]) -> Iterator[PublishedRow]:
    for row in _rows(table):
        sizes = {"layers": row["layers"], "vocab": row["vocab"], "sequence": 4096, "dense_layers": 1}
        shape = replace(MODELS[row["model"]], **sizes)
        axes = {axis: row[axis] for axis in ("pp", "ep", "dp", "microbatches")}
        plan = Plan(**axes, overlap=(), **MEGATRON)
        name = f"{row['model'][9:].upper()} pp{row['pp']} ep{row['ep']}, {row['microbatches']} x 4096"
        yield from _time_and_memory(source, name, row, shape, plan, "B200 experts")


def _time_and_memory(
    source: str, name: str, row: dict[str, Any], shape: ModelShape, plan: Plan, group: str
) -> Iterator[PublishedRow]:
    # No number was fitted to a peak of a dense model: all of them are held out.
    fitted = {"time": row["fitted"], "memory": row["fitted"] and group != "B200"}
    figures = {
        "time": ("seconds", row["step_ms"] / 1e3, row["simumax_ms"] / 1e3),
        "memory": ("peak_bytes", row["peak_allocated_GiB"] * 2**30, row["simumax_GiB"] * 2**30),
    }
    for kind, (quantity, printed, theirs) in figures.items():
        about: dict[str, Any] = {"gpu": "b200", "group": f"{group} {kind}", "fitted": fitted[kind]}
        figure = source, name, kind, quantity, printed, shape, plan
        yield PublishedRow(*figure, **about, peer=("SimuMax", theirs))


def _megatron_readme(table: dict[str, Any]) -> Iterator[PublishedRow]:
    for row in _rows(table):
        shape = ModelShape(row["layers"], row["hidden"], row["heads"], 131072, 4096, dropout=False)
        plan = Plan(
            dp=48,
            tp=row["tp"],
            pp=row["pp"],
            micro_batch=row["micro_batch"],
            microbatches=row["global_batch"] // 48 // row["micro_batch"],
            chunks=row["chunks"],
            sequence_parallel=row["tp"] > 1,
            **MEGATRON,
            **OVERLAPPED,
        )
        tflops = row["tflops_per_gpu"]
        yield PublishedRow(
            table["source"], row["name"], "time", "tflops_per_gpu", tflops, shape, plan, "h100", "H100 time"
        )


def _recipes(table: dict[str, Any], shapes: dict[str, list[Any]]) -> Iterator[PublishedRow]:
    for row in _rows(table):
        fp8 = row["precision"] == "fp8"
        dp = row["gpus"] // (row["tp"] * row["pp"] * row["cp"])
        plan = Plan(
            dp=dp,
            **{axis: row[axis] for axis in ("tp", "pp", "cp", "chunks", "micro_batch", "precision")},
            microbatches=row["global_batch"] // dp // row["micro_batch"],
            sequence_parallel=True,
            loss="fused" if row["release"] == "25.01" else "unfused",
            **MEGATRON,
            **OVERLAPPED,
        )
        yield PublishedRow(
            f"{table['source']} {row['release']}",
            f"{row['model']} on {row['gpus']}{', fp8' if fp8 else ''}",
            "time",
            "seconds",
            row["seconds"],
            _shape(row["model"], shapes),
            plan,
            "h100",
            "H100 fp8 time" if fp8 else "H100 time",
            row["fitted"],
        )


def _shape(model: str, shapes: dict[str, list[Any]]) -> ModelShape:
    if model in MODELS:
        return MODELS[model]
    layers, hidden, heads, kv_heads, ffn, vocab, sequence, activation = shapes[model]
    plain: dict[str, Any] = (
        {} if heads == kv_heads else {"tied": False, "learned_positions": False, "biases": False}
    )
    sizes: dict[str, Any] = {"kv_heads": kv_heads, "ffn": ffn, "activation": activation}
    return ModelShape(layers, hidden, heads, vocab, sequence, **sizes, dropout=False, **plain)


def _torchtitan(table: dict[str, Any]) -> Iterator[PublishedRow]:
    for row in _rows(table):
        plan = Plan(
            dp=row["gpus"],
            zero=3,
            micro_batch=2,
            microbatches=1,
            attention="flash",
            gradients="fp32",
            precision=row["precision"],
        )
        name = f"Llama 8B, FSDP on {row['gpus']}, {row['precision']}"
        yield PublishedRow(
            table["source"],
            name,
            "time",
            "tokens_per_gpu",
            row["tokens_per_gpu"],
            MODELS["llama-3-8b"],
            plan,
            "h100",
            "H100 500 W time",
            False,
        )
