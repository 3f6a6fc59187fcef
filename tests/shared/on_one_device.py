"""A model that is trained on one device: what every composition must give."""

import torch
from torch import nn

from course_lib.data.sharding import batches
from course_lib.pipeline.microbatches import sum_cross_entropy


def train_on_one_device(model, data, batch, clip, optimizer=None):
    """The losses, the norms before clipping, the gradients of the first step, and the parameters at the end."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, norms, first = [], [], None
    for *inputs, targets in batches(data, batch, epochs=1):
        optimizer.zero_grad()
        loss = sum_cross_entropy(model(*inputs), targets) / (targets != -100).sum()
        loss.backward()
        first = first or {n: p.grad.clone() for n, p in model.named_parameters()}
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
        losses.append(loss.item())
    assert min(norms) > clip, "the gradients must be clipped"
    return losses, norms, first, model.state_dict()
