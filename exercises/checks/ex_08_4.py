"""08.4: PyTorch's selective checkpoint on real blocks, with kept bytes and repeated FLOPs counted."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint as torchs
from torch import Tensor, nn

from course_lib.grading.alive import Alive
from course_lib.grading.judge import Fact
from course_lib.models.bert import BertConfig, BertLayer
from course_lib.models.gpt import Block, GPTConfig
from course_lib.observe.ledgers.products import Product, RecordProducts, repeated_products

FACTS = {
    "tensor": Fact("what is returned", "Return what `block(x)` returns."),
    "result": Fact("the result", "Return what `block(x)` returns.", tolerance=1e-5),
    "gradients": Fact("the gradient of {}", tolerance=1e-4),
    "kept": Fact("bytes", "After forward, a block keeps at most `budget` bytes besides `x` and the result."),
    "answers": Fact("the policy", "it must give the same answers then."),
    "flops": Fact(
        "FLOPs of matrix products repeated beyond the fewest",
        "The FLOPs of the products that run again are the fewest of all choices within the budget.",
        most=0,
        beyond=True,
    ),
}
FINE = {"tensor": "", "result": "", "gradients": "", "kept": "", "answers": "", "flops": 0}
MODELS = {  # hidden size and length
    "GPT, 256 tokens, hidden 64": (64, 256),
    "GPT, 32 tokens, hidden 128": (128, 32),
    "BERT, 64 tokens, hidden 96": (96, 64),
}


class Case(NamedTuple):
    name: str
    model: str
    budget: Callable[[list[int]], int]  # from the bytes of each product
    again: bool = False  # the policy is called in backward, too
    seed: int = 0


def cases(seed: int) -> list[Case]:
    half = lambda sizes: sum(sizes) // 2  # noqa: E731
    found = []
    for model in MODELS:
        budgets = {"half of the products": half, "all products, exactly": sum}
        if model.startswith("GPT"):
            budgets |= {"no budget": lambda sizes: 0, "exactly one product": lambda sizes: max(sizes[:4])}
        found += [Case(f"{model}, {what}", model, budget) for what, budget in budgets.items()]
    found.append(
        Case("a PyTorch that calls the policy again in backward", "GPT, 32 tokens, hidden 128", half, True)
    )
    return [case._replace(seed=seed) for case in found]


def made(model: str) -> nn.Module:
    hidden, length = MODELS[model]
    if model.startswith("GPT"):
        return Block(GPTConfig(num_layers=1, num_heads=4, hidden_size=hidden, max_length=length))
    sizes = {"hidden_size": hidden, "num_attention_heads": 4, "intermediate_size": 4 * hidden}
    return BertLayer(BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


@functools.cache
def listed(model: str) -> tuple[Product, ...]:
    hidden, length = MODELS[model]
    return tuple(repeated_products(made(model), torch.randn(2, length, hidden)))


def observe(run_block, case: Case) -> dict:
    products, (hidden, length) = list(listed(case.model)), MODELS[case.model]
    budget = case.budget([p.bytes for p in products])
    torch.manual_seed(case.seed)
    blocks, x = [made(case.model), made(case.model)], torch.randn(2, length, hidden, requires_grad=True)
    if case.again:
        answers: dict[bool, list] = {False: [], True: []}
        with asked_again(answers):
            run_block(blocks[0], x, products, budget).sum().backward()
        pairs = zip(answers[False], answers[True], strict=False)
        changed = [(*one, two[1]) for one, two in pairs if one != two]
        said = "for a call of {} the policy answers {} in forward and {} in backward"
        return FINE | {"answers": said.format(*changed[0]) if changed else ""}

    # Both blocks, one behind the other; each has the budget to itself.
    weights = {f"{name} of block {i}": w for i, b in enumerate(blocks) for name, w in b.named_parameters()}
    record, kept, y = RecordProducts(), 0, x
    for block in blocks:
        before = y
        with Alive(before, *weights.values()) as alive:
            y = run_block(block, before, list(products), budget)
            if not isinstance(y, Tensor):
                return {"tensor": f"the result is {type(y).__name__}, not a tensor"}
            kept = max(kept, alive.now - y.untyped_storage().nbytes())
    with record.forward_of(blocks[0]), record.forward_of(blocks[1]), record:
        wanted = [x, *weights.values()]
        found = torch.autograd.grad(y, wanted, torch.randn_like(y), allow_unused=True)
    if missing := sum(gradient is None for gradient in found):
        return {"tensor": f"of x and the weights, {missing} of {len(found)} have no gradient"}
    every = sum(p.bytes for p in products)
    more = f"\n(all of `products` together are {every:,} bytes, so something else is kept, too)" * (
        kept > every
    )
    return {
        "tensor": "",
        "result": y.detach(),
        "gradients": dict(zip(["x", *weights], found, strict=True)),
        "kept": f"a block keeps {kept:,} bytes, and the budget is {budget:,}{more}" if kept > budget else "",
        "answers": "",
        "flops": sum(p.flops for p in record.products),
    }


@contextmanager
def asked_again(answers: dict[bool, list]) -> Iterator[None]:
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
