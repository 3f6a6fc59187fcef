"""08.2: a loss whose logits exist for one chunk of rows at a time, in forward and in backward."""

import torch
from course_checks.recomputation import VOCABULARY, LossOfRows, unseen

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.alive import Alive

RANDOM_STATE = torch.get_rng_state().nbytes
PLAIN = "Result, gradients and random numbers are those of this sum under plain autograd."
ADDED = "The gradients of the weights that `function` uses are added to their `.grad`"
DRAWN = "Random numbers drawn after forward or after backward are the same as without your function."
SAVED = "Keep `x` and `targets` with `ctx.save_for_backward`, so that PyTorch reports if one was changed in place."
KEPT = "After forward nothing is kept but `x`, `targets`, the result and one random state"
ALIVE = "In backward no more is alive at once than one chunk needs, besides the gradients."
FACTS = {
    "returned": Fact("what backward returns", "It returns one value for each argument of `forward`"),
    "ends": Fact("backward", "Backward ends at `x`: it returns the gradient of `x`"),
    "dtype": Fact("the dtype of the sum", PLAIN),
    "sum": Fact("the sum", PLAIN, tolerance=1e-5),
    "x": Fact("the gradient of x", PLAIN, tolerance=1e-5),
    "weights": Fact("the gradient of {} of the function", ADDED, tolerance=1e-5),
    "drawn": Fact("the random number drawn after {}", DRAWN, tolerance=1e-5),
    "same": Fact("inputs", "`x` and `targets` stay as they are."),
    "reported": Fact("what backward raises", SAVED),
    "kept": Fact("bytes kept beyond x, targets, the result and one random state", KEPT, most=0),
    "bytes": Fact("bytes alive at once beyond what one chunk needs", ALIVE, most=0),
    "runs": Fact("runs of the function beyond 2 of each chunk", "It runs twice for each chunk.", most=0),
}

# times: calls before one backward; changed: in place after forward
Case = record("name rows size", dropout=True, times=1, changed="", dtype=torch.float32)
CASES = [
    Case("400 rows, 150 a chunk", 400, 150, False),
    Case("50 rows with dropout, 16 a chunk", 50, 16),
    Case("7 rows with dropout, 1 a chunk", 7, 1),
    Case("5 rows with dropout, 20 a chunk, in double precision", 5, 20, dtype=torch.float64),
    Case("dropout, two calls before one backward", 40, 10, times=2),
    Case("x is changed in place after forward", 4, 2, False, changed="x"),
    Case("targets is changed in place after forward", 4, 2, False, changed="targets"),
]


def observe(loss, case: Case) -> dict:
    """As the last part of a larger graph: ``x`` is a result, and is used elsewhere too."""
    torch.manual_seed(case.seed)
    rows = LossOfRows(case.dropout).to(case.dtype)
    leaf = torch.randn(case.rows, 24, dtype=case.dtype, requires_grad=True)
    targets, weights = torch.randint(VOCABULARY, (case.rows,)), dict(rows.head.named_parameters())
    xs, before = [leaf.sin() * (i + 1) for i in range(case.times)], targets.clone()
    with Alive(leaf, *xs, targets, *rows.parameters(), *(w.grad for w in weights.values())) as alive:
        sums = [loss.apply(lambda *chunk: rows(*chunk), case.size, x, targets) for x in xs]
        kept = (alive.now + sum(unseen(each.grad_fn, alive) for each in sums)) // case.times
        drawn = {"forward": torch.rand(1)}
        if case.changed:
            with torch.no_grad():  # the values stay, and PyTorch counts a change
                (targets if case.changed == "targets" else xs[0]).mul_(1)
        try:
            sum(each / 4 + x.sum() for x, each in zip(xs, sums, strict=True)).backward()
        except RuntimeError as error:
            if case.changed and "inplace" in str(error):
                return {}
            if "incorrect number of gradients" in str(error):
                return {"returned": "backward returned the wrong number of gradients"}
            if "backward through the graph a second time" in str(error):
                return {"ends": "backward went on into the graph that the caller built before `forward`"}
            raise
        drawn["backward"] = torch.rand(1)
    if case.changed:
        return {"reported": f"{case.changed} has been changed in place, and backward raises nothing"}
    moved = [x for i, x in enumerate(xs) if not torch.equal(x, leaf.sin() * (i + 1))]
    changed = "targets" if not torch.equal(targets, before) else "x" * bool(moved)
    # Logits of a chunk and their gradient, gradients by weights and x, random states: a formula for every PyTorch.
    room = 2 * case.dtype.itemsize * min(case.size, case.rows) * VOCABULARY + (1 + case.times) * RANDOM_STATE
    room += 8 * leaf.nbytes * case.times + 2 * sum(w.nbytes for w in weights.values())
    return {
        "dtype": sums[0].dtype,
        "sum": torch.stack([each.detach().clone() for each in sums]),
        "x": leaf.grad,
        "weights": {name: weight.grad for name, weight in weights.items()},
        "drawn": drawn,
        "same": changed and f"after backward, {changed} has other values",
        "kept": max(0, kept - RANDOM_STATE - sums[0].nbytes),
        "bytes": max(0, alive.most - room),
        "runs": max(0, rows.runs // case.times + 2 * (-case.rows // case.size)),
        "trace": [number.item() for number in drawn.values()],
    }
