"""Activation offload beside every other axis: the same plan without it, bit for bit."""

import gc

import pytest
import torch

from course_lib.models.llama import Llama, LlamaConfig
from course_lib.parallelize import mesh_axes, parallelize
from course_lib.runtime import launch
from course_lib.runtime.fork_server import preload
from course_lib.runtime.mesh import make_mesh
from simulator.inputs.plan import Plan

preload("course_lib.parallelize")
PLANS = {
    2: [
        {"dp": 2, "microbatches": 2},
        {"dp": 2, "zero": 2},
        {"dp": 2, "zero": 3},
        {"tp": 2, "sequence_parallel": True},
        {"cp": 2},
        {"pp": 2, "microbatches": 3},
        {"pp": 2, "microbatches": 3, "schedule": "zb-h1"},
        {"pp": 2, "microbatches": 2, "schedule": "interleaved-1f1b", "chunks": 2},
    ]
}


def gradients(settings, recompute):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    llama = Llama(LlamaConfig.tiny(vocab_size=64, **sizes))
    plan = Plan(**settings, precision="fp32", recompute=recompute)
    model, _ = parallelize(llama, plan, make_mesh(mesh_axes(plan)))
    tokens = torch.randint(64, (6, 16), generator=torch.Generator().manual_seed(1))
    loss = model.forward_backward(tokens, tokens)
    return {"loss": loss, **model.gradients()}, model.host


def run(plans):
    for settings in plans:
        plain, _ = gradients(settings, "none")
        moved, host = gradients(settings, "offload")
        for name, gradient in plain.items():
            assert torch.equal(gradient, moved[name]), (settings, name)
        gc.collect()
        assert host.peak > 0 == host.bytes, settings
        assert host.back.bytes, settings


@pytest.mark.parametrize("ranks", PLANS)
def test_every_plan_has_the_same_gradients_bit_for_bit(ranks):
    launch(run, ranks, args=(PLANS[ranks],))
