"""Falcon, of which the techniques know its anatomy alone, is as on one device under each of them and under all at once.

Losses of two steps, gradient norms and the trained parameters after them, in fp64.
"""

import pytest
import torch
from torch import nn

from course_lib.models.falcon import Falcon, FalconConfig
from course_lib.parallelize import mesh_axes, parallelize
from course_lib.pipeline.microbatches import sum_cross_entropy
from course_lib.runtime import launch
from course_lib.runtime.mesh import make_mesh
from course_lib.train.tuning import tune
from simulator.inputs.plan import Plan

STEPS, BATCH, SEQ, VOCAB = 2, 4, 8, 31
PLANS = {
    2: [
        {"tp": 2},
        {"tp": 2, "sequence_parallel": True, "recompute": "selective"},
        {"pp": 2, "microbatches": 2},
        {"dp": 2, "zero": 3, "recompute": "full"},
    ],
    4: [{"tp": 2, "pp": 2, "microbatches": 2, "recompute": "full"}],
}


def make(tuning, **changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = Falcon(FalconConfig(**sizes | {"num_kv_heads": 2} | changes))
    if tuning:
        tune(model, **tuning)
    for p in model.parameters():  # norms and B of LoRA start trivial: an error in them would not show
        nn.init.normal_(p, std=0.3 if p.dim() == 1 else 0.1)
    return model.double()


def batch(step):
    return torch.randint(VOCAB, (2, BATCH, SEQ), generator=torch.Generator().manual_seed(step))


def one_device(model):
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2)
    numbers = []
    for step in range(STEPS):
        tokens, targets = batch(step)
        optimizer.zero_grad()
        loss = sum_cross_entropy(model(tokens), targets) / targets.numel()
        loss.backward()
        numbers += [loss.item(), float(nn.utils.clip_grad_norm_(trained.values(), 0.1))]
        optimizer.step()
    return numbers, {name: p.detach() for name, p in trained.items()}


def differences(plans, settings, expected):
    """The furthest of each plan from one device."""
    found = []
    for plan in (Plan(**plan, precision="fp32") for plan in plans):
        mesh = make_mesh(mesh_axes(plan))
        model, optimizer = parallelize(make(*settings), plan, mesh, torch.optim.AdamW, lr=1e-2)
        numbers, own = [], slice(model.data_rank, None, model.data_ranks)
        for step in range(STEPS):
            optimizer.zero_grad()
            numbers.append(model.forward_backward(*(tensor[own] for tensor in batch(step))).item())
            numbers.append(float(model.clip_grad_norm(0.1)))
            optimizer.step()
        state = model.state_dict()
        far = [abs(a - b) for a, b in zip(numbers, expected[0], strict=True)]
        found.append(max(*far, *(float((state[name] - p).abs().max()) for name, p in expected[1].items())))
    return found


@pytest.mark.parametrize("tuning", [{}, {"method": "lora", "rank": 2, "alpha": 4}], ids=["full", "LoRA"])
@pytest.mark.parametrize("ranks", PLANS)
def test_falcon_is_one_devices(ranks, tuning):
    expected = one_device(make(tuning))
    for found in launch(differences, ranks, args=(PLANS[ranks], (tuning,), expected)):
        assert max(found) < 1e-9, dict(zip(map(str, PLANS[ranks]), found, strict=True))


def refusal():
    with pytest.raises(ValueError) as error:
        parallelize(
            make({}, num_kv_heads=1), Plan(tp=2, precision="fp32"), make_mesh({"pp": 1, "dp": 1, "tp": 2})
        )
    return str(error.value)


def test_one_head_of_keys_and_values_is_not_cut():
    said = "query_key_value: 2 ranks cannot share 1 groups of heads equally"
    assert all(said in words for words in launch(refusal, 2))
