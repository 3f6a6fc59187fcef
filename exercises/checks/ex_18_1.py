"""18.1: a prompt in front of padded text, with its mask and its positions; large cases count bytes."""

import torch
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.alive import Alive

POSITIONS = (
    "The virtual tokens of every sequence have the positions 0 to n - 1, and its first token of text has n, "
    "the next one n + 1, and so on. Padding is not counted, and its own position is 0."
)
FACTS = {
    "three": Fact("the result", "Return three tensors"),
    "same": Fact("what is given", "`embedded` and `mask` stay as they are."),
    "dtype": Fact("the dtype of the embeddings", "`embeddings` has the dtype of `embedded`"),
    "embeddings": Fact("the embeddings", "The first n places of every sequence are the…", tolerance=1e-6),
    "kind": Fact("the dtype of the mask", "`mask` has the dtype of the given mask."),
    "mask": Fact("the mask", "All virtual tokens are seen, and the text's own entries stay as they are."),
    "whole": Fact("the positions", "`positions` `(batch, n + seq)`, whole numbers."),
    "positions": Fact("the positions", POSITIONS),
    "reached": Fact("backward", "backward reaches `P`."),
    "gradient": Fact("the gradient of `P`", "backward reaches `P`.", tolerance=1e-5),
    "bytes": Fact(
        "bytes alive at once beyond 5/4 · batch · (n + seq) · d numbers of 4 bytes", "At most 5/4 ·…", most=0
    ),
}

# lengths: tokens of each sequence; left: padding stands at the left
Case = record("name n lengths seq", left=False, mask=torch.bool, dtype=torch.float32, d=8)

LARGE = 512  # with such a d the mask and the positions are small beside the embeddings
CASES = [
    Case("one sequence without padding", 3, (5,), 5),
    Case("padding at the right", 3, (5, 2, 4), 5),
    Case("padding at the left", 3, (5, 2, 4), 5, left=True),
    Case("one virtual token", 1, (3, 1), 4, left=True),
    Case("more virtual tokens than text", 6, (2, 1), 2),
    Case("a mask of int64", 2, (4, 3), 4, mask=torch.int64),
    Case("a mask of float32", 2, (1, 3), 4, left=True, mask=torch.float32),
    Case("a sequence of padding alone", 2, (0, 3), 3),
    Case("a model of 16 bits", 4, (6, 3, 1), 6, dtype=torch.bfloat16),
    Case("16 sequences of 16 tokens, 64 virtual tokens, d 512", 64, (16,) * 16, 16, d=LARGE),
    Case("the same in 16 bits", 64, (16,) * 16, 16, dtype=torch.bfloat16, d=LARGE),
]


def observe(put_in_front, case: Case) -> dict:
    draw = torch.Generator().manual_seed(case.seed)
    P = torch.randn(case.n, case.d, generator=draw).requires_grad_()
    embedded = torch.randn(len(case.lengths), case.seq, case.d, generator=draw).to(case.dtype)
    places, lengths = torch.arange(case.seq), torch.tensor(case.lengths)[:, None]
    mask = (places >= case.seq - lengths if case.left else places < lengths).to(case.mask)
    before = {"embedded": embedded.clone(), "mask": mask.clone()}
    with Alive(P, embedded, mask) as alive:
        got = put_in_front(P, embedded, mask)
    if not isinstance(got, tuple | list) or len(got) != 3 or not all(isinstance(x, Tensor) for x in got):
        return {"three": "the result is not three tensors"}
    changed = [name for name, now in (("embedded", embedded), ("mask", mask)) if not now.equal(before[name])]
    embeddings, longer, positions = got
    found = {
        "same": f"{changed[0]} has changed" if changed else "",
        "dtype": embeddings.dtype,
        "embeddings": embeddings.detach().float(),
        "kind": longer.dtype,
        "mask": longer.detach().long(),
        "whole": f"the positions are {positions.dtype}" if positions.is_floating_point() else "",
        "positions": positions.detach().long(),
    }
    if not embeddings.requires_grad:
        return found | {"reached": "backward does not reach `P`"}
    (embeddings * torch.ones_like(embeddings).cumsum(0)).sum().backward()  # another one for each sequence
    beyond = alive.most - 5 * embedded.shape[0] * (case.n + case.seq) * case.d if case.d == LARGE else 0
    return found | {"gradient": P.grad, "bytes": max(0, beyond)}
