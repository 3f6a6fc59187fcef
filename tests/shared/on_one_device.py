"""A model that is trained on one device, and under plans that must give the same."""

import torch
from torch import nn

from course_lib.data.sharding import batches
from course_lib.models.experts import balance_loss
from course_lib.parallelize import load_checkpoint, mesh_axes, parallelize, save_checkpoint
from course_lib.pipeline.microbatches import sum_cross_entropy
from course_lib.runtime.mesh import make_mesh


def train_on_one_device(model, data, batch, clip, optimizer=None):
    """The losses, the norms before clipping, the gradients of the first step, and the parameters at the end."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, norms, first = [], [], None
    for *inputs, targets in batches(data, batch, epochs=1):
        optimizer.zero_grad()
        loss = sum_cross_entropy(model(*inputs), targets) / (targets != -100).sum()
        (loss + balance_loss(model)).backward()
        first = first or {n: p.grad.clone() for n, p in model.named_parameters()}
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
        losses.append(loss.item())
    assert min(norms) > clip, "the gradients must be clipped"
    return losses, norms, first, model.state_dict()


MESHES = {}


def mesh_of(plan):
    """Made once for each process: to connect eight ranks along three axes takes longer than a step."""
    if (axes := tuple(mesh_axes(plan).items())) not in MESHES:
        MESHES[axes] = make_mesh(dict(axes))
    return MESHES[axes]


def train_in_parallel(model, optimizer, data, batch, clip):
    """The same of what ``parallelize`` gave."""
    losses, norms, first = [], [], None
    for one in batches(data, batch, rank=model.data_rank, ranks=model.data_ranks, epochs=1):
        optimizer.zero_grad()
        losses.append(model.forward_backward(*one).item())
        first = first or model.gradients()
        norms.append(model.clip_grad_norm(clip).item())
        optimizer.step()
    return losses, norms, first, model.state_dict()


def differences(found, expected):
    """The largest of each of the four."""
    named = [[numbered(each[0]), numbered(each[1]), *each[2:]] for each in (found, expected)]
    return [furthest(ours, theirs) for ours, theirs in zip(*named, strict=True)]


def numbered(numbers):
    return {i: torch.tensor(number, dtype=torch.float64) for i, number in enumerate(numbers)}


def furthest(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - t).abs().max()) for name, t in theirs.items())


def step_from_each_checkpoint(folder, make, rows, plans, **settings):
    """The state after a step under each plan, each from the checkpoint of the one before."""
    for number, plan in enumerate(plans):
        model, optimizer = parallelize(make(), plan, mesh_of(plan), **settings)
        if number:
            load_checkpoint(f"{folder}/{number - 1}", model, optimizer)
        optimizer.zero_grad()
        model.forward_backward(*(t.chunk(model.data_ranks)[model.data_rank] for t in rows))
        optimizer.step()
        save_checkpoint(f"{folder}/{number}", model, optimizer)
    return model.state_dict()
