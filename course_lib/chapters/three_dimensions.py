"""Three dimensions by hand: tensor, data and pipeline parallelism in one
training step (Narayanan et al., arXiv:2104.04473).

A rank is a number with three digits: which part of each matrix it holds
(tp), which samples it sees (dp), which layers it has (pp). Ranks that
agree in two digits form a group along the third axis, and each kind of
message stays in its group:

    tp    activations, summed in every layer, forward and backward
    pp    activations to the next stage, their gradients back
    ends  the gradient of the tied embedding, at first and last stage
    dp    gradients, once a step

``train(model, batches, make_optimizer, sizes)`` trains a GPT of
``course_lib.models``. It yields the loss and gradient norm of each step:
those of one device. Chapter 12 changes single lines of this file.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.nn.utils import clip_grads_with_norm_

ORDER = ["tp", "dp", "pp"]  # what stands first varies fastest
SIZES = {"tp": 2, "dp": 2, "pp": 2}  # chapter 12's eight ranks
TIED = ("embedding.tokens.weight", "head.weight")  # on the ends' stages
Weights = dict[str, tuple[Tensor, int | None]]  # shard, dimension cut


def digits_of(rank, sizes, order=ORDER) -> dict[str, int]:
    """Rank 6 of 2 x 2 x 2 is {"tp": 0, "dp": 1, "pp": 1}."""
    digits = {}
    for axis in order:
        rank, digits[axis] = divmod(rank, sizes[axis])
    return digits


def groups_along(axis, sizes, order=ORDER) -> list[list[int]]:
    """The ranks that agree in all other digits form a group."""
    groups = {}
    for rank in range(math.prod(sizes.values())):
        others = digits_of(rank, sizes, order) | {axis: None}
        groups.setdefault(tuple(others.values()), []).append(rank)
    return list(groups.values())


def make_groups(sizes: dict[str, int]) -> dict[str, dist.ProcessGroup]:
    """This rank's group along each axis. Every rank makes every group,
    those of others too: else the ranks wait for each other for ever."""
    every = {axis: groups_along(axis, sizes) for axis in ORDER}
    every["ends"] = [[ranks[0], ranks[-1]] for ranks in every["pp"]]
    own = {}
    for axis, groups in every.items():
        for ranks in groups:
            group = dist.new_group(sorted(set(ranks)))
            if dist.get_rank() in ranks:
                own[axis] = group
    return own


def summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group)
    return x


def sum_of_losses(logits: Tensor, targets: Tensor) -> Tensor:
    logits, targets = logits.flatten(0, 1), targets.flatten()
    return cross_entropy(logits, targets, reduction="sum")


class Enter(torch.autograd.Function):
    """f of chapter 09: a sum along tp in backward only."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return summed(gradient, ctx.group), None


