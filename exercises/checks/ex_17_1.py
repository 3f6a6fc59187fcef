"""17.1: a LoRA layer around a frozen one; all numbers are -1, 0 and 1, so 16 bits and any order of sums are exact."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib.grading.judge import Fact, record

OUTPUT = r"`forward(x)` returns $W_0 x + b + \frac{\alpha}{r} B A x$ in the dtype of `x`, for `x` of shape (…, inputs)"
FLOPS = "The matrix products of forward take no more FLOPs than those with $W_0$, `A` and `B`"
FACTS = {
    "shape": Fact("the type and the shape of {}", "`A`, of shape (rank, inputs), and `B`, of shape…"),
    "like": Fact("the dtype and the device of {}", "Both have the dtype and the device of `base.weight`."),
    "trained": Fact("what is trained", "Only `A` and `B` are trained: the parameters of `base` are frozen."),
    "starts": Fact("the start", "`A` starts with random numbers, and `B` starts with zeros."),
    "output": Fact("the output", OUTPUT, tolerance=1e-4),
    "dtype": Fact("the dtype of the output", OUTPUT),
    "gradients": Fact("the gradient of {}", "Gradients reach `A`, `B` and `x`.", tolerance=1e-4),
    "base": Fact("base", "`base` keeps its values."),
    "flops": Fact("FLOPs of matrix products beyond those with W0, A and B", FLOPS, most=0),
}


# shape: of x, without its last dimension
class Case(record("inputs outputs rank alpha", shape=(7,), bias=True, dtype=torch.float32, device="cpu")):
    @property
    def name(self) -> str:
        words = f"{self.inputs} to {self.outputs}, rank {self.rank}, alpha {self.alpha:g}"
        words += f", x of shape {(*self.shape, self.inputs)}" * (len(self.shape) != 1)
        words += f", {self.dtype}".replace("torch.", "") * (self.dtype != torch.float32)
        return words + ", no bias" * (not self.bias) + ", on the device meta" * (self.device == "meta")


CASES = [
    Case(12, 20, 4, 16),
    Case(20, 12, 3, 24, bias=False),
    Case(16, 16, 1, 2, shape=(3, 5)),
    Case(9, 14, 8, 4, shape=()),
    Case(12, 10, 2, 6, shape=(2, 3, 4), dtype=torch.float64),
    Case(8, 8, 4, 8, dtype=torch.bfloat16),
    Case(12, 20, 4, 8, device="meta"),
]


def observe(kind, case: Case) -> dict:
    torch.manual_seed(case.seed)
    like = {"dtype": case.dtype, "device": case.device}
    base = nn.Linear(case.inputs, case.outputs, bias=case.bias, **like)
    for p in base.parameters():
        p.data.random_(-1, 2)
    before = {name: t.clone() for name, t in base.state_dict().items()}
    shapes = (*case.shape, case.inputs), (*case.shape, case.outputs)
    shapes += (case.rank, case.inputs), (case.outputs, case.rank)
    x, weights, A, B = (torch.empty(shape, **like).random_(-1, 2) for shape in shapes)
    layer = kind(base, case.rank, case.alpha)
    both = {name: getattr(layer, name, None) for name in "AB"}
    where = "base" if any(p is base.weight for p in layer.parameters()) else "given base"
    named = [*layer.named_parameters(), *base.named_parameters(where)]
    found = {
        "shape": {name: (type(t).__name__, *getattr(t, "shape", ())) for name, t in both.items()},
        "like": {name: [str(getattr(t, key, "")) for key in ("dtype", "device")] for name, t in both.items()},
        "trained": sorted({id(p): name for name, p in named if p.requires_grad}.values()),
    }
    right = {"A": ("Parameter", *A.shape), "B": ("Parameter", *B.shape)}
    if found["shape"] != right or any(t.dtype != A.dtype or t.is_meta for t in both.values()):
        return found
    said = "" if layer.A.any() else "A starts with zeros, so B never gets a gradient"
    found["starts"] = "B does not start with zeros" if layer.B.any() else said
    with torch.no_grad():
        layer.A.copy_(A)
        layer.B.copy_(B)
    with FlopCounterMode(display=False) as counter:
        output = layer(x.requires_grad_())
    (output * weights).sum().backward()
    needed = case.inputs * case.outputs + case.rank * (case.inputs + case.outputs)
    same = all(torch.equal(t, before[name]) for name, t in base.state_dict().items())
    return found | {
        "output": output.detach(),
        "dtype": output.dtype,
        "gradients": {"A": layer.A.grad, "B": layer.B.grad, "x": x.grad},
        "base": "" if same else "base has other values",
        "flops": max(0, counter.get_total_flops() - 2 * x.numel() // case.inputs * needed),
    }
