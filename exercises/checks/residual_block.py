"""The block of exercise 09.3: a step of it on a rank, the same on one device, and how the two differ."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from course_checks.tensor_parallel import flat, grad, kind
from torch import Tensor, nn
from torch.nn.functional import gelu

from course_lib.grading.judge import record
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import launch

Block = Callable[[Tensor, nn.LayerNorm, nn.Parameter, nn.Linear, nn.Linear], Tensor]
PARTS = ("x", "norm", "gain", "up", "down.weight", "down.bias")
CUT = {"up.weight": 0, "up.bias": 0, "down.weight": 1}  # along which dimension

# columns: of all ranks
Case = record("name ranks tokens hidden columns", biased=True)


def step(block: Block, case: Case, rank: int, ranks: int) -> dict:
    """The output and the gradients, where ``up`` and ``down`` are this rank's part; and what was sent."""
    hidden, own, draw = case.hidden, case.columns // ranks, torch.Generator().manual_seed(case.seed)
    x, upstream = torch.randn(2, case.tokens, hidden, generator=draw)
    gain = nn.Parameter(1.5 + torch.rand((), generator=draw))
    norm, up = nn.LayerNorm(hidden), nn.Linear(hidden, own)
    down = nn.Linear(own, hidden, bias=case.biased)
    weights = dict(nn.ModuleDict({"norm": norm, "up": up, "down": down}).named_parameters())
    for name, weight in weights.items():  # all ranks draw the whole, alike
        shape = [n * (ranks if dim == CUT.get(name) else 1) for dim, n in enumerate(weight.shape)]
        whole = torch.randn(shape, generator=draw)
        weight.data = whole.chunk(ranks, CUT[name])[rank].clone() if name in CUT else whole
    x.requires_grad_()
    with record_traffic() as ahead:
        output = block(x, norm, gain, up, down)
    if not isinstance(output, Tensor) or output.shape != x.shape:
        return {"shape": f"the output is {kind(output)}, and x is {kind(x)}"}
    with record_traffic() as back:
        output.backward(upstream)
    gradients = {name: grad(weight) for name, weight in {"x": x, "gain": gain, **weights}.items()}
    return {
        "output": output.detach().clone(),
        **{part: {n: g for n, g in gradients.items() if n.startswith(part)} for part in PARTS},
        "forward": ahead.traffic.calls,
        "sent forward": round(ahead.traffic.sent),
        "backward": back.traffic.calls,
        "sent backward": round(back.traffic.sent),
    }


def on_rank(block: Block, case: Case) -> dict:
    return step(block, case, dist.get_rank(), dist.get_world_size())


def whole_block(x: Tensor, norm: nn.LayerNorm, gain: Tensor, up: nn.Linear, down: nn.Linear) -> Tensor:
    return x + down(gain * gelu(up(norm(x))))


def on_one_device(case: Case) -> list[dict]:
    """For each rank, what is right."""
    whole = step(whole_block, case, 0, 1)

    def part(name: str, t: Tensor, rank: int) -> Tensor:
        return t.chunk(case.ranks, CUT[name])[rank] if name in CUT else t

    return [
        {"output": whole["output"]}
        | {key: {name: part(name, t, rank) for name, t in whole[key].items()} for key in PARTS}
        for rank in range(case.ranks)
    ]


def measured_against_one_device(block: Block, ranks: int) -> list[list[str]]:
    """Rows of a table: is each tensor that of one device, or a part of it?"""
    case, rows = Case("", ranks, 5, 4, 3 * ranks, seed=1), []
    found, right = launch(on_rank, ranks, args=(block, case), backend="gloo"), on_one_device(case)
    for key in ("output", *PARTS):
        got, want = (torch.stack([flat(one[key]) for one in seen]) for seen in (found, right))
        verdict = "another one"
        if torch.allclose(got, want, atol=1e-4):
            verdict = "that of one device"
        elif torch.allclose(got.sum(0), want[0], atol=1e-4):
            verdict = "a part: the sum over the ranks is that of one device"
        rows.append([key if key == "output" else f"gradient of {key}", verdict])
    return rows