class Leave(torch.autograd.Function):
    """g of chapter 09: a sum along tp in forward only."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return summed(x, group)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient, None


class Row(nn.Module):
    """(batch, seq, in/t) -> (batch, seq, out), with one bias."""

    def __init__(self, layer: nn.Linear, weight, group) -> None:
        super().__init__()
        self.weight, self.bias, self.group = weight, layer.bias, group

    def forward(self, y: Tensor) -> Tensor:
        z = Leave.apply(linear(y, self.weight), self.group)
        return z + self.bias


class Rank:
    """What one rank holds of the model, and what it does in a step."""

    def __init__(self, model: nn.Module, sizes: dict[str, int]) -> None:
        self.sizes, self.group = sizes, make_groups(sizes)
        self.at = digits_of(dist.get_rank(), sizes)
        self.first = self.at["pp"] == 0
        self.last = self.at["pp"] == sizes["pp"] - 1
        self.hidden = model.config.hidden_size
        self.cut_matrices(model.blocks)
        self.keep_own_layers(model)

    def part(self, w: Tensor, dim: int) -> nn.Parameter:
        parts = w.detach().chunk(self.sizes["tp"], dim)
        held = nn.Parameter(parts[self.at["tp"]].clone())
        held.cut = dim
        return held

    def cut_matrices(self, blocks: nn.ModuleList) -> None:
        """tp: columns, then rows, as in chapter 09."""
        tp = self.group["tp"]
        for block in blocks:
            attention, mlp = block.attention, block.mlp
            q, k, v = attention.query, attention.key, attention.value
            for layer in (q, k, v, mlp.up):
                layer.weight = self.part(layer.weight, 0)  # (out/t, in)
                layer.bias = self.part(layer.bias, 0)
            for parent, name in ((attention, "output"), (mlp, "down")):
                layer = getattr(parent, name)
                weight = self.part(layer.weight, 1)  # (out, in/t)
                setattr(parent, name, Row(layer, weight, tp))
                parent.register_forward_pre_hook(lambda _, x: (Enter.apply(x[0], tp),))

    def keep_own_layers(self, model: nn.Module) -> None:
        """pp: a run of blocks; the ends have the embedding and the head,
        which are one matrix, so both ends hold a copy of it."""
        stages, n = self.sizes["pp"], len(model.blocks)
        cuts = [s * n // stages for s in range(stages + 1)]
        own = range(cuts[self.at["pp"]], cuts[self.at["pp"] + 1])
        layers = {f"blocks.{i}": model.blocks[i] for i in own}
        if self.first:
            layers = {"embedding": model.embedding} | layers
        if self.last:
            layers |= {"norm": model.norm, "head": model.head}
        self.layers = layers
        ends = stages > 1 and (self.first or self.last)
        self.tied = model.head.weight if ends else None

    def parameters(self) -> dict[str, nn.Parameter]:
        """By their names in the whole model; a tied one stands once."""
        found = {}
        for prefix, layer in self.layers.items():
            for name, w in layer.named_parameters():
                if not any(w is other for other in found.values()):
                    found[f"{prefix}.{name}"] = w
        return found

    def step(self, inputs, targets) -> Tensor:
        """Gradients of the mean loss over all targets of all ranks, and
        that loss. One pair of tensors for each microbatch."""
        own = sum((y != -100).sum() for y in targets).float()  # padding
        of_all = summed(own, self.group["dp"])
        kept, total = [], torch.zeros(())
        for x, target in zip(inputs, targets, strict=True):
            x, y = self.forward(x)
            if self.last:
                loss = sum_of_losses(y, target)
                total += loss.detach()
                y = loss / of_all
            kept.append((x, y))
        for x, y in kept:
            self.backward(x, y)
        self.complete_gradients()
        dist.all_reduce(total)
        return total / self.sizes["tp"] / of_all

    def neighbour(self, step: int) -> int:
        """The rank of the next stage (1) or of the one before (-1)."""
        ranks = dist.get_process_group_ranks(self.group["pp"])
        return ranks[self.at["pp"] + step]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.first:
            x = torch.empty(*x.shape, self.hidden)
            dist.recv(x, self.neighbour(-1), self.group["pp"])
            x.requires_grad_()
        y = x
        for layer in self.layers.values():
            y = layer(y)
        if not self.last:
            dist.send(y.detach(), self.neighbour(1), self.group["pp"])
        return x, y

    def backward(self, x: Tensor, y: Tensor) -> None:
        gradient = None
        if not self.last:
            gradient = torch.empty_like(y)
            dist.recv(gradient, self.neighbour(1), self.group["pp"])
        y.backward(gradient)
        if not self.first:
            dist.send(x.grad, self.neighbour(-1), self.group["pp"])

    def complete_gradients(self) -> None:
        """Each copy of a weight gets the gradient of all its uses."""
        if self.tied is not None:
            dist.all_reduce(self.tied.grad, group=self.group["ends"])
        weights = list(self.parameters().values())
        gradients = torch.cat([w.grad.flatten() for w in weights])
        dist.all_reduce(gradients, group=self.group["dp"])
        sums = gradients.split([w.numel() for w in weights])
        for w, gradient in zip(weights, sums, strict=True):
            w.grad = gradient.view_as(w)

    def gradient_norm(self) -> Tensor:
        """Parts add up along tp, stages along pp; copies count once."""
        cut, whole = torch.zeros(2)
        for w in self.parameters().values():
            if hasattr(w, "cut"):
                cut += w.grad.square().sum()
            elif w is not self.tied or self.first:
                whole += w.grad.square().sum()
        squares = summed(cut, self.group["tp"]) + whole
        return summed(squares, self.group["pp"]).sqrt()

    def clip(self, norm: Tensor, max_norm: float) -> None:
        """The norm of the whole model, not of this rank's part."""
        weights = self.parameters().values()
        clip_grads_with_norm_(weights, max_norm, norm)


def train(model, batches, make_optimizer, sizes, micro=1, max_norm=1.0):
    """``micro`` microbatches a data-parallel rank. All ranks get the
    same batches and models, and take their part of them."""
    rank = Rank(model, sizes)
    optimizer = make_optimizer(rank.parameters().values())
    for batch in batches:
        own = [t.chunk(sizes["dp"])[rank.at["dp"]] for t in batch]
        loss = rank.step(*(t.chunk(micro) for t in own))
        norm = rank.gradient_norm()
        rank.clip(norm, max_norm)
        optimizer.step()
        optimizer.zero_grad()
        yield loss, norm
