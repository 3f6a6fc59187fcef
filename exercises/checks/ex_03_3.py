"""03.3: bytes that autograd keeps for backward, of models that keep views, buffers and their own weights."""

from contextlib import nullcontext

import torch
from course_checks.kept_views import Columns, Detached, Halves, Reuse, Rows, Split, Twice
from course_checks.seeing_networks import changed_hooks, frozen, hooks_of
from course_checks.where_memory_goes import Held, Watch
from torch import nn

from course_lib.grading.judge import Fact, record
from course_lib.models.gpt import Block, GPTConfig

ONE_PASS = "one forward pass, and no tensor is made besides those that the forward pass makes itself."
FACTS = {
    "bytes": Fact("the number of bytes", "each storage counts once, with all of its bytes."),
    "hooks": Fact("hooks", "Hooks that are on the model stay there, and no others are left."),
    "passes": Fact("forward passes", ONE_PASS, most=1),
    "made": Fact("bytes of tensors made besides", ONE_PASS, most=0),
}

Case = record("name model shapes", dtype=torch.float32)


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2))


def resting() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).eval()


def block() -> nn.Module:
    return Block(GPTConfig.tiny(num_layers=1, hidden_size=16, num_heads=2, dropout=0.1))


CASES = [
    Case("memory that is used again as soon as it is free", Reuse, ((8,),)),
    Case("linear, tanh, linear", layers, ((5, 6),)),
    Case("the same, the last layer frozen", lambda: frozen(layers(), 2), ((5, 6),)),
    Case("linear, tanh, linear in bf16", lambda: layers().bfloat16(), ((5, 6),), torch.bfloat16),
    Case("two layers that read one input", Twice, ((3, 6),)),
    Case("one column of a wide tensor", Columns, ((7, 11),)),
    Case("two parts of one tensor", Split, ((4, 6),)),
    Case("two parts of one weight", Halves, ((2, 4),)),
    Case("a buffer that is a part of a larger tensor", Rows, ((4, 5),)),
    Case("a detached parameter", Detached, ((3, 5),)),
    Case("a batch norm and a dropout in evaluation mode", resting, ((8, 4),)),
    Case("one element", nn.Tanh, ((1,),)),
    Case("a layer that keeps nothing", nn.Identity, ((2, 3),)),
    Case("a GPT block with dropout", block, ((2, 8, 16),)),
    Case("a layer with two inputs", lambda: nn.Bilinear(3, 4, 5), ((2, 3), (2, 4))),
    Case("nothing that is trained", lambda: layers().requires_grad_(False), ((2, 6),)),
]


def observe(saved_bytes, case: Case) -> dict:
    """But for one model no memory is used twice: otherwise which address is would be chance."""
    model, passes = case.model(), []
    trained = case.name != "nothing that is trained"
    inputs = [torch.randn(shape).to(case.dtype).requires_grad_(trained) for shape in case.shapes]
    with Watch() as plain:
        model(*inputs)
    model.register_forward_hook(lambda *_: passes.append(1))
    before = hooks_of(model)
    with nullcontext() if isinstance(model, Reuse) else Held(), Watch() as watch:
        got = saved_bytes(model, *inputs)
    return {
        "bytes": got,
        "hooks": changed_hooks(model, before),
        "passes": len(passes),
        "made": max(0, watch.bytes - plain.bytes),
    }
