"""What goes wrong in the exercises of chapter 10, as programs: each gives the result of every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.grading.checks.sequence_parallel_layer import Layer, on_one_device
from course_lib.grading.checks.sequence_parallel_ranks import Crossing, Passing, Region

# ---- 10.1: g and g-bar ----------------------------------------------------------------------------------------


def gathered(parts: Sequence[Tensor]) -> list[Tensor]:
    """All tokens, on every rank."""
    return [torch.cat(list(parts), 1)] * len(parts)


def scattered(wholes: Sequence[Tensor]) -> list[Tensor]:
    """The sum over the ranks, cut by tokens."""
    return list(sum(wholes).chunk(len(wholes), 1))


def _batches_mixed(parts: Sequence[Tensor]) -> list[Tensor]:
    batch, seq, hidden = parts[0].shape
    return [torch.cat(list(parts), 0).reshape(batch, len(parts) * seq, hidden)] * len(parts)


def _scattered_mixed(wholes: Sequence[Tensor]) -> list[Tensor]:
    p, (batch, seq, hidden) = len(wholes), wholes[0].shape
    return list(sum(wholes).reshape(p, batch, seq // p, hidden))


def _own_tokens(wholes: Sequence[Tensor]) -> list[Tensor]:
    return [whole.chunk(len(wholes), 1)[rank] for rank, whole in enumerate(wholes)]


def _divided(wholes: Sequence[Tensor]) -> list[Tensor]:
    return [part / len(wholes) for part in scattered(wholes)]


def _own_and_zeros(parts: Sequence[Tensor]) -> list[Tensor]:
    zero = torch.zeros_like(parts[0])
    return [
        torch.cat([p if r == rank else zero for r in range(len(parts))], 1) for rank, p in enumerate(parts)
    ]


def _times_ranks(parts: Sequence[Tensor]) -> list[Tensor]:
    return [len(parts) * whole for whole in gathered(parts)]


def _one_for_all(wholes: Sequence[Tensor]) -> list[Tensor]:
    return [scattered(wholes)[0]] * len(wholes)


def _along_batch(parts: Sequence[Tensor]) -> list[Tensor]:
    return [torch.cat(list(parts), 0)] * len(parts)


JOINED = {
    "when the parts are laid end to end and given the new shape, so that sequences get mixed": _batches_mixed,
    "when the parts are joined along the batch, and not along the sequence": _along_batch,
    "when a rank has its own tokens, and zeros in place of the others": _own_and_zeros,
    "when what is gathered is multiplied by the number of ranks": _times_ranks,
}
SUMMED = {
    "when each rank takes its tokens of its own tensor, and nothing is added up": _own_tokens,
    "when the sum is divided by the number of ranks": _divided,
    "when the tensor is cut into p parts without bringing each rank's tokens together": _scattered_mixed,
    "when every rank gets the tokens of the first one": _one_for_all,
}


def crossing_mistakes(case: Crossing, copies: int, backward: bool) -> dict[str, Callable[[], list[Tensor]]]:
    """The programs of one direction, for ``copies`` groups that do the same."""
    values = case.upstream if backward else case.inputs
    programs = JOINED if case.gathers != backward else SUMMED
    return {
        sentence: (lambda program=program: copies * program(values)) for sentence, program in programs.items()
    }


# ---- 10.2: an MLP that keeps its shard ------------------------------------------------------------------------


def region(case: Region) -> tuple[list[Tensor], list[dict[str, Tensor | None]]]:
    """The right result and gradients of each rank, from one device."""
    ranks = case.ranks
    x, up, bias, down = (t.detach().clone().requires_grad_() for t in case[:4])
    out = F.linear(F.gelu(F.linear(x, up, bias)), down)
    out.backward(case.upstream)
    gradients = [
        {
            "x": x.grad.chunk(ranks, 1)[rank],
            "up.weight": None if case.frozen else up.grad.chunk(ranks)[rank],
            "up.bias": bias.grad.chunk(ranks)[rank],
            "down.weight": down.grad.chunk(ranks, 1)[rank],
        }
        for rank in range(ranks)
    ]
    return list(out.detach().chunk(ranks, 1)), gradients


def region_mistakes(case: Region, name: str) -> dict[str, Callable[[], list[Tensor]]]:
    programs = OF_REGION.get(name, {}) if case.ranks > 1 else {}
    return {sentence: partial(program, case, case.ranks) for sentence, program in programs.items()}


def _before_gelu(case: Region) -> tuple[Tensor, Tensor]:
    """What GELU gets, and the gradient of it: (batch, seq, wide)."""
    z = F.linear(case.x, case.up, case.up_bias).requires_grad_()
    F.linear(F.gelu(z), case.down).backward(case.upstream)
    return z.detach(), z.grad


def _own_tokens_only(case: Region, ranks: int) -> list[Tensor]:
    _, dz = _before_gelu(case)
    return [
        d.chunk(ranks, 1)[rank].flatten(0, 1).T @ case.x.chunk(ranks, 1)[rank].flatten(0, 1)
        for rank, d in enumerate(dz.chunk(ranks, 2))
    ]


def _not_summed(case: Region, ranks: int) -> list[Tensor]:
    _, dz = _before_gelu(case)
    parts = zip(dz.chunk(ranks, 2), case.up.chunk(ranks), strict=True)
    return [(d @ weight).chunk(ranks, 1)[rank] for rank, (d, weight) in enumerate(parts)]


def _bias_of_own_tokens(case: Region, ranks: int) -> list[Tensor]:
    _, dz = _before_gelu(case)
    return [d.chunk(ranks, 1)[rank].sum((0, 1)) for rank, d in enumerate(dz.chunk(ranks, 2))]


def _no_sum(case: Region, ranks: int) -> list[Tensor]:
    z, _ = _before_gelu(case)
    parts = zip(F.gelu(z).chunk(ranks, 2), case.down.chunk(ranks, 1), strict=True)
    return [F.linear(y, weight).chunk(ranks, 1)[rank] for rank, (y, weight) in enumerate(parts)]


def _no_bias(case: Region, ranks: int) -> list[Tensor]:
    return list(F.linear(F.gelu(F.linear(case.x, case.up)), case.down).chunk(ranks, 1))


# by what comes out wrong: the result, or the gradient of a tensor
OF_REGION: dict[str, dict[str, Callable[[Region, int], list[Tensor]]]] = {
    "result": {
        "when each rank takes its tokens of its own product, and nothing is added up": _no_sum,
        "when the bias of `up` is not added": _no_bias,
    },
    "x": {"when each rank takes its part of the gradient, and nothing is added up": _not_summed},
    "up.weight": {"when the weight's gradient is computed from this rank's tokens alone": _own_tokens_only},
    "up.bias": {"when the bias's gradient is the sum over this rank's tokens alone": _bias_of_own_tokens},
}


# ---- 10.3: a mended layer ---------------------------------------------------------------------------------------

NORM_OWN = "the gradients of the norm are not added up over the ranks"
BIAS_OFTEN = "every rank adds the bias before the sum over the ranks"
BIAS_OWN = "the gradient of the bias is not added up over the ranks"
MEAN = "gradients of what all ranks have are averaged over the ranks, and not added up"
FAULTS = (NORM_OWN, BIAS_OFTEN, BIAS_OWN, MEAN)
IMPOSSIBLE = ({BIAS_OFTEN, BIAS_OWN}, {NORM_OWN, BIAS_OWN, MEAN})


def layer_results(case: Passing, kept: Sequence[Tensor], faults: Sequence[str] = ()) -> list[dict[str, Any]]:
    """For each rank the results and all gradients, with some faults; ``kept`` are the masks of all tokens."""
    ranks, times = case.ranks, case.ranks if BIAS_OFTEN in faults else 1
    whole = case.layer.part_of(0, 1)
    inputs = [x.detach().clone().requires_grad_() for x in case.xs]
    outs = [on_one_device(whole, x, k, case.drop, times) for x, k in zip(inputs, kept, strict=True)]
    torch.autograd.backward(outs, list(case.upstream))
    results = []
    for rank in range(ranks):
        gradients: dict[str, Tensor | None] = {name: p.grad for name, p in whole._asdict().items()}
        for name, axis in (("up", 0), ("down", 1)):
            gradients[name] = gradients[name].chunk(ranks, axis)[rank]
        if case.layer.norm_weight.requires_grad:
            gradients |= _shared_gradients(case, kept, whole, faults, rank)
        gradients["x"] = torch.cat([x.grad.chunk(ranks, 1)[rank] for x in inputs])
        results.append({"outs": [o.detach().chunk(ranks, 1)[rank] for o in outs], "gradients": gradients})
    return results


def _shared_gradients(
    case: Passing, kept: Sequence[Tensor], whole: Layer, faults: Sequence[str], rank: int
) -> dict[str, Tensor]:
    """Those of the norm and the bias on one rank."""
    own, found = case.layer.part_of(0, 1), {}
    for x, k, u in zip(case.xs, kept, case.upstream, strict=True):  # what reaches them from the rank's tokens
        x, k, u = (t.chunk(case.ranks, 1)[rank] for t in (x, k, u))
        on_one_device(own, x, k, case.drop).backward(u)
    for name in ("norm_weight", "norm_bias", "bias"):
        often = (
            name == "bias" and BIAS_OFTEN in faults
        )  # then every rank has the whole gradient, and adds up nothing
        if (BIAS_OWN if name == "bias" else NORM_OWN) in faults:
            found[name] = getattr(own, name).grad
        elif often or MEAN in faults:
            found[name] = getattr(whole, name).grad / case.ranks
        else:
            found[name] = getattr(whole, name).grad
    return found


def layer_faults() -> list[tuple[str, ...]]:
    """Each fault, and those that can stand together."""
    made = [faults for count in (1, 2, 3) for faults in combinations(FAULTS, count)]
    return [faults for faults in made if not any(both <= set(faults) for both in IMPOSSIBLE)]


def sentence(faults: Sequence[str]) -> str:
    *most, last = faults
    return "when " + (f"{', '.join(most)} and {last}" if most else last)
