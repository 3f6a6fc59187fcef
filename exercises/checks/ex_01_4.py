"""01.4: models that a run leaves traces in, and what is left afterwards."""

import torch
from course_checks import seeing_networks as models
from course_checks.seeing_networks import ParameterCopies, changed_hooks, hooks_of, result_or_error
from torch import nn

from course_lib.grading.judge import Fact, record
from course_lib.models.bert import Bert, BertConfig

BUFFER = "A buffer that the forward pass changes gets its values back, in the same tensor."
RAISES = "All this also holds when the forward pass raises, and then its error reaches the caller."
ALL = "Afterwards everything is as it was"
FACTS = {
    "error": Fact("the error", RAISES),
    "recorded": Fact("`torch.is_grad_enabled()`", "whether gradients are recorded (`torch.is_grad_enabled()`)"),
    "training": Fact("the `training` flag of {}", "the `training` flag of every module"),
    "buffers": Fact("the values of {}", BUFFER, tolerance=0.0),
    "tensors": Fact("the buffers", BUFFER),
    "random": Fact("the random state", "the state of the CPU's random numbers"),
    "gradients": Fact("the gradient of {}", ALL, tolerance=0.0),
    "trained": Fact("`requires_grad` of {}", ALL),
    "parameters": Fact("the parameter of {}", ALL, tolerance=0.0),
    "hooks": Fact("hooks", "and the model's hooks."),
    "shape": Fact("the output shape", "Return the shape of what `model(*inputs)` returns in evaluation mode"),
    "copied": Fact("bytes of parameters copied", "no parameter is copied.", most=0),
}  # fmt: skip

Case = record("name model inputs", recorded=True, raises=False, task=None)


def cases(seed: int) -> list[Case]:
    draw = torch.Generator().manual_seed(seed)
    rows, images = torch.randn(4, 6, generator=draw), torch.randn(4, 1, 8, 8, generator=draw)
    halves, tokens = torch.ones(2, 3).bfloat16(), torch.ones(2, 8).long()
    listed = [
        Case("ResNet-18 with one frozen norm", models.resnet, (images,)),
        Case("a model with gradients and a hook, which draws random numbers", models.counted, (rows[:3],)),
        Case("one row, which BatchNorm refuses to train on", models.counted, (rows[:1],)),
        Case("a model in bfloat16 that counts its calls in a buffer", models.observed, (halves,)),
        Case("a call where gradients are not recorded", models.counted, (rows[:3],), recorded=False),
        Case("a layer with two inputs", lambda: nn.Bilinear(2, 4, 5), (rows[:, :2], rows[:, 2:])),
        Case("a model that raises half-way", models.Fragile, (rows,), raises=True, task=RAISES),
        Case("BERT, 11,000 words", lambda: Bert(BertConfig.tiny(vocab_size=11000)), (tokens,)),
    ]
    return [case._replace(seed=seed) for case in listed]


def observe(output_shape, case: Case) -> dict:
    """Whatever the answer does to modes and random numbers ends here."""
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(True):
        torch.manual_seed(case.seed)
        model = case.model()
        torch.rand(3)  # so that a seed that is set again is another state
        buffers, hooks = dict(model.named_buffers()), hooks_of(model)
        torch.set_grad_enabled(case.recorded)
        with ParameterCopies(model) as copies:
            got, error = result_or_error(output_shape, model, case)
        named, now = dict(model.named_parameters()), dict(model.named_buffers())
        other = [name for name in buffers if now.get(name) is not buffers[name]]
        return {
            "error": error,
            "recorded": torch.is_grad_enabled(),
            "training": {name or "the model itself": m.training for name, m in model.named_modules()},
            "tensors": f"{', '.join(other)}: another tensor is in the buffer's place" if other else "",
            "buffers": {name: buffer.clone() for name, buffer in now.items()},
            "random": torch.get_rng_state(),
            "gradients": {name: p.grad.clone() for name, p in named.items() if p.grad is not None},
            "trained": {name: p.requires_grad for name, p in named.items()},
            "parameters": {name: p.detach().clone() for name, p in named.items()},
            "hooks": changed_hooks(model, hooks),
            "shape": tuple(got),
            "copied": 0 if case.raises else copies.bytes,
        }
