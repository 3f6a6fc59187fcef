"""15.1: parts of a softmax, merged one after the other; the bytes that are alive are counted."""

import math

import torch
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.alive import Alive

PAIR = "Return the output and the logsumexp over the keys of all parts together, in the same two shapes."
UNSEEN = "If a row sees no key of any part, your result for it is minus infinity and zero as well."
LARGE = (
    "Logsumexps can be several hundreds or minus several hundreds, so `exp` of them overflows, or gives zero."
)
FACTS = {
    "pair": Fact("the result", PAIR),
    "output": Fact("the output", PAIR, tolerance=1e-4),
    "logsumexp": Fact("the logsumexp", PAIR, tolerance=1e-4),
    "bytes": Fact("bytes alive at once beyond eight outputs", "At most eight tensors of the size…", most=0),
}

halved = "Outputs may be in bf16. Your result is still as precise as float32, in which all logsumexps are."
some = "A row may see no key of a part; then its `logsumexp` is minus infinity."
# keys: of each part; shift: of the scores, in one direction; both: rows are shifted up and down, by random amounts;
# unseen: which rows see no key: "some" others in each part, or "one" in all; halved: outputs in bf16
Case = record("name keys", task=None, shift=0.0, both=False, unseen="", halved=False)
CASES = [
    Case("2 parts of 4 and 9 keys", [4, 9]),
    Case("5 parts", [3, 1, 20, 2, 7]),
    Case("one part", [6]),
    Case("logsumexps of hundreds", [5, 6, 7], LARGE, shift=300.0),
    Case("logsumexps of minus hundreds", [5, 6, 7], LARGE, shift=-300.0),
    Case("logsumexps of hundreds and of minus hundreds", [5, 6, 7], LARGE, shift=300.0, both=True),
    Case("parts in which some rows see no key", [4, 4, 4], some, unseen="some"),
    Case("a row that sees no key in any part", [4, 4, 4], UNSEEN, unseen="one"),
    Case("40 outputs in bf16", [2] * 40, halved, halved=True),
    Case("64 parts", [1] * 64),
]


def parts_of(case: Case) -> list[tuple[Tensor, Tensor]]:
    """Attention of 3 heads and 8 rows over each of several parts of the keys; rows that see no key give zeros."""
    draw, parts = torch.Generator().manual_seed(case.seed), []
    for number, count in enumerate(case.keys):
        rows = torch.randn(3, 8, 1, generator=draw) if case.both else torch.ones(3, 8, 1)
        scores = torch.randn(3, 8, count, generator=draw) + case.shift * rows
        if case.unseen == "some":
            scores[:, (number + torch.arange(3)) % 8] = -math.inf  # another three rows in each part
        elif case.unseen == "one":
            scores[1, 5] = -math.inf
        logsumexp = scores.logsumexp(-1)
        weights = (scores - logsumexp.nan_to_num(neginf=0.0)[..., None]).exp()
        output = weights @ torch.randn(count, 16, generator=draw)
        parts.append((output.bfloat16() if case.halved else output, logsumexp))
    return parts


def observe(merge, case: Case) -> dict:
    parts = parts_of(case)
    with Alive(*(tensor for part in parts for tensor in part)) as alive:
        result = merge((output.clone(), logsumexp.clone()) for output, logsumexp in parts)
    if not isinstance(result, tuple | list) or [type(one) for one in result] != [Tensor, Tensor]:
        return {"pair": f"the result is {type(result).__name__}, not two tensors"}
    output, logsumexp = result
    return {
        "output": output.float(),
        "logsumexp": logsumexp,
        "bytes": max(0, alive.most - 8 * parts[0][0].nbytes) if len(parts) == 64 else 0,
    }
