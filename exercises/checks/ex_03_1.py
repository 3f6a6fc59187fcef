"""03.1: bytes of parameters, gradients and optimizer states in mixed precision with Adam."""

import torch
from course_checks.seeing_networks import frozen, stacked
from course_checks.where_memory_goes import Watch
from torch import nn

from course_lib.grading.judge import Fact, record
from course_lib.models.gpt import GPT, GPTConfig

FACTS = {
    "bytes": Fact("the bytes of {}", "How many bytes do its parameters, its gradients and its optimizer…"),
    "made": Fact("bytes of tensors made while counting", "no tensor is made while counting.", most=0),
}
KINDS = ("parameters", "gradients", "optimizer states")

Case = record("name model")


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3, bias=False))


def tied(frozen: bool = False) -> nn.Module:
    model = GPT(GPTConfig.tiny(num_layers=1, hidden_size=16, num_heads=2))
    model.embedding.requires_grad_(not frozen)
    return model


def large() -> nn.Module:
    """Two layers as wide as those of GPT-3, without data; the output weight is tied to the embedding."""
    with torch.device("meta"):
        return GPT(GPTConfig(num_layers=2, num_heads=96, hidden_size=12288))


CASES = [
    Case("two linear layers and a batch norm", normed),
    Case("a GPT whose embedding and output are tied", tied),
    Case("a frozen layer below a trained one", lambda: frozen(nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 4)), 0)),
    Case("a GPT whose tied embedding is frozen", lambda: tied(frozen=True)),
    Case("a model in bf16", lambda: normed().to(torch.bfloat16)),
    Case("parameters that are views of one larger tensor", stacked),
    Case("one parameter of one element", lambda: nn.Linear(1, 1, bias=False)),
    Case("a model without parameters", nn.Tanh),
    Case("a GPT as wide as GPT-3 on the device meta", large),
    Case("one layer of a trillion parameters on the device meta",
         lambda: nn.Linear(10**6, 10**6, bias=False, device="meta")),
]  # fmt: skip


def observe(model_state_bytes, case: Case) -> dict:
    model = case.model()
    with Watch() as watch:
        got = model_state_bytes(model)
    three = isinstance(got, tuple | list) and len(got) == 3
    return {"bytes": dict(zip(KINDS, got, strict=True)) if three else got, "made": watch.bytes}
