"""01.1: names and shapes of the calls of leaf modules, and the hooks afterwards."""

import torch
from course_checks.seeing_networks import Counted, changed_hooks, hooks_of, result_or_error
from torch import nn

from course_lib.grading.judge import Fact, record
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.resnet import BasicBlock, ResNet18

RAISES = "If the forward pass raises, the same holds, and its error reaches the caller."
FACTS = {
    "error": Fact("the error", RAISES),
    "calls": Fact("the calls", "one entry for every call of a module without children, in the order of the…"),
    "hooks": Fact("hooks", "Afterwards the model has the hooks that it had before, and no others."),
    "passes": Fact("forward passes", "one forward pass.", most=1),
}

Case = record("name model inputs", raises=False, task=None)


def cases(seed: int) -> list[Case]:
    torch.manual_seed(seed)
    rows = torch.randn(3, 6)
    return [
        Case("a block whose relu runs twice", lambda: BasicBlock(4, 8, stride=2), (torch.randn(2, 4, 6, 6),)),
        Case("GPT with two layers", lambda: GPT(GPTConfig.tiny(num_layers=2)), (torch.ones(2, 8).long(),)),
        Case("ResNet-18, 8 channels wide", lambda: ResNet18(10, 1, small_images=True, width=8),
             (torch.randn(3, 1, 8, 8),)),
        Case("one linear layer", lambda: nn.Linear(3, 5), (torch.randn(2, 3),)),
        Case("a model that runs its modules in another order", Counted, (rows,)),
        Case("a layer with two inputs", lambda: nn.Bilinear(3, 4, 5), (torch.randn(2, 3), torch.randn(2, 4))),
        Case("a model that has a hook already", hooked, (rows,)),
        Case("a model that raises half-way", lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5)),
             (torch.zeros(1, 4),), raises=True, task=RAISES),
    ]  # fmt: skip


def hooked() -> nn.Module:
    model = Counted()
    model.wide.register_forward_hook(lambda *_: None)
    return model


def observe(leaf_shapes, case: Case) -> dict:
    model = case.model()
    before = hooks_of(model)
    got, error = result_or_error(leaf_shapes, model, case)
    if isinstance(got, list):
        got = [(name, tuple(shape)) for name, shape in got]
    hooks = changed_hooks(model, before)
    return {"error": error, "calls": got, "hooks": hooks, "passes": getattr(model, "passes", 1)}
