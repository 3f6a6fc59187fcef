"""A LoRA training step with the course's layers, beside the same step with peft's, on the same model.

python benchmarks/finetuning.py [--rounds 25]

Forward and backward of all-MiniLM-L6-v2 with a classifier, LoRA of rank 8 on query and value, or on all matrices of
its layers. The optimizer is the same on both sides and left out. The two sides alternate in one process; what counts is
the median of the ratios of neighbouring steps.

Prints this ratio and both times beside the target, and ends with exit code 1 where it is missed. Takes about a minute
and a half on two idle cores.
"""

from __future__ import annotations

import copy
import time

import click
import torch
import torch.nn.functional as F
from paired import report, rounds
from torch import Tensor, nn

from course_lib.finetuning.lora_apply import apply_lora, mark_only_lora_as_trainable
from course_lib.models.bert import BertClassifier
from course_lib.models.pretrained import load_minilm
from course_lib.runtime import current_device

BATCH, SEQ = 16, 32
TARGETS = {"query and value": ["query", "value"], "all matrices": ["query", "key", "value", "dense"]}


def step_seconds(model: nn.Module, tokens: Tensor, labels: Tensor) -> float:
    start = time.perf_counter()
    model.zero_grad()
    F.cross_entropy(model(tokens), labels).backward()
    if tokens.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(name: str, plain: nn.Module, dropout: float, rounds: int) -> None:
    import peft

    ours, theirs = copy.deepcopy(plain), copy.deepcopy(plain)
    only = {"exclude_modules": ["pooler.dense"]} if "dense" in TARGETS[name] else {}
    config = peft.LoraConfig(
        r=8,
        lora_alpha=16,
        lora_dropout=dropout,
        target_modules=TARGETS[name],
        modules_to_save=["classifier"],
        **only,
    )
    theirs = peft.inject_adapter_in_model(config, theirs)
    targets = ["output.dense", "intermediate.dense", *TARGETS[name][:3]] if only else TARGETS[name]
    apply_lora(ours, targets, rank=8, alpha=16, dropout=dropout)
    mark_only_lora_as_trainable(ours, also=["classifier"])
    counts = [sum(p.numel() for p in m.parameters() if p.requires_grad) for m in (ours, theirs)]
    assert counts[0] == counts[1], f"the two sides train {counts[0]} and {counts[1]} parameters"
    tokens = torch.randint(1000, 20000, (BATCH, SEQ), device=current_device())
    labels = torch.randint(8, (BATCH,), device=current_device())
    for model in (ours, theirs) * 3:
        step_seconds(model.train(), tokens, labels)
    times: dict[nn.Module, list[float]] = {ours: [], theirs: []}
    for pair in range(rounds):
        for model in (ours, theirs) if pair % 2 else (theirs, ours):
            times[model].append(step_seconds(model, tokens, labels))
    report(f"LoRA on {name}, dropout {dropout:g}", times[ours], times[theirs], at_most=1.00)


@click.command(help=__doc__)
@rounds(25)
def main(rounds: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(min(2, torch.get_num_threads()))
    bert = BertClassifier(load_minilm()[0], 8).to(current_device())
    for module in bert.modules():  # the model's own dropout is the same on both sides
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    print("seconds of a step by hand / with peft")
    for what in TARGETS:
        for dropout in (0.0, 0.1):
            compare(what, bert, dropout, rounds)


if __name__ == "__main__":
    main()
