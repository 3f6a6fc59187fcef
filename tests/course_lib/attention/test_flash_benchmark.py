"""The benchmark of the kernels runs to its end; without a GPU it takes a tiny case and judges nothing."""

import importlib
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

pytest.importorskip("triton", reason="Triton is installed on Linux only")


def test_the_benchmark_runs_at_tiny_size(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    benchmark = importlib.import_module("flash")
    monkeypatch.setattr(benchmark, "JUDGED_FROM", 10**9)
    small = ["--lengths=72", "--sizes=64", "--tokens=72", "--hidden=64", "--rounds=1"]
    run = CliRunner().invoke(benchmark.main, small)
    assert run.exit_code == 0, run.output
    assert ("No GPU" in run.output) != torch.cuda.is_available()
    for causal in ("full", "causal"):
        for which in ("forward", "backward"):
            assert f"{which}, length 72, head 64, {causal}: throughput of ours / SDPA flash: " in run.output
    assert run.output.count("standard") == 2
    assert "target" not in run.output

    wrong = lambda q, k, v, causal: torch.zeros_like(q) + 0 * (q + k + v)  # noqa: E731
    monkeypatch.setattr(benchmark, "flash_attention_triton", wrong)
    run = CliRunner().invoke(benchmark.main, small)
    assert "the outputs differ from SDPA's" in str(run.exception)
