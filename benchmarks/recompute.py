"""The step time of recomputation by hand beside ``torch.utils.checkpoint``.

    python benchmarks/recompute.py

Both run the same GPT in turn; a ratio is that of two neighbouring steps, and the median of these counts.
Prints the target beside what was measured and exits with 1 if it is missed.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as official

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.runtime import current_device
from course_lib.training.loop import cross_entropy
from course_lib.training.recompute import apply_recompute

TARGET = 1.05
PAIRS = 25


def step_seconds(model: nn.Module, tokens: Tensor) -> float:
    start = time.perf_counter()
    model.zero_grad()
    cross_entropy(model(tokens)[:, :-1], tokens[:, 1:]).backward()
    if tokens.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def median_ratio(what: str, dropout: float) -> float:
    torch.manual_seed(0)
    torch.set_num_threads(min(2, torch.get_num_threads()))
    plain = GPT(GPTConfig.tiny(dropout=dropout)).to(current_device())
    ours, theirs = copy.deepcopy(plain), copy.deepcopy(plain)
    modules = dict(theirs.named_modules())
    for name in apply_recompute(ours, what):
        modules[name].forward = partial(official, modules[name].forward, use_reentrant=False)
    tokens = torch.randint(256, (4, 128), device=current_device())
    for model in (ours, theirs) * 2:
        step_seconds(model, tokens)
    ratios = []
    for pair in range(PAIRS):
        first, second = (ours, theirs) if pair % 2 else (theirs, ours)
        times = {id(model): step_seconds(model, tokens) for model in (first, second)}
        ratios.append(times[id(ours)] / times[id(theirs)])
    return statistics.median(ratios)


def main() -> int:
    missed = 0
    print(f"{'step time, ours / torch.utils.checkpoint':50}{'measured':>10}{'target':>10}")
    for what in ("full", "selective"):
        for dropout in (0.0, 0.1):
            ratio = median_ratio(what, dropout)
            missed += ratio > TARGET
            name = f"{what} recomputation, dropout {dropout}"
            print(f"{name:50}{ratio:10.3f}{TARGET:10.2f}{'  MISSED' if ratio > TARGET else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
