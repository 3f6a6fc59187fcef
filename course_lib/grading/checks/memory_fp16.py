"""A small GPT that makes steps in fp16 with ``torch.autocast`` and ``GradScaler``, right or with one slip: 03.4."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.memory import record_memory
from course_lib.training.loop import cross_entropy

CONFIG = GPTConfig.tiny(num_layers=1, hidden_size=32, num_heads=2, max_length=16, vocab_size=64)


@dataclass(frozen=True)
class Batch:
    """So many sequences, ``micro`` at a time, and how the step is to be made."""

    sequences: int
    micro: int
    max_norm: float
    frozen: bool = False
    scale: float = 2.0**10


class Scaler(torch.amp.GradScaler):
    """Counts its updates."""

    updates = 0

    def update(self, *args: Any, **kwargs: Any) -> None:
        self.updates += 1
        super().update(*args, **kwargs)


class LossTypes(TorchDispatchMode):
    """Notes the type of what a loss is computed from: in this model nothing else takes a log-softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func._schema.name in ("aten::_log_softmax", "aten::logsumexp"):
            self.seen.add(str(args[0].dtype).removeprefix("torch."))
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Played:
    """What came of some steps: how far each parameter moved, and what else could be seen."""

    moved: Tensor
    losses: list[Any]
    scales: list[float]
    forwards: list[tuple[int, torch.dtype]]  # sequences, and the type of a linear layer's output
    activations: int  # bytes at the peak
    losses_in: list[str]  # the types of the logits from which a loss was computed
    forgotten: bool  # a step ended without an update of the scaler; it was the last one played


@contextmanager
def one_thread() -> Iterator[None]:
    """Operators on tensors this small take longer on several threads, and very long where the cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def play_fp16(
    step: Callable[..., Any], batch: Batch, seed: int, steps: int = 3, watch: str | None = "loss types"
) -> Played:
    """Make some steps on drawn tokens, each on other ones; gradients of earlier work are there at the start.

    Args:
        watch: "loss types", "memory", or None, which is faster: what ``Played`` says of the other is empty.
    """
    with torch.random.fork_rng(), one_thread():
        torch.manual_seed(seed)
        model = GPT(CONFIG)
        model.embedding.requires_grad_(not batch.frozen)
        shape = (steps, batch.sequences, CONFIG.max_length)
        tokens, targets = torch.randint(CONFIG.vocab_size, (2, *shape))
        # The parts have unlike losses: the head is tied, so a token that follows itself is easier to predict.
        targets[:, : batch.micro] = tokens[:, : batch.micro]
        for p in model.parameters():
            p.grad = 0.1 * batch.scale * torch.randn_like(p)
        start = torch.cat([p.detach().flatten() for p in model.parameters()])
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        scaler = Scaler("cpu", init_scale=batch.scale, growth_interval=2)
        forwards: list[tuple[int, torch.dtype]] = []
        model.blocks[0].mlp.up.register_forward_hook(
            lambda module, args, output: forwards.append((len(output), output.dtype))
        )
        losses, scales, forgotten = [], [], False
        watcher = {"memory": lambda: record_memory(model, optimizer), "loss types": LossTypes}.get(
            watch, nullcontext
        )
        with watcher() as log:
            for i in range(steps):
                if forgotten := scaler.updates < i:
                    break
                loss = step(model, optimizer, scaler, tokens[i], targets[i], batch.micro, batch.max_norm)
                losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
                scales.append(scaler.get_scale())
    moved = torch.cat([p.detach().flatten() for p in model.parameters()]) - start
    activations = max(held.activations for held in log.held) if watch == "memory" else 0
    types = sorted(log.seen) if watch == "loss types" else []
    return Played(moved, losses, scales, forwards, activations, types, forgotten)


FP16 = {
    "when the losses of the parts are added up and not averaged": "sum",
    "when every part counts the same, however many sequences it has": "parts",
    "when the mean loss of a part is divided by `micro`": "micro",
    "when the gradients are clipped while they are still multiplied by the scale": "clip",
    "when the gradients are not clipped": "none",
    "when each parameter's gradient is clipped alone, and not all together": "each",
    "when each part's gradients are clipped before those of the next are added": "clip parts",
    "when the gradients of the step before are still there": "keep",
    "when a gradient that a frozen parameter has from earlier work counts in the norm": "old frozen",
    "when the optimizer makes an update after every part": "every",
    "when the gradients are set to zero before every part, so that only the last part's are used": "last",
}


LOSSES = {
    "when the loss of the last part is returned": "last loss",
    "when the share of the last part in the loss is returned": "last share",
    "when the loss of the whole batch is divided by the number of parts before it is returned": "divided",
    "when what is returned is the sum of the losses of the parts, and not their mean": "sum of losses",
    "when every part counts the same in the loss, however many sequences it has": "mean of losses",
    "when the loss is returned multiplied by the scale": "scaled loss",
}


def right_step(slip: str = "") -> Callable[..., float]:
    """The step of exercise 03.4, right or with one slip."""

    def step(
        model: Any,
        optimizer: Any,
        scaler: Any,
        tokens: Tensor,
        targets: Tensor,
        micro: int,
        max_norm: float,
    ) -> float:
        scale = scaler.get_scale()
        if slip == "old frozen":
            optimizer.zero_grad()
        elif slip != "keep":
            model.zero_grad()
        total, losses, each = 0.0, [], []
        parts = list(zip(tokens.split(micro), targets.split(micro), strict=True))

        def clip() -> None:
            if slip != "clip":
                scaler.unscale_(optimizer)
            for some in [[p] for p in model.parameters()] if slip == "each" else [model.parameters()]:
                if slip != "none":
                    clip_grad_norm_(some, max_norm)

        for x, y in parts:
            if slip == "last":
                optimizer.zero_grad()
            share = {"sum": 1.0, "parts": 1 / len(parts), "micro": 1 / micro}.get(slip, len(x) / len(tokens))
            with torch.autocast("cpu", torch.float16):
                logits = model(x)
            mean = cross_entropy(logits.float(), y)
            each.append(mean.detach())
            loss = share * mean
            total += loss.item()
            if slip == "joined":
                losses.append(loss)
                continue
            scaler.scale(loss).backward()
            if slip == "clip parts":
                clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
            if slip == "every":
                clip()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        if losses:
            scaler.scale(sum(losses)).backward()
        if slip != "every":
            clip()
            if slip == "direct":
                optimizer.step()
            else:
                scaler.step(optimizer)
            scaler.update()
        returned = {
            "last loss": each[-1],
            "last share": loss.detach(),
            "divided": total / len(parts),
            "sum of losses": sum(each),
            "mean of losses": sum(each) / len(each),
            "scaled loss": total * scale,
        }
        return float(returned.get(slip, total))

    return step
