"""What newer runs need, by hand: fp32 gradients, fp8, head dim, overlap by traffic, flat rings, measured sizes."""

from dataclasses import replace

import pytest

from simulator.inputs.hardware import Hardware, Link
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.collective_time import collective_seconds, exposed, group_link
from simulator.predict.flops import forward_flops
from simulator.predict.kernel_time import at_size, flash_seconds, matmul_seconds, memory_seconds
from simulator.predict.layer_time import layer_seconds, logits_seconds
from simulator.predict.memory import (
    head_bytes,
    layer_bytes,
    model_states,
    placeholder_bytes,
    plan_memory,
    reserved_bytes,
)
from simulator.predict.step import step_cost

A100, H100 = GPUS["a100-80gb"], GPUS["h100"]
LLAMA = MODELS["llama-2-7b"]
SMALL = ModelShape(layers=8, hidden=1024, heads=16, vocab=32000, sequence=1024)


# ---- memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "bytes_each"),
    [
        (dict(gradients="fp32"), 2 + 4 + 12),
        (dict(gradients="fp32", dp=4, zero=1), 2 + 4 + 12 / 4),
        (dict(gradients="fp32", dp=4, zero=2), 2 + 4 / 4 + 12 / 4),
        (dict(gradients="fp32", dp=4, zero=3), (2 + 4 + 12) / 4),
        (dict(gradients="fp32", precision="fp32"), 16),  # they have 4 bytes anyway
        (dict(precision="fp8"), 16),
    ],
)
def test_bytes_of_one_parameter(plan, bytes_each):
    assert model_states(1, Plan(**plan)).total == bytes_each


def test_placeholders_of_gradients_that_a_kernel_adds_by_itself():
    """One empty 16-bit tensor for each weight of a layer, shared by all layers, and one for the output matrix."""
    plan = Plan(pp=2, tp=2, gradients="fp32")
    layer = 2 * LLAMA.layer_parameters(2)
    assert placeholder_bytes(LLAMA, plan, 0) == layer
    assert placeholder_bytes(LLAMA, plan, 1) == layer + 2 * 16000 * 4096
    assert (
        placeholder_bytes(LLAMA, Plan())
        == placeholder_bytes(LLAMA, Plan(gradients="fp32", dp=2, zero=3))
        == 0
    )


def test_a_fused_loss_keeps_the_logits_in_16_bits():
    unfused, fused = (head_bytes(LLAMA, Plan(loss=loss)) for loss in ("unfused", "fused"))
    assert unfused - fused == 2 * LLAMA.sequence * LLAMA.vocab


def test_all_to_all_context_parallelism_keeps_the_context_twice():
    ring, exchanged = (
        layer_bytes(LLAMA, Plan(cp=4, context=way, attention="flash")) for way in ("ring", "all-to-all")
    )
    assert exchanged - ring == 2 * LLAMA.sequence / 4 * LLAMA.hidden
    with pytest.raises(ValueError, match="64 ranks cannot share 32 heads"):
        Plan(tp=8, cp=8, context="all-to-all").check(LLAMA)


def test_reserved_memory_is_a_line_of_its_own():
    plan = Plan(tp=8, attention="flash")
    (tensors,), (device,) = plan_memory(LLAMA, plan), plan_memory(LLAMA, plan, H100)
    assert tensors.reserved == 0
    assert device.total == tensors.total == tensors.occupied
    assert device.reserved == reserved_bytes(tensors.total, H100)
    assert device.occupied == device.total + device.reserved
    assert reserved_bytes(100, replace(H100, context=7, fragmentation=0.05)) == 12


# ---- shapes -----------------------------------------------------------------------------------------------


def test_a_head_dim_apart_from_hidden_by_heads():
    """Gemma 2 27B's attention: 32 heads and 16 kv heads of 128 on a width of 4608, which 32 does not make 128."""
    shape = ModelShape(1, 4608, 32, 100, 64, kv_heads=16, head_dim=128, biases=False, learned_positions=False)
    assert shape.attention_parameters() == 4608 * (32 + 16 + 16 + 32) * 128
    assert forward_flops(shape, 1)["projections"] == 2 * 64 * shape.attention_parameters()
    assert forward_flops(shape, 1)["core"] == 4 * 64 * 64 * 32 * 128
    usual = ModelShape(1, 4096, 32, 100, 64)
    assert replace(usual, head_dim=128).parameters == usual.parameters
    same = layer_seconds(usual, Plan(attention="flash"), A100)
    assert layer_seconds(replace(usual, head_dim=128), Plan(attention="flash"), A100) == same
    with pytest.raises(ValueError, match="or give a head dim"):
        ModelShape(1, 100, 3, 100, 64)
    with pytest.raises(ValueError, match="head dim must be a whole number of at least 1, not 0"):
        replace(usual, head_dim=0)


