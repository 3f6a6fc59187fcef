"""The check of 17.2: merging, and unmerging to the last bit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from course_lib.grading.alive import Alive
from course_lib.grading.report import Report, check

NOTHING = "`merge` of a merged layer and `unmerge` of a layer that is not merged change nothing."


@check
def check_17_2(report: Report, merge: Callable, unmerge: Callable) -> None:
    torch.manual_seed(report.seed())
    for name, dtype, rank, scaling in (
        ("float32", torch.float32, 4, 2.0),
        ("rank 1", torch.float32, 1, 0.5),
        ("weight in bf16", torch.bfloat16, 4, 0.25),
        ("a large change", torch.float32, 8, 100.0),
    ):
        with report.case(name):
            _try_merge(report, merge, unmerge, _layer(dtype, rank, scaling))
    with report.case("merged, unmerged, trained and merged again"):
        _merge_again(report, merge, unmerge, _layer(torch.float32, 3, 2.0))
    with report.case("two layers"):
        _two_layers(report, merge, unmerge)
    with report.case("bytes"):
        _count_bytes(report, merge, unmerge, _layer(torch.float32, 2, 2.0, inputs=256, outputs=192))


def _layer(dtype: torch.dtype, rank: int, scaling: float, inputs: int = 24, outputs: int = 40) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, dtype=dtype)
    layer.A = nn.Parameter(torch.randn(rank, inputs))
    layer.B = nn.Parameter(torch.randn(outputs, rank))
    layer.scaling = scaling
    return layer


def _sum(layer: nn.Linear, W0: Tensor, times: int = 1) -> Tensor:
    return (W0.double() + times * layer.scaling * (layer.B.double() @ layer.A.double())).detach()


def _merged(report: Report, layer: nn.Linear, W0: Tensor, fact: str, old: Tensor | None = None) -> None:
    change = layer.scaling * (layer.B.detach().double() @ layer.A.detach().double())
    mistakes = {
        "when B A is not multiplied by the scaling": (W0.double() + change / layer.scaling),
        "when the weight is left as it is": W0.double(),
        "when the weight becomes the change alone": change,
    }
    if "second" in fact:
        mistakes["when the second call adds the change once more"] = W0.double() + 2 * change
    if old is not None:
        mistakes["when A and B of the first merge are used again"] = old
        mistakes["when merge does nothing to a layer that was merged and unmerged before"] = W0.double()
    report.close(
        fact,
        layer.weight.detach().double(),
        _sum(layer, W0),
        tolerance=1e-5 * max(1.0, layer.scaling) if layer.weight.dtype == torch.float32 else 8e-3,
        mistakes=mistakes,
        given=(),
        task="After `merge(layer)`, `layer.weight` is $W_0$ + scaling · $B A$.",
    )


def _try_merge(report: Report, merge: Callable, unmerge: Callable, layer: nn.Linear) -> None:
    weight, W0 = layer.weight, layer.weight.detach().clone()
    try:
        unmerge(layer)
    except Exception as error:
        report.fail(
            f"unmerging a layer that was never merged raises {type(error).__name__}: {error}", task=NOTHING
        )
    report.true(
        torch.equal(layer.weight, W0),
        "unmerging a layer that is not merged changes nothing",
        "unmerging a layer that is not merged changes its weight",
        task=NOTHING,
    )
    merge(layer)
    report.true(
        layer.weight.dtype == W0.dtype,
        "the merged weight has the dtype of W0",
        f"the merged weight is in {layer.weight.dtype}, and W0 in {W0.dtype}",
        task="Compute the sum in float32 and round once.",
    )
    _merged(report, layer, W0, "the merged weight")
    if layer.weight.dtype == torch.bfloat16:
        once = _sum(layer, W0).float().bfloat16()
        narrow = W0 + (layer.scaling * (layer.B.detach() @ layer.A.detach())).bfloat16()
        report.true(
            (layer.weight.detach() != once).float().mean().item() < 0.01,
            "the sum is rounded once",
            "the change is rounded to bf16 before it is added"
            if torch.equal(layer.weight.detach(), narrow)
            else "some numbers are not the nearest ones in bf16 of the sum in float32",
            task="Compute the sum in float32 and round once.",
        )
    merge(layer)
    _merged(report, layer, W0, "the weight after a second call of merge")
    report.true(
        layer.weight is weight and weight.requires_grad,
        "weight is the same Parameter",
        "`layer.weight` is another tensor now"
        if layer.weight is not weight
        else "`layer.weight` does not require a gradient any more",
        task="`layer.weight` stays the same `Parameter`",
    )
    unmerge(layer)
    _back(report, layer, W0, "the unmerged weight is W0 to the last bit")


def _back(report: Report, layer: nn.Linear, W0: Tensor, fact: str) -> None:
    got, merged = layer.weight.detach().double(), _sum(layer, W0)
    size = (W0.double().abs() + (merged - W0.double()).abs()).max()
    near = 4 * torch.finfo(layer.weight.dtype).eps * size
    kind = "rounded" if (got - W0.double()).abs().max() <= near else None
    kind = "merged" if (got - merged).abs().max() <= near else kind
    wrong = int((layer.weight.detach() != W0).sum())
    report.true(
        not wrong,
        fact,
        f"after unmerging {wrong} of {W0.numel()} numbers of the weight are not those of W0",
        got=kind,
        mistakes={
            "when the change is subtracted again: each addition rounds": "rounded",
            "when the weight is left merged, or when what was kept as W0 shares its memory with the weight": "merged",
        },
        given=(),
        task="After `unmerge(layer)`, `layer.weight` is $W_0$ again, to the last bit.",
    )


def _merge_again(report: Report, merge: Callable, unmerge: Callable, layer: nn.Linear) -> None:
    W0 = layer.weight.detach().clone()
    merge(layer)
    old = layer.weight.detach().double().clone()
    unmerge(layer)
    with torch.no_grad():
        layer.A.add_(1.0)
        layer.B.mul_(2.0)
    merge(layer)
    _merged(report, layer, W0, "the merged weight", old)
    unmerge(layer)
    _back(report, layer, W0, "the unmerged weight is W0 to the last bit")
    with torch.no_grad():
        layer.weight.mul_(0.5)
    halved = layer.weight.detach().clone()
    merge(layer)
    unmerge(layer)
    report.true(
        torch.equal(layer.weight.detach(), halved),
        "a weight that was changed while it was not merged comes back as it was then",
        "a weight was changed while it was not merged, and after merging and unmerging the change is gone",
        task="$W_0$ is what `layer.weight` is when `merge` is called.",
    )


def _two_layers(report: Report, merge: Callable, unmerge: Callable) -> None:
    layers = [_layer(torch.float32, 2, 1.0), _layer(torch.float32, 2, 3.0)]
    kept = [layer.weight.detach().clone() for layer in layers]
    for layer in layers:
        merge(layer)
    for layer, W0 in zip(layers, kept, strict=True):
        _merged(report, layer, W0, "the merged weight")
        unmerge(layer)
        _back(report, layer, W0, "the unmerged weight is W0 to the last bit")


def _count_bytes(report: Report, merge: Callable, unmerge: Callable, layer: nn.Linear) -> None:
    size = layer.weight.nbytes
    W0 = layer.weight.detach().clone()
    with Alive(W0, *layer.parameters()) as alive:
        merge(layer)
        merged = sum(s.nbytes() for s in _extra(alive, W0, layer))
        unmerge(layer)
        kept = _extra(alive, W0, layer)
    _back(report, layer, W0, "the unmerged weight is W0 to the last bit")
    sentence = "a merged layer holds at most one more tensor of the size of its weight, and a layer that is not merged "
    report.at_most(
        "bytes kept while merged",
        merged,
        size,
        mistakes={"when two tensors of the weight's size are kept while the layer is merged": 2 * size},
        task=sentence + "holds none",
    )
    copies = [s for s in kept if bytes(s) == bytes(W0.untyped_storage())]
    report.at_most(
        "bytes kept while not merged",
        sum(s.nbytes() for s in kept),
        0,
        mistakes={
            "when the copy of W0 is kept after unmerging": size * len(copies),
            "when a tensor of the weight's size, which is not W0, is kept after unmerging": size
            * (len(kept) - len(copies)),
        },
        task=sentence + "holds none",
    )


def _extra(alive: Alive, W0: Tensor, layer: nn.Linear) -> list[torch.UntypedStorage]:
    """The storages that live, without W0 and the layer's parameters, which may have other storages than before."""
    own = {t.untyped_storage().data_ptr() for t in (W0, *layer.parameters())}
    found = [*alive.known, *alive.made]
    return list({s.data_ptr(): s for s in found if s.data_ptr() not in own}.values())
