"""What a layer sends while it computes, byte by byte: each cost is held to its formula, forward and backward."""

from dataclasses import replace

import pytest

from simulator.inputs.hardware import Hardware, Link
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.layer_time import layer_seconds

# Links whose latency is nothing, and memory and arithmetic that cost next to nothing: only bytes count.
NODE = Link(0.0, 1e9)
FAST = Hardware("bytes", 1e30, 1e12, 1e30, NODE, NODE, overlap=1e-9, launch=0.0)
SHAPE = ModelShape(layers=4, hidden=64, heads=8, vocab=128, sequence=256)


def test_the_ring_of_context_parallelism_carries_keys_and_values_and_backward_their_gradients_too():
    """arXiv:2310.01889: each rank passes on p - 1 blocks of keys and values; backward, with as many gradients."""
    p, b = 4, 3
    layer = layer_seconds(SHAPE, Plan(cp=p, micro_batch=b, attention="flash"), FAST)
    block = 2 * (2 * b * SHAPE.sequence // p * SHAPE.hidden)  # keys and values, two bytes each
    assert layer.forward["context_parallel"] == pytest.approx((p - 1) * block / 1e9, rel=1e-6)
    assert layer.backward["context_parallel"] == pytest.approx(2 * (p - 1) * block / 1e9, rel=1e-6)


def test_all_to_all_context_parallelism_sends_four_tensors_and_orders_their_pieces():
    """Ulysses, arXiv:2309.14509: q, k, v and the context, (p - 1) / p of each to other ranks, each way."""
    p, b = 4, 3
    slow_memory = replace(FAST, memory_bandwidth=1e9, memory_efficiency=1.0)
    layer = layer_seconds(
        SHAPE, Plan(cp=p, context="all-to-all", micro_batch=b, attention="flash"), slow_memory
    )
    moved = 2 * 4 * b * SHAPE.sequence // p * SHAPE.hidden
    exchanged = moved * (p - 1) / p / 1e9
    ordered = 4 * moved / 1e9  # both ends read and write everything
    assert layer.forward["context_parallel"] == pytest.approx(exchanged + ordered, rel=1e-6)
    assert layer.backward["context_parallel"] == layer.forward["context_parallel"]


def test_attention_hides_a_ring_backward_as_forward():
    """With a device that hides all it can, and a core that is longer than the ring, nothing is left of it."""
    slow = replace(FAST, peak_flops=1e6, overlap=1.0)
    layer = layer_seconds(SHAPE, Plan(cp=4, attention="flash"), slow)
    assert layer.forward["context_parallel"] == layer.backward["context_parallel"] == 0


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_dispatching_to_experts_and_back_is_two_all_to_alls_each_way(sequence_parallel):
    """arXiv:2006.16668: k copies of every token travel to their experts and back, p - 1 of p of them to other ranks."""
    mixtral, ep, tp, b = MODELS["mixtral-8x7b"], 4, 2, 2
    plan = Plan(dp=4, tp=tp, ep=ep, micro_batch=b, sequence_parallel=sequence_parallel, attention="flash")
    layer = layer_seconds(mixtral, plan, FAST)
    copies = (
        2
        * b
        * mixtral.sequence
        * mixtral.experts_per_token
        * mixtral.hidden
        / (tp if sequence_parallel else 1)
    )
    once = copies * (ep - 1) / ep / 1e9
    assert layer.forward["expert_parallel"] == pytest.approx(2 * once, rel=1e-6)
    assert layer.backward["expert_parallel"] == pytest.approx(2 * once, rel=1e-6)
    assert layer_seconds(mixtral, replace(plan, ep=1), FAST).forward["expert_parallel"] == 0


@pytest.mark.parametrize("ep", [1, 2])
def test_experts_also_read_and_write_what_they_are_dealt(ep):
    """Tokens become k copies in the order of the experts, and k copies a token again; copies from several ranks are put
    in order once more where a rank has several experts."""
    memory = replace(FAST, memory_bandwidth=1e9, memory_efficiency=1.0)
    mixtral = MODELS["mixtral-8x7b"]
    layer = layer_seconds(mixtral, Plan(dp=8, ep=ep, attention="flash"), memory)
    tokens, k, E, h, f = (
        mixtral.sequence,
        mixtral.experts_per_token,
        mixtral.experts,
        mixtral.hidden,
        mixtral.ffn,
    )
    # of one expert: gate and up together, down
    sizes = [(tokens * k * ep // E, 2 * f, h), (tokens * k * ep // E, h, f)]
    bytes_of = [2 * (m * n + m * k + k * n) for m, n, k in sizes]
    products = E / ep * sum(bytes_of) / 1e9
    router = 2 * (tokens * E + tokens * h + h * E) / 1e9
    again = 4 * k if ep > 1 else 0
    dealt, inner = (2 * (k + 1) + again) * 2 * tokens * h / 1e9, 3 * 2 * tokens * k * f / 1e9
    assert layer.forward["mlp"] == pytest.approx(router + products + inner + dealt, rel=1e-5)
    # Backward, one product reads and writes the same three matrices; the other one ends with its 16-bit output.
    weights = E / ep * sum(2 * k * n for m, n, k in sizes) / 1e9
    assert layer.backward["mlp"] == pytest.approx(
        2 * router + products + weights + inner * 5 / 3 + dealt, rel=1e-5
    )


def test_tensor_parallel_layers_reduce_twice_each_way():
    """arXiv:1909.08053: two all-reduces of the activations forward, two of their gradients backward."""
    t, b = 4, 3
    layer = layer_seconds(SHAPE, Plan(tp=t, micro_batch=b, attention="flash"), FAST)
    activations = 2 * b * SHAPE.sequence * SHAPE.hidden
    once = 2 * (t - 1) / t * activations / 1e9
    assert layer.forward["tensor_parallel"] == pytest.approx(2 * once, rel=1e-6)
    assert layer.backward["tensor_parallel"] == pytest.approx(2 * once, rel=1e-6)
