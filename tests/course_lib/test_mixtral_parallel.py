"""Mixtral under data and tensor parallelism is as on one device; what would repeat work is refused in a sentence.

Losses of two steps, gradient norms and the trained parameters after them, in fp64.
"""

import pytest
import torch
from torch import nn

from course_lib.models.mixtral import Mixtral, MixtralConfig
from course_lib.parallelize import mesh_axes, parallelize
from course_lib.pipeline.microbatches import sum_cross_entropy
from course_lib.runtime import launch
from course_lib.runtime.mesh import make_mesh
from simulator.inputs.plan import Plan

STEPS, BATCH, SEQ, VOCAB = 2, 4, 8, 31
PLANS = [
    {"dp": 2},
    {"dp": 2, "zero": 2, "microbatches": 2},
    {"dp": 2, "zero": 3, "recompute": "full"},
    {"tp": 2, "sequence_parallel": True},
]
REFUSED = [
    ({"tp": 2}, "sequence parallel must be True with tp 2 for a model with experts, not False"),
]


def make():
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 16}
    model = Mixtral(MixtralConfig.tiny(**sizes, num_local_experts=8))
    for p in model.parameters():
        nn.init.normal_(p, std=0.3 if p.dim() == 1 else 0.1)
    return model.double()


def batch(step):
    return torch.randint(VOCAB, (2, BATCH, SEQ), generator=torch.Generator().manual_seed(step))


def one_device():
    model, numbers = make(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)
    for step in range(STEPS):
        tokens, targets = batch(step)
        optimizer.zero_grad()
        loss = sum_cross_entropy(model(tokens), targets) / targets.numel()
        loss.backward()
        numbers += [loss.item(), float(nn.utils.clip_grad_norm_(model.parameters(), 0.1))]
        optimizer.step()
    return numbers, {name: p.detach() for name, p in model.named_parameters()}


def on_a_rank(expected):
    """How far each plan is from one device; what is said of a plan that is refused."""
    far, said = [], []
    for plan in PLANS:
        plan = Plan(**plan, precision="fp32")
        settings = {"lr": 1e-3, "eps": 1e-3}
        model, optimizer = parallelize(
            make(), plan, make_mesh(mesh_axes(plan)), torch.optim.AdamW, **settings
        )
        numbers, own = [], slice(model.data_rank, None, model.data_ranks)
        for step in range(STEPS):
            optimizer.zero_grad()
            numbers.append(model.forward_backward(*(tensor[own] for tensor in batch(step))).item())
            numbers.append(float(model.clip_grad_norm(0.1)))
            optimizer.step()
        state = model.state_dict()
        apart = [abs(a - b) for a, b in zip(numbers, expected[0], strict=True)]
        far.append(max(*apart, *(float((state[n] - p).abs().max()) for n, p in expected[1].items())))
    for plan, _ in REFUSED:
        plan = Plan(**plan, precision="fp32")
        with pytest.raises(ValueError) as error:
            parallelize(make(), plan, make_mesh(mesh_axes(plan)))
        said.append(str(error.value))
    return far, said


def test_mixtral_is_one_devices_or_refused():
    for far, said in launch(on_a_rank, 2, args=(one_device(),)):
        assert max(far) < 1e-9, dict(zip(map(str, PLANS), far, strict=True))
        for (_, expected), sentence in zip(REFUSED, said, strict=True):
            assert expected in sentence
