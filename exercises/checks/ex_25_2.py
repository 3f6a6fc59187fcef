"""25.2: what a decoder reads in training, and PyTorch's operations for 40 texts and for one."""

import torch
from course_checks.counted import Operations

from course_lib.grading.judge import Fact, record

FACTS = {
    "read": Fact("what the decoder reads", "a decoder reads its own targets, one place to the right…"),
    "same": Fact("what is given", "`targets` stays as it is"),
    "operations": Fact("operations for 40 texts beyond those for one", "the number of PyTorch's…", most=0),
}
Case = record("name targets", start=2, padding=1)
CASES = [
    Case("two texts", [[5, 6, 7], [8, 9, 5]]),
    Case("one ends with -100", [[5, 6, -100, -100], [8, 9, 7, 6]], 0, 3),
    Case("one begins with -100", [[-100, 6, 7, 4]], 9),
    Case("a single token", [[5], [7]]),
    Case("40 texts", [[i, -100, i + 1, 4] for i in range(3, 43)]),
]


def observe(decoder_inputs, case: Case) -> dict:
    targets = torch.tensor(case.targets)
    with Operations() as one:
        decoder_inputs(targets[:1].clone(), case.start, case.padding)
    with Operations() as all_of_them:
        read = decoder_inputs(given := targets.clone(), case.start, case.padding)
    changed = "" if given.equal(targets) else "`targets` has been changed in place"
    return {"read": read, "same": changed, "operations": max(0, all_of_them.count - one.count)}
