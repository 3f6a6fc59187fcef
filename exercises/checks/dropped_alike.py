"""Exercise 10.3 with dropout: its masks, and what one device gives that drops the same elements."""

from collections.abc import Sequence
from itertools import combinations

import torch
from course_checks.sequence_layer import PARTS, Layer, of_one_device
from course_checks.tensor_parallel import flat
from torch import Tensor


def with_dropout(
    layer: Layer, xs: Sequence[Tensor], upstream: Sequence[Tensor], drop: float, seen: Sequence[dict]
) -> dict:
    """Texts: whether masks are as they should be, and the rest as on one device that drops the same elements. Without
    dropout nothing is wrong with the masks, and no more is said."""
    found = dict.fromkeys(("share", "ranks", "calls"), "")
    if not drop:
        return found
    dropped = [torch.cat([one["dropped"][call] for one in seen], 1) for call in range(len(xs))]
    right = of_one_device(layer, xs, upstream, [(~d).double() / (1 - drop) for d in dropped], len(seen))
    for key in ("result", *PARTS):
        name = f"the gradient of {' and '.join(PARTS[key])}" if key in PARTS else "the result"
        said = f"{name} is not what one device gives that drops the same elements"
        both = zip(seen, right, strict=True)
        alike = [torch.allclose(flat(a[key]), flat(b[key]), atol=1e-5) for a, b in both]
        found[key] = ["" if same else said for same in alike]
    share = dropped[0].double().mean().item()
    if abs(share - drop) > 0.12:
        zeros = ", others are 0" * any((one["result"] == 0).any().item() for one in seen)
        found["share"] = f"{share:.0%} of the elements are as in `x`{zeros}, and `drop` is {drop:.0%}"
    if any(one["dropped"][0].equal(other["dropped"][0]) for one, other in combinations(seen, 2)):
        found["ranks"] = "the ranks drop the same places of their tokens"
    if any(a.equal(b) for one in seen for a, b in combinations(one["dropped"], 2)):
        found["calls"] = "the second call drops the same places as the first"
    return found
