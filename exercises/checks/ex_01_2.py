"""01.2: bytes of parameters by prefix, and what is copied for it."""

import torch
from course_checks.seeing_networks import ParameterCopies, stacked
from torch import nn

from course_lib.grading.judge import Fact, record
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.resnet import ResNet18

FACTS = {
    "bytes": Fact("the number of bytes of {}", "a dict from a prefix of module names to the bytes of the…"),
    "copied": Fact("bytes of parameters copied", "no parameter is copied.", most=0),
}

Case = record("name model", depth=1)


def mixed() -> nn.Module:
    model = GPT(GPTConfig.tiny(num_layers=2))
    model.blocks[0].to(torch.bfloat16)
    return model


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def large() -> nn.Module:
    size = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
    with torch.device("meta"):
        return Bert(BertConfig(num_hidden_layers=2, **size))


RESNET, GPT_NAME = "ResNet-18, depth {}", "GPT, its word matrix tied, a block in bfloat16, depth {}"
CASES = [
    *(Case(RESNET.format(depth), lambda: ResNet18(10, 1, width=8), depth) for depth in (2, 3)),
    *(Case(GPT_NAME.format(depth), mixed, depth) for depth in (2, 9)),
    Case("two layers with one weight", tied),
    Case("weights that are views of one tensor, and a frozen parameter", stacked),
    Case("one linear layer", lambda: nn.Linear(1, 1)),
    Case("eleven layers in a row", lambda: nn.Sequential(*(nn.Linear(2, n) for n in range(1, 12)))),
    Case("a model without parameters", nn.Tanh),
    *(Case(f"BERT with wide layers on the device meta, depth {depth}", large, depth) for depth in (1, 3)),
]


def observe(bytes_by_prefix, case: Case) -> dict:
    model = case.model()
    with ParameterCopies(model) as copies:
        got = bytes_by_prefix(model, case.depth)
    if isinstance(got, dict):
        got = {prefix or '""': size for prefix, size in got.items() if size}
    return {"bytes": got, "copied": copies.bytes}
