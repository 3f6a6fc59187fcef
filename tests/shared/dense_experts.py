"""Experts on one device, written independently of the library: every expert computes every token, and one-hot masks
with a running count say what of it is used (GShard, arXiv:2006.16668, figure 2)."""

from functools import partial

import torch
import torch.nn.functional as F

from course_lib.by_hand.experts import Experts


def route(layer, x):
    """Of the tokens in ``x``: probabilities (T, E), weights of the k choices (T, k), and two masks (T, k, E) of them,
    without and with a capacity."""
    p = torch.softmax(x.flatten(0, 1) @ layer.router.weight.T, -1)
    chosen = (p + layer.bias).argsort(-1, descending=True)[:, : layer.k]
    weights = p.gather(-1, chosen)
    wanted = F.one_hot(chosen, layer.E)
    most = float("inf") if layer.capacity is None else -(-wanted.sum() * layer.capacity // layer.E)
    place = wanted.flatten(0, 1).cumsum(0).view_as(wanted)
    return p, weights / weights.sum(-1, keepdim=True), wanted, wanted * (place <= most)


def forward(layer, x):
    p, weights, wanted, kept = route(layer, x)
    layer.wanted, layer.kept_mask = wanted, kept
    shares = wanted.sum((0, 1)) / wanted.sum()
    layer.balance = layer.alpha * layer.E * (shares * p.mean(0)).sum()
    every = torch.stack([expert(x.flatten(0, 1)) for expert in layer.experts.values()])
    return torch.einsum("tk,tke,eth->th", weights, kept.to(weights), every).view_as(x)


def train(model, batches, make_optimizer, loss_fn, **settings):
    """As the files of ``course_lib/by_hand``."""
    for block in model.blocks:
        block.mlp = Experts(block.mlp, **settings)  # its parameters, not its work
        block.mlp.forward = partial(forward, block.mlp)
    layers = [block.mlp for block in model.blocks]
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        (loss + sum(layer.balance for layer in layers)).backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        for layer in layers:
            load = layer.wanted.sum((0, 1)).to(layer.bias)
            layer.bias += layer.u * torch.sign(load.mean() - load)
        yield loss.detach(), norm
