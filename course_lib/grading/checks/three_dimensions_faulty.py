"""Exercise 12.4: gradients as backward leaves them on the ranks of three dimensions, and the step that sums them.

The model is small and real: an embedding, a layer for each stage, and the embedding again as output matrix. Each rank
gets what its own backward would give: tensor parallelism cuts the matrices, sequence parallelism gives each rank its
part of the tokens in the norm's scale, data parallelism its own sequences, and the tied embedding is used at both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from course_lib.runtime import launch

VOCAB, HIDDEN, FFN, SEQUENCES, TOKENS = 12, 6, 12, 2, 6
KINDS = {
    "cut": "the gradients of the matrices that are cut",
    "whole": "the gradients of the biases",
    "sequence": "the gradients of the norms",
    "tied": "the gradient of the tied embedding",
}
MEAN = "when each data-parallel rank divides by its own number of targets"
NOT_SUMMED = "when each tensor-parallel rank keeps the gradient of its own part of the sequence"
TIED_MEAN = "when the two gradients of the tied embedding are averaged, and not added up"


@dataclass(frozen=True)
class Batch:
    """How many of each data-parallel rank's 12 targets are padding."""

    padded: tuple[int, ...]


def faulty_step(gradients, kinds, count, groups):
    """Make this rank's gradients those of the mean loss over all targets, in place."""
    for name, gradient in gradients.items():
        gradient /= count
        dist.all_reduce(gradient, group=groups["dp"])
        gradient /= groups["dp"].size()
        if kinds[name] == "tied" and groups["ends"] is not None:
            dist.all_reduce(gradient, group=groups["ends"])
            gradient /= 2


# ---- one device -------------------------------------------------------------------------------------------


@cache
def whole_gradients(stages: int, padded: int, seed: int, data_rank: int, parts: int) -> dict[str, Tensor]:
    """One data-parallel rank's gradients of the **sum** of its losses, by name; of the scales by part of the sequence.

    ``"0.embedding"`` is the gradient of the embedding as it reads tokens, ``"last.embedding"`` as the output matrix.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)

    embedding = drawn(VOCAB, HIDDEN)
    layers = [(drawn(HIDDEN), drawn(FFN, HIDDEN), drawn(FFN, HIDDEN), drawn(HIDDEN)) for _ in range(stages)]
    generator.manual_seed(seed + 1 + data_rank)
    tokens, targets = torch.randint(VOCAB, (2, SEQUENCES, TOKENS), generator=generator)
    targets.view(-1)[torch.randperm(SEQUENCES * TOKENS, generator=generator)[:padded]] = -100

    leaves = {}
    reads = leaves["0.embedding"] = embedding.detach().clone().requires_grad_()
    writes = leaves["last.embedding"] = embedding.detach().clone().requires_grad_()
    x = reads[tokens]
    for i, (scale, up, down, bias) in enumerate(layers):
        of_parts = leaves[f"{i}.norm"] = scale.detach().expand(parts, HIDDEN).clone().requires_grad_()
        leaves |= {f"{i}.up": up, f"{i}.down": down, f"{i}.bias": bias}
        normed = F.layer_norm(x, (HIDDEN,)) * of_parts.repeat_interleave(TOKENS // parts, 0)
        x = x + torch.relu(normed @ up.T) @ down + bias
    loss = F.cross_entropy(
        (x @ writes.T).flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=-100
    )
    found = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def kind_of(name: str) -> str:
    kinds = {"embedding": "tied", "norm": "sequence", "bias": "whole"}
    return kinds.get(name.split(".")[1], "cut")


def stage_of(name: str, stages: int) -> int:
    return stages - 1 if name.startswith("last") else int(name.split(".")[0])


def parts_of(
    axes: Mapping[str, int], batch: Batch, seed: int, place: tuple[int, int, int]
) -> dict[str, Tensor]:
    """What backward leaves on the rank at ``place`` (stage, data rank, tensor rank)."""
    stage, data, tensor = place
    stages, cut = axes["pp"], axes["tp"]
    found: dict[str, Tensor] = {}
    for name, whole in whole_gradients(stages, batch.padded[data], seed, data, cut).items():
        if stage_of(name, stages) != stage:
            continue
        kind, short = kind_of(name), name.split(".")[1]
        part = whole[tensor] if kind == "sequence" else whole
        if kind in ("cut", "tied"):
            part = whole.chunk(cut)[tensor]
        found[short] = found[short] + part if short in found else part.clone()
    return found


def count_of(batch: Batch, data_rank: int) -> int:
    return SEQUENCES * TOKENS - batch.padded[data_rank]


def flat(gradients: Mapping[str, Tensor], kinds: Mapping[str, str]) -> dict[str, Tensor]:
    """The gradients of each kind end to end, by their names' order; nothing where a rank has none of a kind."""
    found = {}
    for kind in KINDS:
        own = [gradients[name].flatten() for name in sorted(gradients) if kinds[name] == kind]
        found[kind] = torch.cat(own) if own else torch.empty(0, dtype=torch.float64)
    return found


