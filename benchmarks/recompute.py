"""The step time of recomputation by hand beside ``torch.utils.checkpoint``.

python benchmarks/recompute.py [--rounds 25]

Both run the same GPT in turn, with full and with selective recomputation, without and with dropout. Prints the median
ratio of their times for each, beside its target, and ends with exit code 1 where one is missed. Takes about half a
minute on two idle cores.
"""

from __future__ import annotations

import copy
import time
from functools import partial

import click
import torch
from paired import report, rounds
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as official

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.recompute import apply_recompute
from course_lib.runtime import current_device


def step_seconds(model: nn.Module, tokens: Tensor) -> float:
    start = time.perf_counter()
    model.zero_grad()
    cross_entropy(model(tokens)[:, :-1], tokens[:, 1:]).backward()
    if tokens.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(what: str, dropout: float, rounds: int) -> None:
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
    times: dict[nn.Module, list[float]] = {ours: [], theirs: []}
    for pair in range(rounds):
        for model in (ours, theirs) if pair % 2 else (theirs, ours):
            times[model].append(step_seconds(model, tokens))
    report(f"{what} recomputation, dropout {dropout}", times[ours], times[theirs], at_most=1.05)


@click.command(help=__doc__)
@rounds(25)
def main(rounds: int) -> None:
    print("seconds of a step by hand / with torch.utils.checkpoint")
    for what in ("full", "selective"):
        for dropout in (0.0, 0.1):
            compare(what, dropout, rounds)


if __name__ == "__main__":
    main()
