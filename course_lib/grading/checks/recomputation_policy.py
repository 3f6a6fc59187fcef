"""The check of 08.4: PyTorch's selective checkpoint on real blocks, with kept bytes and repeated FLOPs counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, combinations

import torch
from torch import Tensor, nn

from course_lib.grading.checks.recomputation_checkpoint import Alive
from course_lib.grading.report import Report, check
from course_lib.models.bert import BertConfig, BertLayer
from course_lib.models.gpt import Block, GPTConfig
from course_lib.observe.ledgers.products import Product, RecordProducts, repeated_products

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


def _least_flops(products: Sequence[Product], budget: int) -> int:
    """FLOPs that are repeated at least, of all choices whose results fit the budget."""
    fitting = [kept for kept in _sets(products) if sum(p.bytes for p in kept) <= budget]
    return sum(p.flops for p in products) - max(sum(p.flops for p in kept) for kept in fitting)


def _in_order(products: Sequence[Product], budget: int) -> int:
    """FLOPs repeated where products are kept from the first on, as long as they fit."""
    again = 0
    for product in products:
        if product.bytes <= budget:
            budget -= product.bytes
        else:
            again += product.flops
    return again


@check
def check_08_4(report: Report, run_block: RunBlock) -> None:
    torch.manual_seed(report.seed())
    models = {
        "GPT, 256 tokens, hidden 64": _gpt(64, 256),
        "GPT, 32 tokens, hidden 128": _gpt(128, 32),
        "BERT, 64 tokens, hidden 96": _bert(96, 64),
    }
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
            with report.case(f"{name}, {what}"):
                _try(report, run_block, blocks, torch.randn(shape), products, budget)


def _try(
    report: Report,
    run_block: RunBlock,
    blocks: Sequence[nn.Module],
    x: Tensor,
    products: list[Product],
    budget: int,
) -> None:
    """Both blocks, one behind the other; each has the budget to itself."""
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
    task = "After forward, a block keeps at most `budget` bytes besides `x` and the result."
    if kept > budget:
        every = sum(p.bytes for p in products)
        facts = f"a block keeps {kept:,} bytes, and the budget is {budget:,}"
        if kept > every:
            facts += f"\n(all of `products` together are {every:,} bytes, so something else is kept, too)"
        report.fail(facts, task=task)
    report.ok("the bytes kept by a block are within the budget")
    least = _least_flops(products, budget)
    report.at_most(
        "FLOPs of matrix products repeated by both blocks",
        sum(p.flops for p in record.products),
        2 * least,
        mistakes={
            "when every product is repeated": 2 * sum(p.flops for p in products),
            "when products are kept from the first on, as long as they fit": 2 * _in_order(products, budget),
        },
        task="The FLOPs of the products that run again are the fewest of all choices within the budget.",
    )
