"""17.3: what autograd keeps of a row of linear layers, some of them frozen."""

import random
from itertools import pairwise

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.alive import Alive

KEPT = "Return how many **bytes** autograd keeps for backward. Forward gets `tokens` tokens in fp32"
FACTS = {
    "bytes": Fact("the number of bytes", KEPT),
    "made": Fact("bytes of tensors made", "The answer is computed from the sizes alone: 0 bytes of…", most=0),
}

# sizes: inputs of each layer, and outputs of the last; what: what is trained in each layer
Case = record("name sizes what rank tokens")


def cases(seed: int) -> list[Case]:
    draw, no = random.Random(seed), "nothing"
    kinds = ["all", "bias", "lora", no]
    return [
        Case("an MLP, all trained", [6, 24, 6], ["all", "all"], 4, 5),
        Case("an MLP with two LoRAs", [6, 24, 6], ["lora", "lora"], 4, 5),
        Case("LoRA in the first layer", [8, 10, 12, 9], ["lora", no, no], 2, 7),
        Case("LoRA in the last layer", [8, 10, 12, 9], [no, no, "lora"], 3, 7),
        Case("LoRA in the middle", [7, 11, 13, 5, 6], [no, "lora", no, no], 3, 4),
        Case("biases only", [7, 11, 13, 5], ["bias", "bias", "bias"], 3, 4),
        Case("one bias at the bottom", [7, 11, 13, 5], ["bias", no, no], 3, 4),
        Case("one bias at the top", [7, 11, 13, 5], [no, no, "bias"], 3, 4),
        Case("of every kind", [6, 8, 9, 5, 12, 7, 4], [no, "bias", no, "lora", "all", no], 2, 9),
        Case("nothing is trained", [7, 11, 5], [no, no], 3, 4),
        Case("one layer", [7, 11], ["lora"], 3, 1),
        Case("one frozen layer", [7, 11], [no], 3, 4),
        Case("two LoRAs and a frozen layer between", [5, 9, 14, 3], ["lora", no, "lora"], 1, 8),
        Case("nine layers at random", draw.choices(range(1, 50), k=10), draw.choices(kinds, k=9), 5, 6),
    ]


def observe(kept_bytes, case: Case) -> dict:
    layers = [(*sizes, what) for sizes, what in zip(pairwise(case.sizes), case.what, strict=True)]
    with Alive() as alive:
        got = kept_bytes(layers, case.rank, case.tokens)
    return {"bytes": got, "made": alive.most}
