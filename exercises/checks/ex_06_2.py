"""06.2: gradients that go as soon as they are reduced, in three backwards of a model with a tied parameter."""

import torch
import torch.distributed as dist
from course_checks.on_ranks import on_ranks
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from course_lib.data_parallel.flat import storage_bytes
from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic
from simulator.predict.collective_traffic import sent_bytes

HOLDS = "`means[parameter]` holds this rank's shard of the gradient, averaged over all ranks"
STAY = "Hooks that others have registered stay and see the gradient."
FACTS = {
    "keys": Fact("the type of the keys of `means`", HOLDS, each="rank"),
    "made": Fact("`means`", "The first backward that reaches a parameter makes its entry"),
    "entries": Fact("the entry of {}", HOLDS, tolerance=1e-4, each="rank"),
    "left": Fact("the number of gradients left", "every backward pass leaves no `.grad`", each="rank"),
    "hooks": Fact("gradients that another hook has seen", STAY, each="rank"),
    "peak": Fact("bytes of whole gradients at once beyond the two largest", most=0),
    "sent": Fact("bytes sent beyond a reduce-scatter for each gradient", most=0),
    "kept": Fact("bytes kept by `means` beyond the shards", most=0),
}


class Tied(nn.Module):
    def __init__(self, seed: int, size: int, frozen: bool) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.shared = nn.Linear(7, 5, bias=False)
        self.layers = nn.Sequential(nn.Linear(5, size), nn.Tanh(), nn.Linear(size, 5), nn.Tanh())
        self.layers[2].weight = nn.Parameter(torch.randn(size, 5).T)  # its gradient is a transposed view, too
        self.late, self.scale = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(1))
        self.layers[0].requires_grad_(not frozen)

    def forward(self, x: Tensor, step: int) -> Tensor:
        hidden = self.layers(self.shared(x)) * self.scale
        return ((hidden + self.late if step else hidden) @ self.shared.weight).square().sum()


Case = record("name ranks size", frozen=False)
CASES = [Case("2 ranks", 2, 11), Case("3 ranks, a frozen layer", 3, 9, True), Case("4 ranks", 4, 16)]


@on_ranks(FACTS)
def observe(answer, case: Case) -> dict:
    model, peak, seen, latest = Tied(case.seed, case.size, case.frozen), 0, 0, None
    come = 0  # bytes of all gradients so far
    names, alive = {p: name for name, p in model.named_parameters()}, WeakIdKeyDictionary()

    def watch(parameter: nn.Parameter) -> None:  # runs before the answer's hook: this one is registered first
        nonlocal peak, seen, latest, come
        latest, seen = parameter, seen + (parameter.grad.shape == parameter.shape)
        alive[parameter.grad.untyped_storage()] = parameter.grad.nbytes
        come += parameter.grad.nbytes
        gone = round(log.traffic.sent * case.ranks / (case.ranks - 1))
        peak = max(peak, sum(alive.values()), come - gone)  # copies are kept until they are sent

    trained = [p for p in names if p.requires_grad]
    for p in trained:
        p.register_post_accumulate_grad_hook(watch)
    means, entries, left, made = answer(list(names)), {}, 0, ""
    inputs = torch.randn(3, case.ranks, 4, 7, generator=torch.Generator().manual_seed(case.seed))
    with record_traffic() as log:
        for step in range(3):
            try:
                model(inputs[step, dist.get_rank()], step).backward()
            except (AttributeError, TypeError) as error:  # such as: None has no attribute 'flatten'
                if latest is not None and latest.grad is not None:
                    error.args = (f"{error}. The `.grad` that is complete now is that of `{names[latest]}`",)
                raise
            for p, name in names.items():  # not by `get`: a key `id(p)` has the hash of p
                one = next((value for key, value in means.items() if key is p), None)
                where = f"`{name}` after backward {step + 1}"
                if (due := p.requires_grad and (step > 0 or p is not model.late)) != (one is not None):
                    made = made or f"`means` has {'no' if due else 'an'} entry of {where}"
                entries[where] = None if one is None else one.clone()
            left += sum(p.grad is not None for p in names)
    parts = {p: -(-p.numel() // case.ranks) * 4 for p in trained}  # bytes of a shard
    whole = case.ranks * (3 * sum(parts.values()) - parts[model.late])
    return {
        "keys": next((type(key).__name__ for key in means if not isinstance(key, Tensor)), "Parameter"),
        "made": made,
        "entries": entries,
        "left": left,
        "hooks": seen,
        "trace": [bool(p._backward_hooks) for p in trained],
        "peak": max(0, peak - sum(sorted(p.nbytes for p in trained)[-2:])),
        "sent": max(0, round(log.traffic.sent - sent_bytes("reduce-scatter", whole, case.ranks))),
        "kept": max(0, storage_bytes(means.values()) - sum(parts.values())),
    }
