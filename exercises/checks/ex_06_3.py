"""06.3: a step of stage 1 with three faults, and the mended one in trainings of three steps."""

import torch
import torch.distributed as dist
from course_checks.on_ranks import on_ranks
from torch import Tensor

from course_lib.data_parallel.flat import storage_bytes
from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime.kept import launch
from simulator.predict.collective_traffic import sent_bytes

STEPS = 3
SENDS = "Each step sends one reduce-scatter of the gradient, one all-gather of the weights"
HOLDS = "`state` holds at most as many numbers as this rank's shard has, and one more."
FACTS = {
    "weights": Fact("the weights after {}", "which does what one device does", tolerance=1e-4, each="rank"),
    "kept": Fact("numbers in `state` beyond the shard and one", HOLDS, most=0),
    "sent": Fact("bytes sent beyond a reduce-scatter, an all-gather and 8 a step", SENDS, most=0),
    "calls": Fact("collectives beyond three a step", SENDS, most=0),
}

# length: of a shard; max_norms: of each training: 1e6 clips nothing, 0.7 every gradient; size: of the
# gradients
Case = record("name ranks length max_norms", size=1.0)
CASES = [
    Case("2 ranks, no clipping", 2, 4, (1e6,)),
    Case("3 ranks, every gradient is clipped", 3, 5, (0.7,)),
    Case("4 ranks, one weight in each shard", 4, 1, (0.7,)),
    Case("2 ranks, two trainings in turns", 2, 3, (1e6, 0.7)),
    Case("3 ranks, gradients of zero", 3, 2, (0.7,), size=0.0),
    Case("1 rank", 1, 6, (0.7,)),
]


@on_ranks(FACTS)
def observe(answer, case: Case) -> dict:
    draw, elements = torch.Generator().manual_seed(case.seed), case.ranks * case.length
    trainings = len(case.max_norms)
    weights = list(torch.randn(trainings, elements, generator=draw))
    gradients = case.size * (1 + torch.randn(STEPS, trainings, case.ranks, elements, generator=draw))
    states: list[dict] = [{} for _ in weights]
    after = {}
    with record_traffic() as log:
        for step in range(STEPS):
            for i, (now, state, max_norm) in enumerate(zip(weights, states, case.max_norms, strict=True)):
                own = gradients[step, i, dist.get_rank()].clone()
                answer(now, own, state, lr=0.05, momentum=0.8, max_norm=max_norm)
                after[f"step {step + 1}" + f" of training {i + 1}" * (trainings > 1)] = now.detach().clone()
    room = sum(sent_bytes(name, 4 * elements, case.ranks) for name in ("reduce-scatter", "all-gather"))
    room += sent_bytes("all-reduce", 8, case.ranks)
    return {
        "weights": after,
        "kept": max(0, max(map(numbers, states)) - case.length - 1),
        "sent": max(0, round(log.traffic.sent - STEPS * trainings * room)),
        "calls": max(0, log.traffic.calls - 3 * STEPS * trainings),
    }


def numbers(state: dict) -> int:
    """Numbers in the memory behind ``state``: a view keeps the whole tensor."""
    tensors = [value for value in state.values() if isinstance(value, Tensor)]
    return sum(storage_bytes([t]) // t.element_size() for t in tensors) + len(state) - len(tensors)


def changes(step, gradient: float) -> list[Tensor]:
    """The change of 8 weights in each of three steps, where every gradient is the same everywhere."""
    weights, state, found = torch.zeros(8), {}, []
    for _ in range(STEPS):
        before = weights.clone()
        step(weights, torch.full((8,), gradient), state)
        found.append(weights - before)
    return found


def faults_in_numbers(faulty_step) -> list[list[str]]:
    """A row for each step: by how many times too large the change of each of two ranks' shards is."""
    rows, momentum, gradient = [], 0.0, 0.01
    for i, change in enumerate(launch(changes, 2, args=(faulty_step, gradient), backend="gloo")[0]):
        momentum = 0.9 * momentum + gradient  # on one device
        ratios = change.view(2, -1).mean(1) / (-0.1 * momentum)
        rows.append([f"step {i + 1}", *(f"{ratio:.3f}" for ratio in ratios.tolist())])
    return rows
