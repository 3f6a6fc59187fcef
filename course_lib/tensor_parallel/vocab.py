"""The vocabulary cut over the ranks: embedding and cross entropy without a whole table, or whole logits, anywhere.

With V words, rank i holds about V/p rows of the embedding and computes the logits of the same V/p words (Megatron-LM,
arXiv:1909.08053, section 3). To gather the logits would send V numbers for each token; the loss needs three:

    loss = log Σ_v exp(x_v) - x_t = log Σ_v exp(x_v - m) - (x_t - m)        t: the target, m: the largest logit

m is one all-reduce (the maximum); the sum of exponentials and the target's logit, which one rank has, are another.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from course_lib.runtime import trace
from course_lib.tensor_parallel.layers import g, part_of
from course_lib.tensor_parallel.shard import Shard, vocabulary_shard


class VocabParallelEmbedding(nn.Module):
    """``(batch, seq)`` tokens to ``(batch, seq, hidden)``: each rank looks up its own words, and ``g`` adds up.

    Args:
        embedding: the whole table; it is left as it is.
        mesh: the p ranks, one axis.

    Raises:
        ValueError: an option of ``nn.Embedding`` that this one does not have; in forward on the CPU, a token that is
            not in the vocabulary (on a GPU an assertion fails, as in PyTorch).
    """

    def __init__(self, embedding: nn.Embedding, mesh: DeviceMesh) -> None:
        super().__init__()
        shard = embedding_shard(embedding, mesh)
        self.mesh, self.shards = mesh, {"weight": shard}
        self.num_embeddings, self.embedding_dim = shard.length, embedding.embedding_dim
        padding = embedding.padding_idx  # its row has no gradient
        here = padding is not None and shard.start <= padding < shard.start + shard.length
        self.padding_idx = padding - shard.start if here else None
        self.weight = part_of(embedding.weight, shard)  # (vocab/tp, hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        row, here = rows_of(tokens, self.shards["weight"])
        x = F.embedding(row, self.weight, self.padding_idx)  # (batch, seq, hidden)
        return self.leave(x.masked_fill(~here[..., None], 0))

    def leave(self, x: Tensor) -> Tensor:
        return g(x, self.mesh.get_group())

    def extra_repr(self) -> str:
        return f"{self.num_embeddings} of {self.shards['weight'].whole} words, {self.embedding_dim}"


def embedding_shard(embedding: nn.Embedding, mesh: DeviceMesh) -> Shard:
    for option in ("max_norm", "scale_grad_by_freq", "sparse"):
        if getattr(embedding, option):
            raise ValueError(f"an embedding with {option} cannot be cut over ranks: make it without")
    return vocabulary_shard(embedding.num_embeddings, mesh)


class VocabParallelCrossEntropy(nn.Module):
    """``nn.CrossEntropyLoss`` on logits of which each rank has its part of the vocabulary; every rank gets the loss.

    Logits ``(…, vocab/tp)`` and targets ``(…)``, equal on all ranks. Two all-reduces with three numbers a token
    (four with label smoothing), computed in at least fp32. Backward sends nothing.

    Args:
        vocabulary: V, the number of words on all ranks together.
        mesh: the p ranks, one axis.
        ignore_index, reduction, label_smoothing: as in ``nn.CrossEntropyLoss``.

    Raises:
        ValueError: logits of another width, targets of another shape, or a target that is neither a word nor
            ``ignore_index``.
    """

    def __init__(
        self,
        vocabulary: int,
        mesh: DeviceMesh,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction must be mean, sum or none, not {reduction!r}")
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing must be between 0 and 1, not {label_smoothing}")
        self.shard, self.mesh = vocabulary_shard(vocabulary, mesh), mesh
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        self.check(logits, targets)
        kept = targets != self.ignore_index
        words = targets.where(kept, 0)  # any word, where the target is ignored
        group, smoothing = self.mesh.get_group(), self.label_smoothing
        loss = CrossEntropy.apply(logits, words, self.shard, group, smoothing)
        loss = loss.where(kept, 0)  # (…), and no gradient where ignored
        match self.reduction:
            case "none":
                return loss
            case "mean":
                return loss.sum() / kept.sum()
        return loss.sum()

    def check(self, logits: Tensor, targets: Tensor) -> None:
        if logits.shape[-1] != self.shard.length:
            raise ValueError(
                f"the logits have {logits.shape[-1]} columns; this rank's part of the vocabulary has "
                f"{self.shard.length}"
            )
        if logits.shape[:-1] != targets.shape:
            raise ValueError(
                f"the targets {tuple(targets.shape)} must have the shape of the logits without the last dimension, "
                f"{tuple(logits.shape[:-1])}"
            )


class CrossEntropy(torch.autograd.Function):
    """The loss of each token. With label smoothing e the target is (1 - e) of word t and e/V of every word."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        shard: Shard,
        group: ProcessGroup,
        smoothing: float,
    ) -> Tensor:
        x = at_least_fp32(logits)  # (…, vocab/tp)
        largest = x.amax(-1)  # m, without which exp would overflow
        reduce(largest, dist.ReduceOp.MAX, group, "all-reduce largest logits")
        x = x - largest[..., None]
        column, here = rows_of(targets, shard)
        of_target = x.gather(-1, column[..., None])[..., 0].where(here, 0)
        sums = [x.exp().sum(-1), of_target]
        sums = torch.stack([*sums, x.sum(-1)] if smoothing else sums)  # (2 or 3, …)
        reduce(sums, dist.ReduceOp.SUM, group, "all-reduce sums of the loss")
        log_sum = sums[0].log()
        loss = log_sum - sums[1]
        if smoothing:
            of_all = log_sum - sums[2] / shard.whole
            loss = (1 - smoothing) * loss + smoothing * of_all
        ctx.save_for_backward(logits, largest + log_sum, column, here)
        ctx.smoothing, ctx.vocabulary = smoothing, shard.whole
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """softmax - target: every rank computes its columns from what it has."""
        logits, log_sum, column, here = ctx.saved_tensors
        x = at_least_fp32(logits)
        d = (x - log_sum[..., None]).exp_()  # softmax, (…, vocab/tp)
        at_target = (ctx.smoothing - 1) * here.to(d.dtype)  # -1, where the target is here
        d.scatter_add_(-1, column[..., None], at_target[..., None])
        if ctx.smoothing:
            d -= ctx.smoothing / ctx.vocabulary
        d = d.mul_(gradient[..., None]).to(logits.dtype)
        return d, None, None, None, None


def rows_of(words: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """For each word its row in this rank's part, and whether it is there; where it is not, the row is 0.

    Without the check no rank would have the row of a word outside the vocabulary, and the sum would be a silent 0.
    """
    inside = ((words >= 0) & (words < shard.whole)).all()
    if words.is_cuda:
        torch._assert_async(inside)  # the program does not wait for the GPU
    elif not inside:
        wrong = words[(words < 0) | (words >= shard.whole)][0]
        raise ValueError(f"{wrong} is no word: this vocabulary has words 0 to {shard.whole - 1}")
    here = (words >= shard.start) & (words < shard.start + shard.length)
    return (words - shard.start).where(here, 0), here


def at_least_fp32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def reduce(x: Tensor, op: Any, group: ProcessGroup, name: str) -> None:
    if group.size() > 1:
        with trace.span("communication", name):
            dist.all_reduce(x, op, group=group)
