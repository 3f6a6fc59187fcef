"""The check of 08.4: PyTorch's selective checkpoint on real blocks, with kept bytes and repeated FLOPs counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, combinations
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils.checkpoint as torchs
from torch import Tensor, nn

from course_lib.grading.alive import Alive
from course_lib.grading.checks.recomputation_counted import Counted, state_targets
from course_lib.grading.report import Report, check
from course_lib.models.bert import BertConfig, BertLayer
from course_lib.models.gpt import Block, GPTConfig
from course_lib.observe.ledgers.products import Product, RecordProducts, repeated_products

FIRST_CALLS = "when the first calls of an operator are kept, as many as were chosen, and not the chosen ones"
RunBlock = Callable[[nn.Module, Tensor, list[Product], int], Tensor]


def _gpt(hidden: int, seq: int) -> tuple[list[nn.Module], tuple[int, ...]]:
    config = GPTConfig(num_layers=1, num_heads=4, hidden_size=hidden, max_length=seq)
    return [Block(config), Block(config)], (2, seq, hidden)


def _bert(hidden: int, seq: int) -> tuple[list[nn.Module], tuple[int, ...]]:
    config = BertConfig(
        hidden_size=hidden,
        num_attention_heads=4,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return [BertLayer(config), BertLayer(config)], (2, seq, hidden)


def _sets(products: Sequence[Product]) -> list[tuple[Product, ...]]:
    return list(chain.from_iterable(combinations(products, n) for n in range(len(products) + 1)))


def _fitting(products: Sequence[Product], budget: int) -> list[tuple[Product, ...]]:
    return [kept for kept in _sets(products) if sum(p.bytes for p in kept) <= budget]


def _least_flops(products: Sequence[Product], budget: int) -> int:
    """FLOPs that are repeated at least, of all choices whose results fit the budget."""
    return sum(p.flops for p in products) - sum(p.flops for p in _best(products, budget))


def _best(products: Sequence[Product], budget: int) -> tuple[Product, ...]:
    return max(_fitting(products, budget), key=lambda kept: sum(p.flops for p in kept))


def _first_calls(products: Sequence[Product], budget: int) -> list[Product]:
    """What is kept where a policy counts, for each operator, how many calls were chosen, and not which ones."""
    left, kept = Counter(p.op for p in _best(products, budget)), []
    for product in products:
        if left[product.op]:
            left[product.op] -= 1
            kept.append(product)
    return kept


def _in_order(products: Sequence[Product], budget: int) -> int:
    """FLOPs repeated where products are kept from the first of the list on, as long as they fit."""
    again = 0
    for product in products:
        if product.bytes <= budget:
            budget -= product.bytes
        else:
            again += product.flops
    return again


def _dense_first(products: Sequence[Product], budget: int) -> int:
    return _in_order(sorted(products, key=lambda p: -p.flops / p.bytes), budget)


def _large_first(products: Sequence[Product], budget: int) -> int:
    return _in_order(sorted(products, key=lambda p: -p.flops), budget)


def _too_much(
    block: nn.Module, x: Tensor, products: list[Product], budget: int
) -> dict[str, Callable[[], int]]:
    """Bytes kept where the choice is right, and the policy keeps other calls with it."""
    record = RecordProducts()
    with torch.no_grad(), record.forward_of(block), record:
        block(x.detach())
    calls = record.products
    best = _best(products, budget)
    chosen, operators = sum(p.bytes for p in best), {p.op for p in best}
    return {
        "when a policy keeps every call of an operator, and not only the chosen calls": lambda: sum(
            p.bytes for p in calls if p.op in operators
        ),
        "when calls after the last one of `products` are kept, too": lambda: (
            chosen + sum(p.bytes for p in calls[len(products) :])
        ),
        FIRST_CALLS: lambda: sum(p.bytes for p in _first_calls(products, budget)),
    }


@contextmanager
def _asked_again(answers: dict[bool, list]) -> Iterator[None]:
    """Have PyTorch call the policy in backward, too, as some of its versions do; ``answers`` gets what it said."""
    first, second = torchs._CachingTorchDispatchMode, torchs._CachedTorchDispatchMode
    originals = first.__init__, second.__init__, second.__torch_dispatch__
    asked: list[Callable] = []

    def noted(policy: Callable) -> Callable:
        def note(ctx: Any, *args: Any, **kwargs: Any) -> Any:
            answer = policy(ctx, *args, **kwargs)
            answers[ctx.is_recompute].append((args[0], answer))
            return answer

        return note

    def begin(self: Any, policy: Callable, *args: Any, **kwargs: Any) -> None:
        asked.append(noted(policy))
        originals[0](self, asked[-1], *args, **kwargs)

    def begin_again(self: Any, policy: Callable | None, *args: Any, **kwargs: Any) -> None:
        originals[1](self, policy and asked[-1], *args, **kwargs)

    def dispatch(self: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        before = len(answers[True])
        result = originals[2](self, func, types, args, kwargs)
        if len(answers[True]) == before and func not in torchs.SAC_IGNORED_OPS:
            asked[-1](SimpleNamespace(is_recompute=True, op_output=result), func, *args, **(kwargs or {}))
        return result

    first.__init__, second.__init__, second.__torch_dispatch__ = begin, begin_again, dispatch
    try:
        yield
    finally:
        first.__init__, second.__init__, second.__torch_dispatch__ = originals


def _answers_stay(
    report: Report, run_block: RunBlock, block: nn.Module, shape: tuple, products: list
) -> None:
    x, answers = torch.randn(shape, requires_grad=True), {False: [], True: []}
    with _asked_again(answers):
        run_block(block, x, list(products), sum(p.bytes for p in products) // 2).sum().backward()
    changed = [(*one, two[1]) for one, two in zip(answers[False], answers[True], strict=False) if one != two]
    op, then, now = changed[0] if changed else (None, None, None)
    saves = tuple(any(_saves(answer) for _, answer in answers[again]) for again in (False, True))
    report.true(
        not changed,
        "the policy answers the same in backward",
        f"for a call of {op} the policy answers {then} in forward and {now} in backward",
        got=saves,
        mistakes={
            "when the calls of backward are counted on from those of forward, and not from 0": (True, False)
        },
        given=(),
        task="it must give the same answers then.",
    )


def _saves(answer: Any) -> bool:
    return answer in (torchs.CheckpointPolicy.MUST_SAVE, torchs.CheckpointPolicy.PREFER_SAVE)


@check
def check_08_4(report: Report, run_block: RunBlock) -> None:
    torch.manual_seed(report.seed())
    models = {
        "GPT, 256 tokens, hidden 64": _gpt(64, 256),
        "GPT, 32 tokens, hidden 128": _gpt(128, 32),
        "BERT, 64 tokens, hidden 96": _bert(96, 64),
    }
    repeated = []
    for name, (blocks, shape) in models.items():
        products = repeated_products(blocks[0], torch.randn(shape))
        sizes = [p.bytes for p in products]
        budgets = {
            "half of the products": sum(sizes) // 2,
            "all products, exactly": sum(sizes),
        }
        if name.startswith("GPT"):
            budgets |= {"no budget": 0, "exactly one product": max(sizes[:4])}
        for what, budget in budgets.items():
            case = f"{name}, {what}"
            with report.case(case):
                again = _try(report, run_block, blocks, torch.randn(shape), products, budget)
                repeated.append(_counted(case, again, products, budget, first=not repeated))
    with report.case("a PyTorch that calls the policy again in backward"):
        blocks, shape = models["GPT, 32 tokens, hidden 128"]
        _answers_stay(report, run_block, blocks[0], shape, repeated_products(blocks[0], torch.randn(shape)))
    if repeated:
        state_targets(
            report,
            "FLOPs of matrix products repeated by both blocks",
            repeated,
            "The FLOPs of the products that run again are the fewest of all choices within the budget.",
        )


def _try(
    report: Report,
    run_block: RunBlock,
    blocks: Sequence[nn.Module],
    x: Tensor,
    products: list[Product],
    budget: int,
) -> int:
    """Both blocks, one behind the other; each has the budget to itself. The FLOPs that both repeat."""
    x.requires_grad_()
    weights = [w for block in blocks for w in block.parameters()]
    record, kept, y = RecordProducts(), 0, x
    for block in blocks:
        before = y
        with Alive(before, *weights) as alive:
            y = run_block(block, before, list(products), budget)
            if not isinstance(y, Tensor):
                report.fail(
                    f"the result is {type(y).__name__}, not a tensor", task="Return what `block(x)` returns."
                )
            kept = max(kept, alive.now - y.untyped_storage().nbytes())
    gradient = torch.randn_like(y)
    with record.forward_of(blocks[0]), record.forward_of(blocks[1]), record:
        gradients = torch.autograd.grad(y, [x, *weights], gradient, allow_unused=True)
    z = x
    for block in blocks:
        z = block(z)
    report.close("the result", y.detach(), z.detach(), task="Return what `block(x)` returns.")
    want = torch.autograd.grad(z, [x, *weights], gradient, allow_unused=True)
    if missing := sum(g is None for g in gradients):
        report.fail(f"{missing} of {len(gradients)} tensors have no gradient")
    worst = max((g - w).abs().max() / (1 + w.abs().max()) for g, w in zip(gradients, want, strict=True))
    report.true(bool(worst < 1e-4), "the gradients of x and of the weights", "a gradient is wrong")
    every = sum(p.bytes for p in products)
    more = f"\n(all of `products` together are {every:,} bytes, so something else is kept, too)"
    report.true(
        kept <= budget,
        "the bytes kept by a block are within the budget",
        f"a block keeps {kept:,} bytes, and the budget is {budget:,}" + (more if kept > every else ""),
        got=kept,
        mistakes=_too_much(blocks[0], x, products, budget),
        given=(),
        task="After forward, a block keeps at most `budget` bytes besides `x` and the result.",
    )
    return sum(p.flops for p in record.products)


def _counted(case: str, again: int, products: Sequence[Product], budget: int, first: bool) -> Counted:
    mistakes = {s: lambda program=program: 2 * program(products, budget) for s, program in MISTAKES.items()}
    least, every = _least_flops(products, budget), sum(p.flops for p in products)
    counted_on = "when calls are counted on from block to block, and not from 0 for each block"
    mistakes[counted_on] = lambda: least + every if first else 2 * every  # the first block of all is right
    return Counted(case, again, 2 * least, mistakes)


MISTAKES: dict[str, Callable[[Sequence[Product], int], int]] = {
    "when every product is repeated": lambda products, budget: sum(p.flops for p in products),
    "when products are kept from the first on, as long as they fit": _in_order,
    "when the product with the most FLOPs for a byte is always kept first": _dense_first,
    "when the product with the most FLOPs is always kept first": _large_first,
    "when products that fill the budget exactly are not kept": lambda products, budget: _least_flops(
        products, max(0, budget - 1)
    ),
    FIRST_CALLS: lambda products, budget: (
        sum(p.flops for p in products) - sum(p.flops for p in _first_calls(products, budget))
    ),
}
