"""The checks of chapter 03 that count bytes: model states, what autograd keeps, and the largest batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from course_lib.grading.checks.memory_mistakes import LARGEST_BATCH, SAVED_BYTES, STATES
from course_lib.grading.checks.memory_oracles import (
    Columns,
    Detached,
    Halves,
    Held,
    Reuse,
    Rows,
    Split,
    Twice,
    Watch,
    adapter,
    large,
    normed,
    stacked,
    tied,
)
from course_lib.grading.report import Report, check
from course_lib.models.gpt import Block, GPTConfig
from course_lib.observe.ledgers.saved import saved_tensors
from simulator.inputs.plan import Plan
from simulator.inputs.shape import MODELS
from simulator.predict.memory import plan_memory

# ---- 03.1: model states -----------------------------------------------------------------------------------


@check
def check_03_1(report: Report, model_state_bytes: Callable[[nn.Module], tuple[int, int, int]]) -> None:
    models = {
        "two linear layers and a batch norm": normed(),
        "a GPT whose embedding and output are tied": tied(frozen=False),
        "a frozen layer below a trained one": adapter(),
        "a GPT whose tied embedding is frozen": tied(frozen=True),
        "a model in bf16": normed().to(torch.bfloat16),
        "parameters that are views of one larger tensor": stacked(),
        "one parameter of one element": nn.Linear(1, 1, bias=False),
        "a model without parameters": nn.Tanh(),
        "a GPT as wide as GPT-3 on the device meta": large(),
        "one layer of a trillion parameters on the device meta": nn.Linear(
            10**6, 10**6, bias=False, device="meta"
        ),
    }
    for name, model in models.items():
        with report.case(name):
            every = sum(p.numel() for p in model.parameters())
            trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
            want = (2 * every, 2 * trained, 12 * trained)
            with Watch() as watch:
                got = model_state_bytes(model)
            report.equal(
                f"{want[0]:,} + {want[1]:,} + {want[2]:,} bytes",
                got,
                want,
                mistakes=STATES,
                given=(model,),
                task="How many bytes do its parameters, its gradients and its optimizer states take?",
            )
            target = "no tensor is made while counting"
            report.at_most("bytes of tensors made while counting", watch.bytes, 0, task=target)


# ---- 03.3: saved bytes ------------------------------------------------------------------------------------


@check
def check_03_3(report: Report, saved_bytes: Callable[..., int]) -> None:
    config = GPTConfig.tiny(num_layers=1, hidden_size=16, num_heads=2, dropout=0.1)
    resting = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).eval()
    one_frozen = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2))
    one_frozen[2].requires_grad_(False)
    cases = {
        "linear, tanh, linear": (nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)), (5, 6)),
        "the same, the last layer frozen": (one_frozen, (5, 6)),
        "linear, tanh, linear in bf16": (
            nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)).bfloat16(),
            (5, 6),
        ),
        "two layers that read one input": (Twice(), (3, 6)),
        "one column of a wide tensor": (Columns(), (7, 11)),
        "two parts of one tensor": (Split(), (4, 6)),
        "two parts of one weight": (Halves(), (2, 4)),
        "a buffer that is a part of a larger tensor": (Rows(), (4, 5)),
        "a detached parameter": (Detached(), (3, 5)),
        "a batch norm and a dropout in evaluation mode": (resting, (8, 4)),
        "one element": (nn.Tanh(), (1,)),
        "a layer that keeps nothing": (nn.Identity(), (2, 3)),
        "a GPT block with dropout": (Block(config), (2, 8, 16)),
    }

    def named(got: int, want: int) -> dict[str, Callable[..., int | None]]:
        return {**SAVED_BYTES, FREED: partial(_if_freed, saved_bytes, got, want)}

    task = "each storage counts once, with all of its bytes"
    with report.case("memory that is used again as soon as it is free"):
        model, x = Reuse(), torch.randn(8).requires_grad_()
        want = sum(place.nbytes for place in model.places)
        got = saved_bytes(model, x)
        report.equal(
            f"{want} bytes are kept", got, want, mistakes=named(got, want), given=(model, x), task=task
        )
    for name, (model, shape) in cases.items():
        with report.case(name):
            dtype = next((p.dtype for p in model.parameters()), torch.float32)
            x = torch.randn(shape).to(dtype).requires_grad_()
            want = sum(t.bytes for t in saved_tensors(model, x))
            modes = [(module, module.training) for module in model.modules()]
            forwards: list[int] = []
            handle = model.register_forward_hook(lambda *_, seen=forwards: seen.append(1))
            hooks = _hooks(model)
            with Watch() as watch:
                got = saved_bytes(model, x)
            left = _hooks(model)
            handle.remove()
            for module, mode in modes:  # an answer may have changed them
                module.training = mode
            with Watch() as plain:
                output = model(x)
            del output
            report.equal(
                f"{want:,} bytes are kept",
                got,
                want,
                mistakes=named(got, want),
                given=(model, x),
                task="each storage counts once, with all of its bytes",
            )
            task = "Hooks that are on the model stay there, and no others are left"
            report.true(left == hooks, "the model's hooks are as before", _told(hooks, left), task=task)
            report.at_most(
                "forward passes", len(forwards), 1, task="one forward pass, and no tensor is made besides"
            )
            more = max(0, watch.bytes - plain.bytes)
            task = "one forward pass, and no tensor is made besides"
            report.at_most("bytes of tensors made besides", more, 0, task=task)
    with report.case("a layer with two inputs"):
        model, pair = nn.Bilinear(3, 4, 5), (torch.randn(2, 3), torch.randn(2, 4))
        want = sum(t.bytes for t in saved_tensors(model, *pair))
        task = "Return how many bytes `model(*inputs)` keeps for its backward pass"
        report.equal(f"{want} bytes are kept", saved_bytes(model, *pair), want, task=task)
    with report.case("nothing that is trained"):
        frozen = nn.Sequential(nn.Linear(6, 9), nn.Tanh()).requires_grad_(False)
        task = "each storage counts once, with all of its bytes"
        report.equal("0 bytes are kept", saved_bytes(frozen, torch.randn(2, 6)), 0, task=task)


FREED = (
    "when kept tensors are freed during the forward pass, so that another one gets the same address and both count "
    "as one"
)


def _if_freed(
    saved_bytes: Callable[..., int], got: int, want: int, model: nn.Module, x: Tensor
) -> int | None:
    """What the answer gave, if it is right as soon as no tensor is freed; which address is used twice is chance."""
    modes = [(module, module.training) for module in model.modules()]
    with Held():
        kept = saved_bytes(model, x)
    for module, mode in modes:
        module.training = mode
    return got if kept == want else None


def _hooks(model: nn.Module) -> list[int]:
    """Identities of all hooks that a forward pass runs."""
    return [
        id(hook)
        for module in model.modules()
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
        for hook in hooks.values()
    ]


def _told(before: list[int], after: list[int]) -> str:
    return f"the model had {len(before)} hooks, and has {len(after)}, not all of them the same"


# ---- 03.5: the largest batch ------------------------------------------------------------------------------


@check
def check_03_5(report: Report, largest_batch: Callable[[Callable[[int], int], int], int]) -> None:
    for name, total, capacity in _cards(report):
        with report.case(name):
            calls = 0

            def bytes_of(batch: int, total: Callable[[int], int] = total) -> int:
                nonlocal calls
                calls += 1
                return total(batch)

            got = largest_batch(bytes_of, capacity)
            want = 0
            while total(want + 1) <= capacity:
                want += 1
            report.equal(
                "the largest batch that fits",
                got,
                want,
                mistakes=LARGEST_BATCH,
                given=(total(1), total(2), capacity),
                task="Return the largest batch whose step fits into `capacity` bytes, as a whole number",
            )
            report.at_most("calls", calls, 2, task="at most 2 calls of `bytes_of`")


def _cards(report: Report) -> list[tuple[str, Callable[[int], int], int]]:
    """Name, bytes of a step by batch, capacity: real models, then drawn numbers with the borders."""
    models = [
        ("gpt2-xl", Plan(), 80 * 10**9),
        ("gpt2", Plan(), 24 * 10**9),
        ("gpt2-xl", Plan(recompute="full"), 80 * 10**9),
        ("bert-large", Plan(precision="fp32", attention="flash"), 16 * 10**9),
        ("gpt2-xl", Plan(), 24 * 10**9),  # not even one
    ]
    cards = [
        (
            f"{name} ({plan.precision}, recompute {plan.recompute}) on {room / 1e9:.0f} GB",
            _totals(name, plan),
            room,
        )
        for name, plan, room in models
    ]
    draw = random.Random(report.seed())
    states, each, fits = draw.randrange(10**8, 10**10), draw.randrange(10**6, 10**8), draw.randrange(3, 90)

    def line(batch: int) -> int:
        if not isinstance(batch, int) or batch < 1:
            raise ValueError(f"bytes_of was called with {batch!r}; a batch is a whole number of at least 1.")
        return states + batch * each

    return [
        *cards,
        ("exactly full", line, line(fits)),
        ("one byte too few for one more", line, line(fits) - 1),
        ("exactly one sequence", line, line(1)),
        ("one byte too few for one sequence", line, line(1) - 1),
        ("less than the model states", line, states // 3),
    ]


def _totals(name: str, plan: Plan) -> Callable[[int], int]:
    """Bytes at the peak of a step, by the batch, which has to be a whole number of at least 1."""
    return lambda batch: round(plan_memory(MODELS[name], replace(plan, micro_batch=batch))[0].total)
