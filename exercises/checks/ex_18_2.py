"""18.2: a prefix that a network computes, folded after training; what is held afterwards is counted."""

import torch
from torch import Tensor, nn

from course_lib.grading.judge import Fact, record

ORDER = "first a layer's keys, then its values, and in each of these one head after another."
GIVEN = "backward reaches `E` and the network."
FOLDED = "After `fold()`, `forward(layer)` returns what it returned before in evaluation mode"
HELD = "After `fold()`, `parameters()` and `state_dict()` hold no more than layers · 2 · n · heads · size numbers."
BEYOND = "numbers in `parameters()` or `state_dict()` beyond layers · 2 · n · heads · size"
NOT_SEEN = "A module sees no parameter in a plain list or dict, and none that is no `nn.Parameter`."
FACTS = {
    "shape": Fact("the shape of {}", "`forward(layer)` returns P_K and P_V of that layer, each `(heads, n, size)`"),
    "acts": Fact("dropout", "Before `fold()`, dropout acts in training mode."),
    "forward": Fact("{}", ORDER, tolerance=1e-5),
    "reached": Fact("backward", GIVEN),
    "gradients": Fact("the gradient of {}", GIVEN, tolerance=1e-4),
    "step": Fact("after a step of training, {}", "a network computes them during training.", tolerance=1e-5),
    "mode": Fact("the mode after `fold()`", "its mode stays."),
    "folded": Fact("after `fold()`, {}", FOLDED, tolerance=1e-5),
    "calls": Fact("calls of the network after `fold()`", "without computing the network."),
    "trains": Fact("training after `fold()`", "It can be trained further"),
    "again": Fact("after a second `fold()`, {}", "A second `fold()` changes nothing.", tolerance=1e-5),
    "numbers": Fact(BEYOND, HELD, most=0, beyond=True),
}  # fmt: skip

# sizes: n, d, layers, heads, size; training: the module's mode when it is folded
Case = record("name sizes", dropout=0.0, dtype=torch.float32, training=True)
CASES = [
    Case("3 layers, 2 heads of size 4, 5 virtual tokens", (5, 8, 3, 2, 4)),
    Case("1 layer, 1 head, 1 virtual token", (1, 4, 1, 1, 4)),
    Case("2 layers, 3 heads of size 2, E of another width", (4, 10, 2, 3, 2)),
    Case("dropout in the network, training mode", (4, 8, 2, 2, 4), dropout=0.5),
    Case("double precision, evaluation mode", (2, 6, 2, 2, 3), dtype=torch.float64, training=False),
]


def observe(make, case: Case) -> dict:
    torch.manual_seed(case.seed)
    n, d, layers, heads, size = case.sizes
    E, width = nn.Parameter(torch.randn(n, d, dtype=case.dtype)), layers * 2 * heads * size
    network = nn.Sequential(nn.Linear(d, 6), nn.Tanh(), nn.Dropout(case.dropout), nn.Linear(6, width))
    prefix = make(E, network.to(case.dtype), layers, heads)
    same = case.dropout and torch.equal(prefix(0)[0], prefix(0)[0])
    found = {"acts": "dropout does not act in training mode: two calls give the same" if same else ""}
    network.train(not case.dropout), prefix.train(not case.dropout)
    forward = found["forward"] = every(prefix, layers)
    found["shape"] = {name: tuple(x.shape) for name, x in forward.items()}
    train(sum((x * torch.linspace(0, 1, x.numel()).view_as(x)).sum() for x in forward.values()), [E])
    own, given = set(prefix.parameters()), {"E": E, **dict(network.named_parameters())}
    lost = [name for name, p in given.items() if p.grad is None or p not in own]
    found["reached"] = f"no gradient for {', '.join(lost)}, or not in `parameters()`" if lost else ""
    found["gradients"] = {name: p.grad for name, p in given.items()}
    prefix.zero_grad()
    found["step"] = every(prefix, layers)
    network.train(case.training), prefix.train(case.training)
    torch.manual_seed(case.seed)
    prefix.fold()
    mode, calls = "training" if prefix.training else "evaluation", []
    network.register_forward_hook(lambda *_: calls.append(1))
    folded = every(prefix, layers)
    found |= {"mode": mode, "folded": folded, "calls": len(calls)}
    total, parameters = sum(x.sum() for x in folded.values()), list(prefix.parameters())
    train(total, parameters)
    reached = int(sum(p.grad.sum().item() for p in parameters if p.grad is not None))
    said = f"after `fold()`, {reached} of {n * width} numbers are in `parameters()`\n{NOT_SEEN}"
    said = said if total.requires_grad else "after `fold()` nothing can be trained"
    found["trains"] = said if reached != n * width else ""
    held = max(sum(p.numel() for p in of) for of in (parameters, prefix.state_dict().values()))
    prefix.fold()
    return found | {"again": every(prefix, layers), "numbers": held}


def every(prefix: nn.Module, layers: int) -> dict[str, Tensor]:
    found = {}
    for layer in range(layers):
        found[f"P_K of layer {layer}"], found[f"P_V of layer {layer}"] = (x.clone() for x in prefix(layer))
    return found


def train(total: Tensor, parameters: list[nn.Parameter]) -> None:
    if total.requires_grad:
        total.backward()
    with torch.no_grad():  # as a step of the optimizer would
        for parameter in parameters:
            parameter.mul_(-0.5)