def on_each_rank(
    axes: Mapping[str, int],
    batch: Batch,
    seed: int,
    kind: str,
    fault: str = "",
) -> list[Tensor]:
    """What each rank has afterwards of one kind, in the order of the ranks; right, or with a fault."""
    p, d, t = axes["pp"], axes["dp"], axes["tp"]
    places = [(i, j, k) for i in range(p) for j in range(d) for k in range(t)]
    own = {place: parts_of(axes, batch, seed, place) for place in places}
    counts = [count_of(batch, j) for j in range(d)]
    results = []
    for i, mine, k in places:
        after = {}
        for name in own[i, 0, k]:
            is_tied, is_sequence = name == "embedding", name == "norm"
            stages = {0, p - 1} if is_tied and fault != "tied not added" else {i}
            tensors = range(t) if is_sequence and fault != "not summed" else [k]
            if fault == "whole summed" and name == "bias":
                tensors = range(t)
            of_data = [sum(own[s, j, r][name] for s in stages for r in tensors) for j in range(d)]
            if is_tied and fault == "tied over all" and p == 1:
                of_data = [sum(own[0, j, r][name] for j in range(d) for r in range(t))] * d
            total = _joined(of_data, counts, fault, mine)
            if is_tied and fault == "tied mean" and p > 1:
                total = total / 2
            if is_sequence and fault == "sequence mean":
                total = total / t
            after[name] = total
        results.append(flat(after, {name: kind_of(f"0.{name}") for name in after})[kind])
    return results


def _joined(of_data: list[Tensor], counts: list[int], fault: str, mine: int) -> Tensor:
    """One gradient out of those of the data-parallel ranks, which are of sums over their targets.

    ``mine``: the data-parallel rank that would divide by its own number of targets. Faults that end in "or 1" divide
    by 1 where a rank has no target.
    """
    d = len(counts)
    if fault.endswith("or 1"):
        counts = [max(count, 1) for count in counts]
    if fault.startswith("mean of means"):
        return sum(g / c for g, c in zip(of_data, counts, strict=True)) / d
    if fault.startswith("own number times the ranks"):
        return sum(of_data) / counts[mine] / d
    divisor = {"not divided": 1, "by the ranks, too": d * sum(counts), "by the ranks": d}.get(
        fault, sum(counts)
    )
    return sum(of_data) / divisor


def completed(fault: str, kind: str) -> Callable[..., list[Tensor]]:
    return partial(on_each_rank, kind=kind, fault=fault)


MENDING = {
    MEAN: "mean of means",
    f"{MEAN}, or by 1 where it has none": "mean of means, or 1",
    "when the sum is divided by a rank's own number of targets times the ranks": "own number times the ranks",
    "when the sum is divided by a rank's own number of targets, at least 1, times the ranks": (
        "own number times the ranks, or 1"
    ),
    NOT_SUMMED: "not summed",
    TIED_MEAN: "tied mean",
    "when nothing is divided by the number of targets": "not divided",
    "when the sum is divided by the data-parallel ranks as well as by all targets": "by the ranks, too",
    "when the sum is divided by the data-parallel ranks, and not by the targets": "by the ranks",
    "when the two gradients of the tied embedding are not added up": "tied not added",
    "when the tied embedding of a single stage is added up over all ranks, which is what `group=None` means": (
        "tied over all"
    ),
    "when the parts of the sequence are averaged, and not added up": "sequence mean",
    "when gradients that are already whole are added up over the tensor-parallel ranks": "whole summed",
}


# ---- on the ranks -----------------------------------------------------------------------------------------


def process_groups(mesh: DeviceMesh) -> dict[str, dist.ProcessGroup | None]:
    """The groups of this rank along tp and dp, and that of the first and the last stage, where they are two ranks."""
    p, mine = mesh["pp"].size(), None
    if p > 1:
        for first, last in zip(
            mesh.mesh[0].flatten().tolist(), mesh.mesh[-1].flatten().tolist(), strict=True
        ):
            group = dist.new_group(
                [first, last]
            )  # every rank makes every group, also those that it is not in
            mine = group if dist.get_rank() in (first, last) else mine
    return {"tp": mesh["tp"].get_group(), "dp": mesh["dp"].get_group(), "ends": mine}


def own_gradients(mesh: DeviceMesh, batch: Batch, seed: int) -> tuple[dict[str, Tensor], dict[str, str], int]:
    """What backward leaves on this rank, the kind of each, and how many targets its data-parallel rank has."""
    axes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
    place = tuple(mesh[axis].get_local_rank() for axis in ("pp", "dp", "tp"))
    gradients = parts_of(axes, batch, seed, place)
    return gradients, {name: kind_of(f"0.{name}") for name in gradients}, count_of(batch, place[1])


def _norms(mesh: DeviceMesh, batch: Batch, seed: int) -> dict[str, Tensor]:
    groups = process_groups(mesh)
    gradients, kinds, count = own_gradients(mesh, batch, seed)
    faulty_step(gradients, kinds, count, groups)
    return flat(gradients, kinds)


def norms_beside_one_device(batches: list[Batch], seed: int = 12) -> list[list[str]]:
    """Rows of a table: the norm of each kind of gradient after ``faulty_step`` on 2 x 2 x 2 ranks, rank 0's part."""
    axes = {"pp": 2, "dp": 2, "tp": 2}
    rows = {
        kind: [text.removeprefix("the ").removeprefix("gradients of the ").removeprefix("gradient of the ")]
        for kind, text in KINDS.items()
    }
    for batch in batches:
        found = launch(_norms, mesh=axes, args=(batch, seed), backend="gloo")[0]
        for kind, row in rows.items():
            right = on_each_rank(axes, batch, seed, kind)[0]
            row.append(f"{float(found[kind].norm() / right.norm()):.3f}")
    return list(rows.values())
