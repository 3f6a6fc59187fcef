"""02.4: a mask from prefixes and padding, and PyTorch's operations for 40 sequences and for one."""

import torch
import torch.nn.functional as F
from course_checks.counted import Operations
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.models.masks import prefix_mask, see_itself

FACTS = {
    "form": Fact("the result", "a tensor of booleans of the shape (batch, seq, seq)"),
    "mask": Fact(
        "who sees whom",
        "A token sees the tokens of its text up to its own place, and a token of the prefix also sees the whole "
        "prefix. No token sees padding. A place of padding sees itself and nothing else",
    ),
    "same": Fact("what is given"),
    "operations": Fact("operations for 40 sequences beyond those for one", "The number of PyTorch…", most=0),
}
SHOWN = {
    "8 tokens, prefix of 3": prefix_mask(3, 8)[0, 0].tolist(),
    "5 tokens, prefix of 2": see_itself(F.pad(prefix_mask(2, 5)[0, 0], (3, 0, 3, 0))).tolist(),
}

Case = record("name prefixes lengths seq")
CASES = [
    Case("no padding, a prefix", [3], [6], 6),
    Case("padding, a prefix", [2], [4], 6),
    Case("three sequences", [2, 0, 4], [5, 3, 4], 6),
    Case("no prefix", [0, 0], [5, 2], 5),
    Case("all is prefix", [4, 2], [4, 2], 5),
    Case("a sequence without tokens", [0, 2], [0, 3], 4),
    Case("one token", [1], [1], 1),
    Case("a prefix of one", [1], [3], 4),
    Case("1 and 40 sequences", [2] * 40, [5] * 40, 7),
]


def observe(mask_of, case: Case) -> dict:
    prefixes, lengths = torch.tensor(case.prefixes), torch.tensor(case.lengths)
    with Operations() as all_of_them:
        mask = mask_of(prefixes, lengths, case.seq)
    with Operations() as one:
        mask_of(torch.tensor(case.prefixes[:1]), torch.tensor(case.lengths[:1]), case.seq)
    is_bool = isinstance(mask, Tensor) and mask.dtype == torch.bool
    kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
    same = prefixes.tolist() == case.prefixes and lengths.tolist() == case.lengths
    return {
        "form": "" if is_bool else f"the result is {kind}",
        "mask": mask,
        "same": "" if same else "`prefixes` or `lengths` has been changed in place",
        "operations": max(0, all_of_them.count - one.count),
    }
