"""18.3: attention with a prefix that all sequences share, and how much of it goes to the prefix."""

import torch
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.alive import Alive

OUTPUT = "`output` is attention over the n keys and values of the prefix and those of the text together"
SHARE = "`share` is the sum of the weights that a query gives to the prefix"
MASK = "A token of text is hidden from all queries where `mask` is false, and the prefix is never hidden."
ROOM = "6 · batch · heads · seq · (n + seq + size) numbers of 4 bytes"
LARGE = "They may be large, several hundreds."
GRADIENTS = "Backward from `output` reaches `P_K` and `P_V`, and backward from `share` reaches `P_K`."
FACTS = {
    "pair": Fact("the result", "Return `output` and `share`."),
    "output": Fact("the output", OUTPUT, tolerance=1e-3),
    "share": Fact("the share of the prefix", SHARE, tolerance=1e-3),
    "reached": Fact("backward", GRADIENTS),
    "gradients": Fact("the gradient of {}", GRADIENTS, tolerance=1e-3),
    "bytes": Fact(f"bytes alive at once beyond {ROOM}", f"At most {ROOM} are alive at once.", most=0),
}

# lengths: tokens of each sequence; None: there is no mask; scale: of the queries; if it is negative, all
# scores are; counted: bytes are, without autograd
Case = record("name batch heads seq size n", lengths=None, task=None, left=False, scale=1.0, counted=False)
CASES = [
    Case("no mask", 2, 2, 4, 8, 3),
    Case("as many heads as sequences, a longer prefix than text", 3, 3, 2, 4, 7),
    Case("one sequence", 1, 2, 3, 4, 2),
    Case("one virtual token, one token", 1, 1, 1, 4, 1),
    Case("padding at the right", 3, 2, 5, 4, 2, (5, 2, 3), MASK),
    Case("padding at the left", 3, 1, 5, 4, 3, (5, 2, 3), MASK, left=True),
    Case("a sequence of padding alone", 2, 2, 3, 4, 2, (0, 3), MASK),
    Case("large scores", 2, 2, 4, 16, 3, (4, 3), LARGE, scale=300.0),
    Case("all scores far below zero", 2, 2, 4, 16, 3, (4, 2), LARGE, scale=-300.0),
    Case("16 sequences of 8 tokens, 64 virtual tokens, size 256", 16, 2, 8, 256, 64, counted=True),
]


def observe(prefix_attention, case: Case) -> dict:
    draw = torch.Generator().manual_seed(case.seed)
    q, k, v = torch.randn(3, case.batch, case.heads, case.seq, case.size, generator=draw)
    P_K, P_V = torch.randn(2, case.heads, case.n, case.size, generator=draw)
    if case.scale < 0:
        q, k, P_K = q.abs(), k.abs(), P_K.abs()
    q, mask = case.scale * q, None
    if case.lengths is not None:
        places, lengths = torch.arange(case.seq), torch.tensor(case.lengths)[:, None]
        mask = places >= case.seq - lengths if case.left else places < lengths
    prefix = {"P_K": P_K.clone().requires_grad_(), "P_V": P_V.clone().requires_grad_()}
    with Alive(q, k, v, *prefix.values()) as alive, torch.set_grad_enabled(not case.counted):
        got = prefix_attention(q, k, v, *prefix.values(), mask)
    if not isinstance(got, tuple | list) or len(got) != 2 or not all(isinstance(x, Tensor) for x in got):
        return {"pair": "the result is no pair of tensors"}
    output, share = got
    found = {"output": output.detach(), "share": share.detach()}
    if case.counted:
        room = 6 * 4 * case.batch * case.heads * case.seq * (case.n + case.seq + case.size)
        return found | {"bytes": max(0, alive.most - room)}
    if not output.requires_grad:
        return found | {"reached": "backward from `output` reaches neither `P_K` nor `P_V`"}
    if not share.requires_grad:
        return found | {"reached": "backward from `share` does not reach `P_K`"}
    sum((x * torch.linspace(0, 1, x.numel()).view_as(x)).sum() for x in got).backward()
    reached = {name: torch.zeros_like(P) if P.grad is None else P.grad for name, P in prefix.items()}
    gradients = {name: each / abs(case.scale) for name, each in reached.items()}  # they grow with the queries
    return found | {"gradients": gradients}