# ---- kernels ----------------------------------------------------------------------------------------------


def test_long_products_run_at_the_sustained_rate():
    device = replace(H100, sustained=0.5, launch=0.0)
    seconds = matmul_seconds(8192, 8192, 8192, device)
    assert seconds == pytest.approx(2 * 8192**3 / (0.5 * device.peak_flops))
    assert matmul_seconds(8192, 8192, 8192, replace(device, sustained=1.0)) < seconds


def test_measured_sizes_take_the_place_of_the_model():
    points = ((1e9, 0.2), (1e11, 0.6))
    assert [at_size(points, size) for size in (1e6, 1e9, 1e10, 1e11, 1e15)] == pytest.approx(
        [0.2, 0.2, 0.4, 0.6, 0.6]
    )
    device = replace(A100, matmul_sizes=points, memory_sizes=((1e6, 0.25), (1e9, 0.75)), launch=0.0)
    n = round((1e10 / 2) ** (1 / 3))
    assert matmul_seconds(n, n, n, device) == pytest.approx(2 * n**3 / (0.4 * 312e12), rel=1e-3)
    assert memory_seconds(1e9, device) == pytest.approx(1e9 / (0.75 * 2039e9))
    assert memory_seconds(0, device) == 0


def test_fp8_halves_large_products_and_is_refused_without_the_arithmetic():
    device = replace(H100, sustained=0.6, sustained_fp8=0.6)
    half = matmul_seconds(16384, 16384, 16384, device, fp8=True) / matmul_seconds(16384, 16384, 16384, device)
    assert half == pytest.approx(989 / 1979, rel=0.01)
    shape = MODELS["llama-3-70b"]
    mixed, fp8 = (layer_seconds(shape, Plan(tp=8, precision=p).on(H100), H100) for p in ("mixed", "fp8"))
    assert fp8.forward["mlp"] < 0.7 * mixed.forward["mlp"]
    assert fp8.forward["norms"] == mixed.forward["norms"]
    assert logits_seconds(shape, Plan(precision="fp8"), H100) == logits_seconds(shape, Plan(), H100)
    with pytest.raises(ValueError, match="a100-80gb has no 8-bit arithmetic"):
        step_cost(SMALL, Plan(precision="fp8"), A100)


def test_flash_attention_ends_with_its_longest_tile():
    device = replace(H100, launch=0.0)
    one, many = (flash_seconds(heads, 4096, 4096, 128, device) for heads in (1, 64))
    tile = 4 * 128 * 4096 * 128 * device.units / (device.peak_flops * device.flash_forward)
    assert one[0] == pytest.approx(tile + (many[0] - tile) / 64)
    assert many[1] == pytest.approx(64 * one[1])


# ---- links ------------------------------------------------------------------------------------------------


def test_in_a_flat_ring_one_card_carries_a_node():
    """Only one rank in eight sends off its node, so one card's bandwidth bounds the ring, not eight cards'."""
    device = replace(A100, flat_ring=0.5, network=Link(0.0, 25e9, 0.4))
    assert group_link(64, 1, device).rate == 8 * 10e9
    assert group_link(64, 1, device, flat=True).rate == 12.5e9
    assert group_link(8, 1, device, flat=True).rate == device.node.rate  # inside a node nothing changes
    assert group_link(64, 1, replace(device, flat_ring=0.0), flat=True).rate == 8 * 10e9
    flat, rails = (collective_seconds("all-gather", 1e9, 64, 1, device, flat=flat) for flat in (True, False))
    assert flat / rails == pytest.approx(80 / 12.5)


def test_beyond_the_rail_a_group_runs_at_the_rate_of_the_spine():
    device = replace(A100, spine=Link(1e-5, 5e9), rail_size=64)
    assert group_link(8, 8, device).rate == device.network.rate
    assert group_link(16, 8, device) == Link(1e-5, 5e9)


