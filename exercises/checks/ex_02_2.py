"""02.2: rotary positions on neighbouring pairs, keys that are moved, and the angles computed for it."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.grading.judge import Fact, record

TURNED, MOVED = "is turned by the angle $m\\,b^{-2i/t}$", "as if each token stood `by` places earlier"
ANGLES = "at most t/2 for each position in `rotate`, and t/2 in all in `shift`."
FACTS = {
    "same": Fact("what is given"),
    "turned": Fact("the turned heads", TURNED, tolerance=1e-3),
    "turned, 16 bits": Fact("the turned heads", "so compute angles in fp32", tolerance=0.03),
    "dtype": Fact("the dtype of the turned heads", "The result has the shape and the dtype of `x`."),
    "gradient": Fact("the gradient of the input", "Autograd can run backward through `rotate`.", tolerance=1e-3),
    "moved": Fact("keys that are moved by 301", MOVED, tolerance=1e-3),
    "moved, 16 bits": Fact("keys that are moved by 301", MOVED, tolerance=0.03),
    "dtype of keys": Fact("the dtype of the keys", "The result has their shape and their dtype."),
    "angles": Fact("angles in `rotate` beyond t/2 for each position", ANGLES, most=0),
    "angles of shift": Fact("angles in `shift` beyond t/2", ANGLES, most=0),
}  # fmt: skip
BY = 301  # which bf16 does not have

Case = record("name shape positions turned", base=10_000.0, dtype=torch.float32)
CASES = [
    Case("half of a head of 8", (2, 3, 5, 8), list(range(5)), 4),
    Case("a whole head of 6", (1, 2, 4, 6), list(range(4)), 6, 100.0),
    Case("one pair", (3, 1, 3, 5), list(range(3)), 2),
    Case("one token at position 40", (2, 2, 1, 8), [40], 4, 500.0),
    Case("positions in any order", (1, 2, 4, 8), [7, 0, 90, 7], 8),
    Case("16 bits, positions from 3,000", (1, 2, 6, 8), list(range(3000, 3006)), 4, 100.0, torch.bfloat16),
    Case("4 sequences of 3 heads and 50 tokens", (4, 3, 50, 16), list(range(50)), 8),
]


class Angles(TorchDispatchMode):
    """Counts the angles whose cosine and whose sine is computed."""

    cosines = sines = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.partition("::")[2].rstrip("_")
        both = name == "polar" or (name == "exp" and isinstance(result, Tensor) and result.is_complex())
        self.cosines += result.numel() if both or name == "cos" else 0
        self.sines += result.numel() if both or name == "sin" else 0
        return result

    def beyond(self, needed: int) -> int:
        return max(0, self.cosines - needed, self.sines - needed)


def observe(answers, case: Case) -> dict:
    rotate, shift = answers
    draw, wide = torch.Generator().manual_seed(case.seed), case.dtype == torch.float32
    x, keys, weight = (torch.randn(case.shape, generator=draw).to(case.dtype) for _ in range(3))
    positions, given, cached = torch.tensor(case.positions), x.clone(), keys.clone()
    with Angles() as ahead:
        turned = rotate(given, positions.clone(), case.turned, case.base)
    with Angles() as back:
        moved = shift(cached, BY, case.turned, case.base)
    changed = next((n for n, a, b in (("x", given, x), ("keys", cached, keys)) if not a.equal(b)), None)
    leaf = x.clone().requires_grad_(wide and changed is None)
    out = rotate(leaf, positions, case.turned, case.base) if leaf.requires_grad else x
    if out.requires_grad and out.shape == x.shape:
        out.backward(weight)
    bits = "" if wide else ", 16 bits"
    return {
        f"turned{bits}": turned,
        "dtype": getattr(turned, "dtype", None),
        "gradient": torch.zeros_like(x) if leaf.grad is None else leaf.grad,
        f"moved{bits}": moved,
        "dtype of keys": getattr(moved, "dtype", None),
        "same": f"`{changed}` has been changed in place" if changed else "",
        "angles": ahead.beyond(len(positions) * case.turned // 2),
        "angles of shift": back.beyond(case.turned // 2),
    }
