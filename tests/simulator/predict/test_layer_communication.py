"""What a layer sends while it computes, byte by byte: each cost is held to its formula, forward and backward."""

from dataclasses import replace

import pytest

from simulator.inputs.hardware import Hardware, Link
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.collective_time import dispatch_seconds
from simulator.predict.layer_time import core_seconds, layer_seconds

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


def test_contiguous_pieces_wait_for_the_last_one():
    """Counted position by position: of n pieces the last meets 2 n - 1 times a half, and the mean is n halves."""
    slow, shape = replace(FAST, peak_flops=1e12, units=1), replace(SHAPE, sequence=2**16)
    zigzag, contiguous = (
        layer_seconds(shape, Plan(cp=8, zigzag=way, attention="flash", context="all-gather"), slow)
        for way in (True, False)
    )
    piece = 2**13
    met = [sum(range(k * piece + 1, (k + 1) * piece + 1)) for k in range(8)]
    slower = max(met) / (sum(met) / 8)
    assert slower == pytest.approx(2 - 1 / 8, rel=1e-4)
    core = core_seconds(shape, Plan(cp=8, attention="flash"), slow, 8, piece)
    more = (slower - 1) * core[0], (slower - 1) * core[1]
    assert contiguous.forward["attention"] - zigzag.forward["attention"] == pytest.approx(more[0], rel=1e-3)
    assert contiguous.backward["attention"] - zigzag.backward["attention"] == pytest.approx(more[1], rel=1e-3)


def test_keys_and_values_are_gathered_once_forward_and_twice_the_bytes_move_backward():
    p, b = 4, 3
    layer = layer_seconds(SHAPE, Plan(cp=p, context="all-gather", micro_batch=b, attention="flash"), FAST)
    gathered = 2 * 2 * b * SHAPE.sequence * SHAPE.hidden * (p - 1) / p / 1e9
    assert layer.forward["context_parallel"] == pytest.approx(gathered, rel=1e-6)
    assert layer.backward["context_parallel"] == pytest.approx(2 * gathered, rel=1e-6)


def test_an_all_to_all_inside_of_a_ring_sends_four_tensors_and_passes_on_keys_of_its_heads():
    """arXiv:2405.07719: of u = 2 neighbours each has half of the heads of 2 of 8 parts; a ring of 4 goes between."""
    both, ends = Plan(cp=8, ulysses=2, micro_batch=3, attention="flash"), {}
    for ulysses in (1, 8):
        ends[ulysses] = layer_seconds(SHAPE, replace(both, ulysses=ulysses), FAST)
    layer, one = layer_seconds(SHAPE, both, FAST), 2 * 3 * SHAPE.sequence // 8 * SHAPE.hidden
    assert layer.forward["context_parallel"] == pytest.approx((4 * one / 2 + 3 * 2 * one) / 1e9, rel=1e-6)
    assert layer.backward["context_parallel"] == pytest.approx((4 * one / 2 + 6 * 2 * one) / 1e9, rel=1e-6)
    assert ends[1] == layer_seconds(SHAPE, replace(both, ulysses=1, context="ring"), FAST)
    assert ends[8] == layer_seconds(SHAPE, replace(both, ulysses=1, context="all-to-all"), FAST)


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


@pytest.mark.parametrize("tp", [1, 2])
def test_dispatching_to_experts_and_back_is_two_all_to_alls_each_way(tp):
    """arXiv:2006.16668: k copies of every token travel to their experts and back, p - 1 of p of them to other ranks."""
    mixtral, ep, b = MODELS["mixtral-8x7b"], 4, 2
    plan = Plan(dp=4, tp=tp, ep=ep, micro_batch=b, sequence_parallel=True, attention="flash")
    layer = layer_seconds(mixtral, plan, FAST)
    copies = 2 * b * mixtral.sequence * mixtral.experts_per_token * mixtral.hidden / tp
    once = copies * (ep - 1) / ep / 1e9
    assert layer.forward["expert_parallel"] == pytest.approx(2 * once, rel=1e-6)
    assert layer.backward["expert_parallel"] == pytest.approx(2 * once, rel=1e-6)
    assert layer_seconds(mixtral, replace(plan, ep=1), FAST).forward["expert_parallel"] == 0