# ---- what runs beside what --------------------------------------------------------------------------------


def data_parallel(**plan):
    return step_cost(SMALL, Plan(dp=16, tp=8, **plan), A100).parts["data_parallel"]


def test_each_kind_of_overlap_hides_its_own_traffic():
    size = 2 * Plan(tp=8).parameters_of(SMALL, 0)[0]
    ring = collective_seconds("all-reduce", size, 16, 8, A100)
    assert data_parallel(overlap=()) == pytest.approx(ring)
    assert data_parallel(overlap=("gradients",)) < ring
    assert data_parallel(overlap=("parameters",)) == pytest.approx(ring)  # without ZeRO nothing is gathered
    halves = [collective_seconds(name, size, 16, 8, A100) for name in ("reduce-scatter", "all-gather")]
    assert data_parallel(zero=1, overlap=()) == pytest.approx(sum(halves))
    hidden = [data_parallel(zero=1, overlap=(kind,)) for kind in ("gradients", "parameters")]
    assert all(sum(halves) / 2 <= seconds < sum(halves) for seconds in hidden)
    experts = Plan(dp=8, ep=8, attention="flash")
    bare, beside = (
        layer_seconds(MODELS["mixtral-8x7b"], replace(experts, overlap=kinds), H100).forward
        for kinds in ((), ("experts",))
    )
    assert beside["expert_parallel"] == pytest.approx((1 - H100.overlap) * bare["expert_parallel"])
    with pytest.raises(ValueError, match=r"overlap must be one of gradients, .*, experts, not all"):
        Plan(overlap=("all",))


def test_gradients_in_fp32_are_sent_in_fp32():
    assert data_parallel(gradients="fp32", overlap=()) == pytest.approx(
        2 * data_parallel(overlap=()), rel=0.01
    )


def test_zero_3_without_prefetch_hides_no_gather():
    ahead, now = (step_cost(SMALL, Plan(dp=64, zero=3, prefetch=n), A100).parts for n in (1, 0))
    assert now["data_parallel"] > ahead["data_parallel"]
    assert exposed(10, 4, A100, 0.75) == 7


def test_tensor_traffic_beside_its_product():
    plain, hidden = (
        layer_seconds(LLAMA, Plan(tp=8, attention="flash", overlap=kinds), H100)
        for kinds in ((), ("tensor",))
    )
    both = [layer.forward["tensor_parallel"] for layer in (plain, hidden)]
    assert both[1] == pytest.approx(both[0] * (1 - H100.overlap))


def test_sequence_parallelism_gathers_its_inputs_again():
    plan = Plan(tp=8, attention="flash")
    whole, split = (layer_seconds(LLAMA, replace(plan, sequence_parallel=sp), H100) for sp in (False, True))
    again = 2 * collective_seconds("all-gather", 2 * LLAMA.sequence * LLAMA.hidden, 8, 1, H100)
    more = split.backward["tensor_parallel"] - whole.backward["tensor_parallel"]
    assert more == pytest.approx(again * (1 - H100.overlap))


def test_products_hide_no_more_than_they_last():
    layer = layer_seconds(LLAMA, Plan(tp=16, attention="flash"), H100)  # over two machines
    sent, waited = (side["tensor_parallel"] for side in (layer.forward, layer.backward))
    assert layer.weight < sent
    assert waited == pytest.approx(sent - H100.overlap * layer.weight)


def test_messages_between_stages_beside_another_chunk():
    plan = dict(pp=4, microbatches=8, attention="flash")
    for chunks, hides in ((1, False), (2, True)):
        sent, hidden = (
            step_cost(SMALL, Plan(**plan, chunks=chunks, overlap=kinds), H100).parts["pipeline"]
            for kinds in ((), ("pipeline",))
        )
        assert hidden == pytest.approx(sent * (1 - H100.data_overlap) if hides else sent)


def test_all_to_all_moves_queries_keys_values_and_the_context():
    device = Hardware("ideal", 1e15, 1e11, 1e30, Link(0.0, 1e9), Link(0.0, 1e9))
    forward = layer_seconds(LLAMA, Plan(cp=4, context="all-to-all", attention="flash"), device).forward
    moved = 4 * 2 * LLAMA.sequence / 4 * LLAMA.hidden
    assert forward["context_parallel"] == pytest.approx(moved * 3 / 4 / 1e9)
