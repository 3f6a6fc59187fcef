"""The checks of chapter 03: bytes counted by hand, by hooks and by formula; a scaler and an optimizer in steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from course_lib.grading.checks.memory_oracles import (
    SCRIPT,
    Columns,
    Twice,
    Watch,
    adamw,
    adapter,
    by_hooks,
    forgetful,
    normed,
    play,
    reference,
    scales_with,
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
        "a trillion parameters": nn.Linear(10**6, 10**6, bias=False, device="meta"),
    }
    for name, model in models.items():
        report.case(name)
        every = sum(p.numel() for p in model.parameters())
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        named = [p for _, p in model.named_parameters(remove_duplicate=False)]
        twice = sum(p.numel() for p in named)
        twice_trained = sum(p.numel() for p in named if p.requires_grad)
        buffers = sum(b.numel() for b in model.buffers())
        with Watch() as watch:
            got = model_state_bytes(model)
        got = tuple(got) if isinstance(got, list) else got
        want = (2 * every, 2 * trained, 12 * trained)
        mistakes = {
            "frozen parameters have neither gradients nor states.": (2 * every, 2 * every, 12 * every),
            "frozen parameters are left out; they are there to compute with.": (
                2 * trained,
                2 * trained,
                12 * trained,
            ),
            "a tied parameter is counted under each of its names; it is one tensor.": (
                2 * twice,
                2 * twice_trained,
                12 * twice_trained,
            ),
            "the fp32 masters are missing: two moments are only 8 bytes.": (
                2 * every,
                2 * trained,
                8 * trained,
            ),
            "gradients have 16 bits, as the parameters have.": (2 * every, 4 * trained, 12 * trained),
            "buffers are no parameters.": (2 * (every + buffers), 2 * trained, 12 * trained),
        }
        millions = f"{want[0]:,} + {want[1]:,} + {want[2]:,} bytes"
        report.equal(millions, got, want, mistakes=mistakes)
        likely = "numel() is known without building anything; a model of this kind would not fit."
        report.at_most("bytes of tensors made while counting", watch.bytes, 0, likely=likely)


# ---- 03.2: loss scaling -----------------------------------------------------------------------------------


@check
def check_03_2(report: Report, scaled_step: Callable[..., bool]) -> None:
    for interval, shapes in ((3, [(3, 2), (5,)]), (2, [(4,), (2, 3), (1,)]), (5, [(6,)])):
        report.case(f"interval {interval}, {len(shapes)} tensor{'s' * (len(shapes) > 1)}")
        path, scales, returned, most = play(scaled_step, interval, shapes)
        report.true(
            bool(path.isfinite().all()),
            f"{SCRIPT.count('x')} of {len(SCRIPT)} steps overflow, and every parameter stays finite",
            "a parameter is not finite",
            "a step that overflowed has to be skipped: no update at all.",
        )
        right = play(reference(), interval, shapes)
        slips = {
            "clip": "clipped before the scale was divided out: max_norm is meant for the true gradients.",
            "unscale": "the gradients are still multiplied by the scale when they are clipped.",
            "none": "the norm is not clipped to max_norm.",
            "momentum": "a skipped step still moved the weights: the optimizer stepped on gradients of zero.",
        }
        report.equal(
            "the scale after each step",
            scales,
            right[1],
            mistakes={
                "an overflow ends the row of good steps: the count starts again at 0.": scales_with(
                    interval, "keep"
                ),
                "after the scale has doubled the count starts again at 0.": scales_with(interval, "again"),
                "one step late: it grows when `interval` good steps are done.": scales_with(interval, "late"),
            },
        )
        report.close(
            "the parameters after each step",
            path,
            right[0],
            mistakes={hint: play(reference(s), interval, shapes)[0] for s, hint in slips.items()},
        )
        report.equal("what it returns", [bool(r) for r in returned], right[2])
        likely = "the norm of all gradients is finite only if each of them is; ask for that one."
        report.at_most("numbers that the CPU asked for in a step", most, 1, likely=likely)


# ---- 03.3: saved bytes ------------------------------------------------------------------------------------


@check
def check_03_3(report: Report, saved_bytes: Callable[..., int]) -> None:
    torch.manual_seed(0)
    config = GPTConfig.tiny(num_layers=1, hidden_size=16, num_heads=2, dropout=0.1)
    cases = {
        "linear, tanh, linear": (nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)), (5, 6)),
        "two layers that read one input": (Twice(), (3, 6)),
        "one column of a wide tensor": (Columns(), (7, 11)),
        "a batch norm that is not training": (
            nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).eval(),
            (8, 4),
        ),
        "a GPT block with dropout": (Block(config), (2, 8, 16)),
    }
    for name, (model, shape) in cases.items():
        report.case(name)
        x = torch.randn(shape, requires_grad=True)
        want = sum(t.bytes for t in saved_tensors(model, x))
        with Watch() as plain:
            model(x)
        forwards = []
        handle = model.register_forward_hook(lambda *_, forwards=forwards: forwards.append(1))
        with Watch() as watch:
            got = saved_bytes(model, x)
        handle.remove()
        slips = {
            "one storage is counted for each operator that keeps it: count it once.": (False, False, False),
            "parameters or buffers are counted: they are there anyway.": (True, True, False),
            "parameters, and what several operators keep, once for each.": (False, True, False),
            "a view is counted; it keeps the whole storage alive.": (True, False, True),
        }
        mistakes = {
            hint: by_hooks(model, (x,), once=once, own=own, views=views)
            for hint, (once, own, views) in slips.items()
        }
        report.equal(f"{want:,} bytes are kept", got, want, mistakes=mistakes)
        report.at_most("forwards", len(forwards), 1, likely="one forward calls `pack` for everything.")
        more = max(0, watch.bytes - plain.bytes)
        report.at_most(
            "bytes made by looking", more, 0, likely="`pack` may return the tensor itself: no clone."
        )


# ---- 03.4: AdamW ------------------------------------------------------------------------------------------


@check
def check_03_4(report: Report, adamw_step: Callable[..., None]) -> None:
    draw = torch.Generator().manual_seed(4)
    cases = [
        ((7, 3), {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-2, "weight_decay": 0.3}),
        ((5,), {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-1, "weight_decay": 0.1}),
        ((2, 1, 4), {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}),
    ]
    hints = {
        "bias": "m and v start at 0 and are too small at first: divide by 1 - beta^t.",
        "inside": "eps stands outside the root.",
        "coupled": "this is Adam with the decay in the gradient; AdamW shrinks the weight itself.",
        "no decay": "the weight does not decay.",
    }
    for shape, settings in cases:
        report.case(f"shape {shape}, weight decay {settings['weight_decay']}")
        start = torch.randn(shape, generator=draw)
        gradients = [torch.randn(shape, generator=draw) for _ in range(6)]
        official = nn.Parameter(start.clone())
        optimizer = torch.optim.AdamW([official], **settings)
        w, state = start.clone(), {}
        for g in gradients:
            official.grad = g.clone()
            optimizer.step()
            mine = g.clone()
            adamw_step(w, mine, state, **settings)
            if not mine.equal(g):
                report.fail("the gradient has changed", "work on new tensors: g belongs to the caller.")
        mistakes = {hint: adamw(start, gradients, slip, **settings) for slip, hint in hints.items()}
        mistakes["w is as it was: `w = w - …` makes a new tensor; write into it (`w -= …`)."] = start
        mistakes["every step begins anew: keep m, v and t in `state`."] = forgetful(
            start, gradients, settings
        )
        report.close(
            f"equal to torch.optim.AdamW after {len(gradients)} steps",
            w,
            official.detach(),
            mistakes=mistakes,
        )
        kept = [t for t in tree_leaves(state) if isinstance(t, Tensor) and t.numel() > 1]
        size = sum(t.untyped_storage().nbytes() for t in kept) // start.numel()
        likely = "m, v and the step are enough: the rest can be computed again."
        report.at_most("bytes in `state` for each parameter", size, 8, likely=likely)


# ---- 03.5: the largest batch ------------------------------------------------------------------------------


@check
def check_03_5(report: Report, largest_batch: Callable[[Callable[[int], float], float], int]) -> None:
    cases = [
        ("gpt2-xl", Plan(), 80e9),
        ("gpt2", Plan(), 24e9),
        ("gpt2-xl", Plan(recompute="full"), 80e9),
        ("bert-large", Plan(precision="fp32", attention="flash"), 16e9),
        ("gpt2-xl", Plan(), 24e9),
    ]
    for name, plan, capacity in cases:
        what = f"{plan.precision}, {plan.attention}, recompute {plan.recompute}"
        report.case(f"{name} ({what}) on {capacity / 1e9:.0f} GB")
        exact = _totals(name, plan)
        calls = 0

        def bytes_of(batch: int, exact: Callable[[int], float] = exact) -> float:
            nonlocal calls
            calls += 1
            return exact(batch)

        want = 0
        while exact(want + 1) <= capacity:
            want += 1
        got = largest_batch(bytes_of, capacity)
        if isinstance(got, int | float) and not isinstance(got, bool) and got == int(got):
            got = int(got)
        each = exact(2) - exact(1)
        line = (capacity - exact(1) + each) / each
        mistakes = {
            "not even one sequence fits: 0, not a negative number.": int(line // 1),
            "the model states are counted for every sequence: they are there once.": int(
                capacity // exact(1)
            ),
            "the model states take room too.": int(capacity // each),
            "one too many: this one does not fit any more.": want + 1,
            "one too few: this one and one more fit.": want - 1,
        }
        report.equal(f"the largest batch is {want}", got, want, mistakes=mistakes)
        report.at_most(
            "calls", calls, 2, likely="two points give a straight line: no need to try one after the other."
        )


def _totals(name: str, plan: Plan) -> Callable[[int], float]:
    """Bytes at the peak of a step, by the batch, which has to be a whole number of at least 1."""
    return lambda batch: plan_memory(MODELS[name], replace(plan, micro_batch=batch))[0].total
