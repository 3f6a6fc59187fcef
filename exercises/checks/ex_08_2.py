"""08.2: a loss whose logits exist for one chunk of rows at a time, in forward and in backward."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.utils._pytree import tree_leaves

from course_lib.grading.alive import Alive
from course_lib.grading.judge import Fact

VOCABULARY = 512
RANDOM_STATE = 6000  # bytes of the CPU's random state, and a little
RETURNED = "It returns one value for each argument of `forward` but `ctx`, which is `None` where there is no gradient."
PLAIN = "Result, gradients and random numbers are those of this sum under plain autograd."
DRAWN = "Random numbers drawn after forward or after backward are the same as without your function."
SAVED = "Keep `x` and `targets` with `ctx.save_for_backward`, so that PyTorch reports if one was changed in place."
KEPT = (
    "After forward nothing is kept but `x`, `targets`, the result and one random state (6,000 bytes), "
    "however many chunks there are."
)
ALIVE = "In backward no more is alive at once than one chunk needs, besides the gradients."
FACTS = {
    "returned": Fact("what backward returns", RETURNED),
    "ends": Fact(
        "backward", "Backward ends at `x`: it returns the gradient of `x`, and PyTorch goes on from there by itself."
    ),
    "sum": Fact("the sum", PLAIN, tolerance=1e-5),
    "x": Fact("the gradient of x", PLAIN, tolerance=1e-5),
    "weights": Fact(
        "the gradient of {} of the function",
        "The gradients of the weights that `function` uses are added to their `.grad`, as `backward()` does it.",
        tolerance=1e-5,
    ),
    "drawn": Fact("the random number drawn after {}", DRAWN, tolerance=1e-5),
    "same": Fact("inputs", "`x` and `targets` stay as they are."),
    "reported": Fact("what backward raises", SAVED),
    "kept": Fact("bytes kept beyond x, targets, the result and one random state", KEPT, most=0),
    "bytes": Fact("bytes alive at once beyond what one chunk needs", ALIVE, most=0),
    "runs": Fact("runs of the function beyond 2 of each chunk", "It runs twice for each chunk.", most=0),
}  # fmt: skip
FINE = {key: 0 if fact.most is not None else "" for key, fact in FACTS.items()}


class Case(NamedTuple):
    name: str
    rows: int
    size: int
    dropout: bool = True
    times: int = 1  # calls before one backward
    changed: str = ""  # in place after forward
    seed: int = 0


def cases(seed: int) -> list[Case]:
    listed = [
        Case("64 rows, 8 a chunk", 64, 8, False),
        Case("64 rows with dropout, 8 a chunk", 64, 8),
        Case("50 rows with dropout, 16 a chunk", 50, 16),
        Case("7 rows with dropout, 1 a chunk", 7, 1),
        Case("5 rows with dropout, 20 a chunk", 5, 20),
        Case("1 row, 1 a chunk", 1, 1, False),
        Case("dropout, two calls before one backward", 40, 10, times=2),
        Case("x is changed in place after forward", 4, 2, changed="x"),
        Case("targets is changed in place after forward", 4, 2, changed="targets"),
    ]
    return [case._replace(seed=seed) for case in listed]


def observe(loss, case: Case) -> dict:
    torch.manual_seed(case.seed)
    try:
        return FINE | (in_place if case.changed else in_a_graph)(loss, case)
    except RuntimeError as error:
        if "incorrect number of gradients" in str(error):
            return {"returned": "backward returned the wrong number of gradients"}
        if "backward through the graph a second time" in str(error):
            said = "backward went on into the graph that the caller built before `forward`"
            return {"returned": "", "ends": said}
        raise


def in_place(loss, case: Case) -> dict:
    tensors = {"x": torch.randn(4, 3, requires_grad=True).sin(), "targets": torch.arange(4)}
    y = loss.apply(
        lambda rows, wanted: (rows.T * wanted).tanh().sum(), case.size, tensors["x"], tensors["targets"]
    )
    with torch.no_grad():
        tensors[case.changed].mul_(2)
    try:
        y.backward()
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        return {}
    return {"reported": "backward raises nothing, and the gradient is that of other values"}  # fmt: skip


def in_a_graph(loss, case: Case) -> dict:
    """As the last part of a larger graph: ``x`` is a result, and is used elsewhere too."""
    frozen, head, calls = nn.Linear(24, 24).requires_grad_(False), nn.Linear(24, VOCABULARY), 0
    leaf = torch.randn(case.rows, 24, requires_grad=True)
    targets = torch.randint(VOCABULARY, (case.rows,))
    before = targets.clone()

    def function(x: Tensor, wanted: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        x = dropout(frozen(x), 0.5, True) if case.dropout else x
        return cross_entropy(head(x), wanted, reduction="sum")

    weights = dict(head.named_parameters())
    for weight in weights.values():
        weight.grad = torch.ones_like(weight)  # of an earlier batch
    known = *weights.values(), *(w.grad for w in weights.values()), *frozen.parameters(), leaf, targets
    with Alive(*known) as alive:
        xs = [leaf.sin() * (i + 1) for i in range(case.times)]
        for x in xs:
            alive.known[x.untyped_storage()] = True
            alive.made.pop(x.untyped_storage(), None)
        began = alive.now
        sums = [loss.apply(function, case.size, x, targets) for x in xs]
        kept = (alive.now - began + sum(unseen(each.grad_fn, alive) for each in sums)) // case.times
        total = sum(each / 4 + x.sum() for x, each in zip(xs, sums, strict=True))
        drawn = {"forward": torch.rand(1)}
        total.backward()
        drawn["backward"] = torch.rand(1)
    same = all(torch.equal(x, leaf.sin() * (i + 1)) for i, x in enumerate(xs))
    changed = "targets" if not torch.equal(targets, before) else "" if same else "x"
    # Logits of one chunk and their gradient, gradients by weights and x, and random states. By formula, since
    # versions of PyTorch differ in what they need for a moment.
    room = 8 * min(case.size, case.rows) * VOCABULARY + (1 + case.times) * RANDOM_STATE
    room += 8 * leaf.nbytes * case.times + 2 * sum(w.nbytes for w in weights.values())
    return {
        "sum": torch.stack([each.detach().clone() for each in sums]),
        "x": leaf.grad,
        "weights": {name: weight.grad for name, weight in weights.items()},
        "drawn": drawn,
        "same": changed and f"after backward, {changed} has other values",
        "kept": max(0, kept - RANDOM_STATE),
        "bytes": max(0, alive.most - room),
        "runs": max(0, calls // case.times + 2 * (-case.rows // case.size)),
        "trace": [number.item() for number in drawn.values()],
    }


def unseen(node: Any, alive: Alive) -> int:
    """Bytes of the tensors that the caller's node holds and that no operator made, such as random states."""
    held = [getattr(node, "__dict__", {}), getattr(node, "saved_tensors", ())]
    storages = {t.untyped_storage() for t in tree_leaves(held) if isinstance(t, Tensor)}
    return sum(s.nbytes() for s in storages if s not in alive.known and s not in alive.made)