def test_tensor_parallel_ranks_have_routed_experts_whole_for_a_part_of_the_tokens():
    """No region, so half of what a dense layer gathers and scatters; their gradients and the router's are added up."""
    mixtral = MODELS["mixtral-8x7b"]
    plan, one = (
        Plan(dp=2, ep=2, tp=4, sequence_parallel=True, attention="flash"),
        {"experts": 1, "experts_per_token": 1},
    )
    whole, dense = (layer_seconds(shape, plan, FAST) for shape in (mixtral, replace(mixtral, **one)))
    shared = layer_seconds(replace(mixtral, shared_experts=1), plan, FAST)
    assert whole.forward["tensor_parallel"] == pytest.approx(dense.forward["tensor_parallel"] / 2)
    assert shared.forward["tensor_parallel"] == dense.forward["tensor_parallel"]
    summed = 4 * mixtral.expert_parameters() + mixtral.router_parameters  # of 4 experts
    added = whole.backward["tensor_parallel"] - dense.backward["tensor_parallel"] / 2
    assert added == pytest.approx(2 * summed * 2 * 3 / 4 / 1e9, rel=1e-6)  # a ring all-reduce among 4
    # a fourth of the tokens and of the copies, and whole matrices: as many operations as of matrices cut in 4
    slow = replace(FAST, peak_flops=1e6, units=1)
    of_all = layer_seconds(mixtral, replace(plan, tp=1), slow).forward["mlp"]
    assert layer_seconds(mixtral, plan, slow).forward["mlp"] == pytest.approx(of_all / 4, rel=0.02)


def test_tokens_that_travel_in_8_bits_come_back_in_16():
    """arXiv:2412.19437, section 3.3.2: one byte and, for 128 numbers, a scale of four."""
    mixtral, plan = MODELS["mixtral-8x7b"], Plan(dp=8, ep=8, attention="flash")
    whole, eighth = (
        layer_seconds(mixtral, replace(plan, dispatch=way), FAST).forward["expert_parallel"]
        for way in ("same", "fp8")
    )
    assert eighth / whole == pytest.approx((1 + 4 / 128 + 2) / 4)


def test_the_busiest_rank_decides():
    mixtral, plan = MODELS["mixtral-8x7b"], Plan(dp=8, ep=8, attention="flash")
    slow = replace(FAST, peak_flops=1e12)
    even, uneven = (layer_seconds(mixtral, replace(plan, imbalance=n), slow) for n in (1, 1.5))
    assert uneven.forward["expert_parallel"] == pytest.approx(1.5 * even.forward["expert_parallel"])
    assert uneven.forward["mlp"] == pytest.approx(1.5 * even.forward["mlp"], rel=0.02)
    assert uneven.forward["attention"] == even.forward["attention"]
    with pytest.raises(ValueError, match=r"imbalance must be a number of at least 1, not 0.5"):
        Plan(imbalance=0.5)


def test_a_token_goes_to_a_node_once_and_on_from_there():
    """8 experts among 4 of 8 nodes: 3.6 nodes, 7 of 8 of them not its own; inside, every copy but its own rank's."""
    device = replace(FAST, network=Link(0.0, 0.2e9))
    nodes = 4 * (1 - (3 / 4) ** 8)
    far, near = 100 * nodes * 7 / 8 * 10 / 0.2e9, 100 * 8 * 7 / 8 * 10 / 1e9
    assert far > near
    assert dispatch_seconds(100, 8, 10, 64, 1, 4, device) == pytest.approx(far)
    assert dispatch_seconds(100, 8, 10, 64, 1, 4, FAST) == pytest.approx(near)
    by_itself = dispatch_seconds(100, 8, 10, 64, 1, None, device)
    assert by_itself == pytest.approx(100 * 8 * 63 / 64 * 10 / 0.2e9)
    assert dispatch_seconds(100, 8, 10, 8, 1, 4, device) == dispatch_seconds(100, 8, 10, 8, 1, None, device)


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
