"""10.1: g and g-bar, each there and back, with everything that is sent and kept."""

import torch
from course_checks.on_ranks import on_ranks
from course_checks.tensor_parallel import own_group
from course_checks.what_is_sent_and_kept import Dense, on_contexts
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic

BACK = "In backward each does what the other does in forward, with the gradient"
SENT = "Each direction sends no more than one ring all-gather or one ring reduce-scatter of the tensor"
FACTS = {
    "gathered": Fact("what gather_tokens returns", "Each rank gives its own…", tolerance=1e-5, each="rank"),
    "scattered": Fact("what scatter_tokens returns", "the result is the sum…", tolerance=1e-5, each="rank"),
    "changed": Fact("x", "`x` is left as it is", each="rank"),
    "gathered back": Fact("gather_tokens' gradient of x", BACK, tolerance=1e-5, each="rank"),
    "scattered back": Fact("scatter_tokens' gradient of x", BACK, tolerance=1e-5, each="rank"),
    "bytes": Fact("bytes sent beyond two all-gathers and two reduce-scatters", SENT, most=0, beyond=True),
    "kept": Fact("bytes kept for backward", "nothing is kept for backward.", most=0),
}

# ranks: of a group; shape: a rank's own tokens; strided: elements of inputs and gradients lie apart
Case = record("name world ranks shape", strided=False, dtype=torch.float64)
CASES = [
    Case("4 ranks in groups of 2", 4, 2, (3, 2, 5)),
    Case("4 ranks in groups of 2, one token each", 4, 2, (2, 1, 4)),
    Case("4 ranks in groups of 2, strided tensors", 4, 2, (3, 2, 5), strided=True),
    Case("4 ranks in groups of 2, bf16", 4, 2, (2, 3, 4), dtype=torch.bfloat16),
    Case("2 ranks, each a group of its own", 2, 1, (3, 2, 5)),
    Case("3 ranks", 3, 3, (3, 2, 5)),
]


@on_ranks(FACTS, lambda case: case.world)
def observe(answers, case: Case) -> dict:
    group, (batch, own, hidden) = own_group(case.ranks), case.shape
    draw, whole = torch.Generator().manual_seed(case.seed), (batch, own * case.ranks, hidden)
    found = {"changed": "", "bytes": 0, "kept": 0}
    for key, answer, shapes in zip(
        ("gathered", "scattered"), answers, ((case.shape, whole), (whole, case.shape)), strict=True
    ):
        given = []  # x, and the gradient of the result: small whole numbers, which bf16 has exactly
        for shape in shapes:
            t = torch.randint(-9, 10, (case.ranks, *shape), generator=draw).to(case.dtype)[group.rank()]
            given.append(t.transpose(0, 2).contiguous().transpose(0, 2) if case.strided else t.clone())
        (x, upstream), kept = given, {}
        before = x.clone()
        x.requires_grad_()

        def keep(t: Tensor, kept: dict[int, int] = kept) -> Tensor:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with record_traffic() as log, Dense():
            with saved_tensors_hooks(keep, lambda t: t):
                out = answer(x, group)
            found[key] = out.detach().clone() if isinstance(out, Tensor) else out
            if isinstance(out, Tensor) and out.requires_grad:
                for t in on_contexts(out):
                    keep(t)
                if out.shape == upstream.shape:
                    out.backward(upstream)
        if not x.detach().equal(before):
            found["changed"] = "`x` has been changed in place"
        found[f"{key} back"] = x.grad
        found["bytes"] += round(log.traffic.sent)
        found["kept"] += sum(kept.values())
    return found
