"""Steps of a small GPT in fp16, for the check of exercise 03.4."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.grading.judge import record
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.runtime import settings

CONFIG = GPTConfig.tiny(num_layers=1, hidden_size=32, num_heads=2, max_length=16, vocab_size=64)

Case = record(
    "sequences micro",
    lambda c: f"{c.sequences} sequences, {c.micro} at a time{c.remark}",
    max_norm=1e6,
    frozen=False,
    scale=2.0**10,
    remark="",
    peak=False,
)


class Scaler(torch.amp.GradScaler):
    """Counts its updates."""

    updates = 0

    def update(self, *args, **kwargs) -> None:
        self.updates += 1
        super().update(*args, **kwargs)


class LossTypes(TorchDispatchMode):
    """Notes the type of what a loss is computed from: in this model nothing else takes a log-softmax."""

    def __init__(self, *_) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args: tuple = (), kwargs: dict | None = None):
        if func._schema.name in ("aten::_log_softmax", "aten::logsumexp"):
            self.seen.add(str(args[0].dtype).removeprefix("torch."))
        return func(*args, **(kwargs or {}))


def play(step, case: Case, watch, steps: int = 2) -> dict:
    """Make some steps on drawn tokens, each on other ones; gradients of earlier work are there at the start."""
    with settings.kept():
        torch.set_num_threads(1)  # with several, tensors this small wait for busy cores
        torch.manual_seed(case.seed)
        model = GPT(CONFIG)
        model.embedding.requires_grad_(not case.frozen)
        tokens, targets = torch.randint(CONFIG.vocab_size, (2, steps, case.sequences, CONFIG.max_length))
        # The parts have unlike losses: the head is tied, so a token that follows itself is easier to predict.
        targets[:, : case.micro] = tokens[:, : case.micro]
        for p in model.parameters():
            p.grad = 0.1 * case.scale * torch.randn_like(p)
        start = torch.cat([p.detach().flatten() for p in model.parameters()])
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        scaler, forwards, losses, scales = Scaler("cpu", init_scale=case.scale, growth_interval=2), [], [], []
        model.blocks[0].mlp.up.register_forward_hook(
            lambda m, x, y: forwards.append((len(y), str(y.dtype)[6:]))
        )
        with watch(model, optimizer) as log:
            for i in range(steps):
                loss = step(model, optimizer, scaler, tokens[i], targets[i], case.micro, case.max_norm)
                losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
                scales.append(scaler.get_scale())
                if scaler.updates <= i:
                    break
        moved = torch.cat([p.detach().flatten() for p in model.parameters()]) - start
    found = {"moved": moved, "losses": losses, "scales": scales, "forwards": forwards, "log": log}
    return found | {"forgotten": scaler.updates < steps}
