"""How long each module works, forward and backward, by the clock."""

from __future__ import annotations

import copy
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course_lib.observe.ledgers.module_calls import ModuleCalls
from course_lib.one_device.nested_tensors import tensors_in


class ModuleSeconds(NamedTuple):
    """Of one step, with all modules inside."""

    forward: float = 0.0
    backward: float = 0.0


def module_seconds(model: nn.Module, *inputs: Any, repeats: int = 5) -> dict[str, ModuleSeconds]:
    """Seconds of every module by its dotted name, in the median of ``repeats`` steps after one that is not counted.

    All figures are of one step: the one in the middle, when the steps are ordered by their time. A step is
    ``model(*inputs)`` and the backward of the sum of all that it returns. Forward is the time from the call of a module
    to its return. Backward is the time of all autograd nodes that the module's forward has made. On a GPU the device is
    waited for around each of them, so nothing overlaps, and the parts add up.

    Args:
        model: any module; it stays as it is (a copy runs, in the same mode).

    Raises:
        ValueError: fewer than 1 repeat.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be 1 or more, not {repeats}")
    model = copy.deepcopy(model)
    steps = []
    with torch.random.fork_rng(sorted({p.device.index for p in model.parameters() if p.is_cuda})):
        for _ in range(repeats + 1):
            model.zero_grad()
            steps.append(_one_step(model, inputs))
    steps = sorted(steps[1:], key=lambda step: step[0][""] + step[1][""])
    forward, backward = steps[len(steps) // 2]
    return {name: ModuleSeconds(forward[name], backward[name]) for name, _ in model.named_modules()}


def _one_step(model: nn.Module, inputs: tuple) -> tuple[Counter[str], Counter[str]]:
    clock = _clock_of(model)
    forward: Counter[str] = Counter()
    backward: Counter[str] = Counter()
    starts: dict[str, list[float]] = defaultdict(list)
    with ModuleCalls(model) as calls, ExitStack() as hooks:
        for name, module in model.named_modules():
            before = module.register_forward_pre_hook(lambda *_, name=name: starts[name].append(clock()))
            after = module.register_forward_hook(lambda *_, name=name: _add(forward, name, clock(), starts))
            hooks.callback(before.remove)
            hooks.callback(after.remove)
        outputs = [t for t in tensors_in(model(*inputs)) if t.requires_grad]
        for node in nodes_behind(outputs):
            started: list[float] = []
            modules = calls.of(node)

            def end(*_: Any, started: list[float] = started, modules: frozenset[str] = modules) -> None:
                seconds = clock() - started.pop()
                backward.update(dict.fromkeys(modules, seconds))

            node.register_prehook(lambda *_, started=started: started.append(clock()))
            node.register_hook(end)
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
    for name, _ in model.named_modules():  # a container that is never called takes as long as what is in it
        if name not in forward:
            inside = {n for n in forward if not name or n.startswith(f"{name}.")}
            top = {n for n in inside if not any(n.startswith(f"{other}.") for other in inside)}
            forward[name] = sum(forward[n] for n in top)
    return forward, backward


def nodes_behind(outputs: list[Tensor]) -> list[torch.autograd.graph.Node]:
    """All nodes of the graph that backward from these tensors walks, each once."""
    found, stack = [], [t.grad_fn for t in outputs]
    seen = set(stack)
    while stack:
        node = stack.pop()
        found.append(node)
        new = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= new
        stack += new
    return found


def _add(into: Counter[str], name: str, now: float, starts: dict[str, list[float]]) -> None:
    into[name] += now - starts[name].pop()


def _clock_of(model: nn.Module) -> Any:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if device.type != "cuda":
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock
