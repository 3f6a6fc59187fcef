"""08.4: PyTorch's selective checkpoint on real blocks, with kept bytes and repeated FLOPs counted."""

import torch
from course_checks.selective_checkpoint import MODELS, asked_again, listed, made
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.alive import Alive
from course_lib.observe.ledgers.products import RecordProducts

FACTS = {
    "tensor": Fact("what is returned", "Return what `block(x)` returns."),
    "result": Fact("the result", "Return what `block(x)` returns.", tolerance=1e-5),
    "gradients": Fact("the gradient of {}", tolerance=1e-4),
    "kept": Fact("bytes", "After forward, a block keeps at most `budget` bytes besides `x` and the result."),
    "answers": Fact("the policy", "it must give the same answers then."),
    "flops": Fact("FLOPs of matrix products repeated beyond the fewest", "The FLOPs…", most=0, beyond=True),
}
FINE = {"tensor": "", "result": "", "gradients": "", "kept": "", "answers": "", "flops": 0}

# budget: from the bytes of each product; again: the policy is called in backward, too
Case = record("name model budget", again=False)
BUDGETS = {
    "half of the products": lambda sizes: sum(sizes) // 2,
    "all products, exactly": sum,
    "no budget": lambda sizes: 0,
    "exactly one product": lambda sizes: max(sizes[:4]),
}
CASES = [
    Case(f"{model}, {what}", model, BUDGETS[what])
    for model in MODELS
    for what in list(BUDGETS)[: 4 if model.startswith("GPT") else 2]
]
CASES.append(CASES[-1]._replace(name="BERT, three small products", budget=lambda sizes: 3 * min(sizes)))
CASES.append(CASES[4]._replace(name="a PyTorch that calls the policy again in backward", again=True))


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
    said = f"a block keeps {kept:,} bytes, and the budget is {budget:,}"
    if kept > (every := sum(p.bytes for p in products)):
        said += f"\n(all of `products` together are {every:,} bytes, so something else is kept, too)"
    return FINE | {
        "result": y.detach(),
        "gradients": dict(zip(["x", *weights], found, strict=True)),
        "kept": said * (kept > budget),
        "flops": sum(p.flops for p in record.products),
    }
