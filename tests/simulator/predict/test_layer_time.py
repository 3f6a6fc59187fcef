"""Time: FLOPs by the papers' formulas, rooflines that behave like rooflines, and steps whose parts add up."""

from dataclasses import replace

import pytest

from simulator.inputs.hardware import Hardware
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import RECOMPUTE, Plan
from simulator.inputs.shape import ModelShape
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule
from simulator.predict.collective_time import collective_seconds, exposed, group_link
from simulator.predict.flops import forward_flops, hardware_flops, model_flops
from simulator.predict.kernel_time import flash_seconds, grouped_seconds, matmul_seconds, memory_seconds
from simulator.predict.layer_time import layer_seconds
from simulator.predict.step import PARTS, check_fits, stage_seconds, step_cost

A100, H100 = GPUS["a100-80gb"], GPUS["h100"]
GPT = MODELS["gpt3-175b"]
SMALL = ModelShape(layers=16, hidden=1024, heads=16, vocab=32000, sequence=1024)


# ---- FLOPs ------------------------------------------------------------------------------------------------


def test_flops_formulas_of_the_papers():
    """arXiv:2104.04473, equation 3, and arXiv:2205.05198, appendix A."""
    B, l, s, h, V = 64, GPT.layers, GPT.sequence, GPT.hidden, GPT.vocab
    base = B * l * s * h * h
    selective = Plan(recompute="selective")
    full = Plan(recompute="full")
    assert sum(model_flops(GPT, B).values()) == pytest.approx(
        72 * base * (1 + s / (6 * h) + V / (12 * h * l))
    )
    assert sum(hardware_flops(GPT, selective, B).values()) == pytest.approx(
        72 * base * (1 + s / (3 * h) + V / (12 * h * l))
    )
    assert sum(hardware_flops(GPT, full, B).values()) == pytest.approx(
        96 * base * (1 + s / (6 * h) + V / (16 * h * l))
    )


def test_a_token_costs_two_flops_a_parameter_it_meets():
    for name in ("llama-2-70b", "mixtral-8x7b"):
        shape = MODELS[name]
        forward = forward_flops(shape, 1)
        matrices = shape.active_parameters - shape.vocab * shape.hidden  # looking up a row is no product
        products = sum(forward.values()) - forward["core"]
        assert products == pytest.approx(2 * shape.sequence * matrices, rel=1e-4)  # norms multiply a little


def test_flash_attention_leaves_selective_recomputation_nothing():
    plan = Plan(recompute="selective", attention="flash")
    assert hardware_flops(GPT, plan, 1)["recomputation"] == 0
    assert layer_seconds(GPT, plan, A100).recomputation == 0


# ---- kernels and links ------------------------------------------------------------------------------------


def test_a_large_product_nears_the_efficiency_and_a_small_one_does_not():
    def efficiency(n):
        return 2 * n**3 / matmul_seconds(n, n, n, A100) / A100.peak_flops

    assert efficiency(256) < efficiency(1024) < efficiency(4096) < efficiency(16384)
    assert efficiency(32768) == pytest.approx(A100.matmul_efficiency, rel=0.03)


def test_a_thin_product_is_bound_by_memory():
    seconds = matmul_seconds(8, 8192, 8192, A100)
    assert seconds == pytest.approx(A100.launch + memory_seconds(2 * 8192 * (8192 + 16), A100))


def test_one_tile_more_than_the_processors_costs_a_whole_wave():
    full, more = (matmul_seconds(256 * tiles, 128, 65536, A100) for tiles in (A100.units, A100.units + 1))
    assert (more - A100.launch) / (full - A100.launch) > 1.3


def test_fp32_takes_twice_as_long():
    assert matmul_seconds(4096, 4096, 4096, A100, itemsize=4) == pytest.approx(
        2 * matmul_seconds(4096, 4096, 4096, A100), rel=0.02
    )


def test_rings_run_at_the_rate_of_their_narrowest_link():
    inside = group_link(8, 1, A100)
    assert inside.rate == A100.node.rate
    assert group_link(16, 1, A100).rate == min(A100.node.rate, 8 * A100.network.rate)
    assert group_link(16, 8, A100).rate == A100.network.rate  # one device of each node
    assert group_link(2, 4, A100) == inside


def test_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    whole, scatter, gather = (
        collective_seconds(name, 1e9, 16, 8, A100) for name in ("all-reduce", "reduce-scatter", "all-gather")
    )
    assert whole == pytest.approx(scatter + gather)
    assert whole == pytest.approx(2 * 15 / 16 * 1e9 / A100.network.rate, rel=1e-3)
    assert collective_seconds("all-reduce", 1e9, 1, 1, A100) == 0


def test_a_message_to_everyone_in_other_nodes_goes_over_the_network():
    near, far = (collective_seconds("all-to-all", 1e9, ranks, 1, A100) for ranks in (8, 16))
    assert far > 5 * near


def test_what_overlaps_is_hidden_in_part():
    device = replace(A100, overlap=0.5)
    assert exposed(4, 10, device) == 2
    assert exposed(10, 4, device) == 8
    assert exposed(10, 0, device) == 10


# ---- one layer --------------------------------------------------------------------------------------------


def seconds(shape, hardware=A100, **plan):
    layer = layer_seconds(shape, Plan(**plan), hardware)
    return layer.forward_seconds + layer.backward_seconds


def test_flash_attention_saves_what_the_scores_cost():
    long = replace(SMALL, sequence=8192)
    assert seconds(long, attention="flash") < 0.7 * seconds(long)
    heads, s, d = 96, 8192, 128
    forward, backward = flash_seconds(heads, s, s, d, A100)
    square = 4 * heads * s * s * d / 2  # a causal mask leaves half
    assert forward > square / (A100.peak_flops * A100.flash_forward)
    assert backward == pytest.approx(A100.launch + 2.5 * square / (A100.peak_flops * A100.flash_backward))


def test_tensor_parallel_divides_products_and_adds_communication():
    forward = layer_seconds(GPT, Plan(), A100).forward
    layer = layer_seconds(GPT, Plan(tp=8), A100)
    split = layer.forward
    unhidden = split["tensor_parallel"] * (1 - A100.overlap)  # and no message for experts that are not there
    assert layer.backward["tensor_parallel"] == pytest.approx(unhidden)
    assert split["mlp"] < forward["mlp"] / 6
    assert split["norms"] == forward["norms"]  # every rank does them whole, but for sequence parallelism:
    together = layer_seconds(GPT, Plan(tp=8, sequence_parallel=True), A100).forward
    assert together["norms"] == forward["norms"] / 8
    assert forward["tensor_parallel"] == 0
    assert split["tensor_parallel"] == together["tensor_parallel"] > 0


def test_backward_takes_about_twice_as_long():
    layer = layer_seconds(GPT, Plan(attention="flash"), A100)
    assert layer.backward_seconds == pytest.approx(2 * layer.forward_seconds, rel=0.1)


def test_full_recomputation_is_one_more_forward():
    none, selective, full = (layer_seconds(GPT, Plan(recompute=way), A100) for way in RECOMPUTE[:3])
    assert full.recomputation == none.forward_seconds
    assert 0 < selective.recomputation < none.forward_seconds / 4
    assert none.recomputation == 0
    assert full.backward_seconds == none.backward_seconds + none.forward_seconds


def test_context_parallel_exposes_its_ring_only_where_attention_is_short():
    short, long = (replace(SMALL, sequence=s) for s in (1024, 65536))

    def shown(shape):
        forward = layer_seconds(shape, Plan(cp=8, attention="flash"), A100).forward
        return forward["context_parallel"] / forward["attention"]

    assert shown(short) > 5 * shown(long) > 0


def test_experts_do_the_work_of_k_and_pay_to_meet():
    mixtral = MODELS["mixtral-8x7b"]
    dense = replace(mixtral, experts=1, experts_per_token=1)
    plan = Plan(dp=8, ep=8, attention="flash")
    forward = layer_seconds(mixtral, plan, H100).forward
    once = layer_seconds(dense, Plan(dp=8, attention="flash"), H100).forward
    assert 1.8 < forward["mlp"] / once["mlp"] < 2.6
    assert forward["expert_parallel"] > 0
    assert once["expert_parallel"] == 0


def test_converting_to_fp8_reads_and_writes_every_expert():
    """Inputs, weights and output gradients are read in 16 bits and written twice in 8: 4 bytes an element."""
    mixtral = MODELS["mixtral-8x7b"]
    slow = replace(H100, memory_bandwidth=1e6, memory_efficiency=1.0, memory_sizes=())  # only bytes take time
    plan = Plan(dp=8, ep=4, attention="flash", precision="bf16")
    bf16 = layer_seconds(mixtral, plan, slow)
    fp8 = layer_seconds(mixtral, replace(plan, precision="fp8"), slow)
    h, f, experts = mixtral.hidden, mixtral.ffn, 2  # experts of one rank
    rows = mixtral.sequence * 2 // experts  # tokens of one expert: each token has two experts
    gate_and_up, down = (rows, 2 * f, h), (rows, h, f)
    read = sum(experts * (m * k + k * n) for m, n, k in (gate_and_up, down))
    gradients = sum(experts * m * n for m, n, k in (gate_and_up, down))
    assert fp8.forward["mlp"] - bf16.forward["mlp"] == pytest.approx(4 * read / 1e6)
    assert fp8.backward["mlp"] - bf16.backward["mlp"] == pytest.approx(4 * gradients / 1e6, rel=1e-5)


def test_what_shares_a_scale_decides_what_a_cast_moves():
    """A scale for a tensor serves its transpose, too; one for 128 or 32 numbers in a row does not."""
    slow = replace(H100, memory_bandwidth=1e6, memory_efficiency=1.0, memory_sizes=())
    shape = MODELS["llama-3-8b"]
    plain, tensor, block, mx = (
        layer_seconds(shape, Plan(precision=precision, scaling=way, attention="flash"), slow).forward_seconds
        for precision, way in (("mixed", "tensor"), ("fp8", "tensor"), ("fp8", "block"), ("fp8", "mx"))
    )
    assert block - plain == mx - plain == pytest.approx((6 + 1 / 16) / 4 * (tensor - plain), rel=1e-4)


def test_products_of_experts_as_fast_as_measured():
    """SimuMax's kernel table (configs/system/b200_bf16_ceperm.json): parts of 2,250 TFLOP/s that grouped products
    reach, forward, for the input and for the weight with its fp32 gradient. Nothing was fitted to them."""
    table = [  # experts, tokens of each, columns out and in
        ((64, 512, 4096, 7168), (0.367, 0.405, 0.219)),
        ((40, 616, 3072, 5120), (0.462, 0.321, 0.258)),
        ((32, 1024, 4096, 7168), (0.457, 0.435, 0.289)),
        ((20, 1232, 5120, 1536), (0.397, 0.389, 0.320)),
        ((40, 2460, 5120, 1536), (0.496, 0.489, 0.403)),
        ((40, 9832, 3072, 5120), (0.475, 0.476, 0.419)),
    ]
    b200, errors = GPUS["b200"], []
    for (groups, m, n, k), measured in table:
        sizes = ((m, n, k, 0), (m, k, n, 0), (n, k, m, 8))
        for (*size, gradient), reached in zip(sizes, measured, strict=True):
            seconds = grouped_seconds(*size, b200, groups=groups, gradient=gradient)
            errors.append(abs(seconds * reached * 2250e12 / (2 * groups * m * n * k) - 1))
    assert sum(errors) / len(errors) < 0.1


# ---- the step ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(dp=4, zero=1, microbatches=3),
        Plan(dp=4, zero=3, recompute="full", attention="flash"),
        Plan(dp=2, tp=2, pp=4, chunks=2, microbatches=8, sequence_parallel=True),
        Plan(dp=4, cp=2, zero=2, shard=4, offload="optimizer"),
    ],
)
def test_parts_add_up_and_utilisations_follow(plan):
    cost = step_cost(SMALL, plan, A100)
    assert cost.seconds == pytest.approx(sum(cost.parts.values()))
    assert tuple(cost.parts) == PARTS  # the same names for every plan
    assert min(cost.parts.values()) == 0 < cost.parts["attention"]
    assert 0 < cost.mfu <= cost.hfu < 1
    assert cost.tflops_per_gpu == pytest.approx(cost.hfu * 312)
    assert cost.ranks == plan.ranks


@pytest.mark.parametrize(("chunks", "name"), [(1, "1f1b"), (2, "interleaved-1f1b")])
def test_the_bubble_is_that_of_the_engine(chunks, name):
    """Even stages: (p-1)/(v m) of the compute time, and the makespan the engine finds for the same schedule."""
    p, m = 4, 8
    plan = Plan(pp=p, chunks=chunks, microbatches=m)
    shape = replace(SMALL, vocab=8)  # next to no embedding and logits: stages alike
    cost = step_cost(shape, plan, A100)
    stage = max(sum(stage_seconds(shape, plan, A100, rank).values()) for rank in range(p))
    assert cost.parts["bubble"] == pytest.approx((p - 1) / (chunks * m) * m * stage, rel=0.01)
    timeline = simulate(make_schedule(name, p, m, chunks), forward=1, backward_input=1, backward_weight=1)
    ideal = m * chunks * 3
    assert (timeline.makespan - ideal) / ideal == pytest.approx((p - 1) / (chunks * m))


def test_the_heaviest_stage_sets_the_pace():
    even = step_cost(SMALL, Plan(pp=4, microbatches=16), A100)
    uneven = step_cost(SMALL, Plan(pp=4, microbatches=16, stage_layers=(1, 1, 1, 13)), A100)
    assert uneven.seconds > 2 * even.seconds


def test_data_parallel_costs_little_inside_a_node_and_more_outside():
    def share(dp, tp=1):
        cost = step_cost(SMALL, Plan(dp=dp, tp=tp, micro_batch=8), A100)
        return cost.parts.get("data_parallel", 0) / cost.seconds

    assert share(1) == 0
    assert 0 < share(8) < share(8, tp=8)


def test_zero_1_says_as_much_as_ddp_but_updates_less():
    ddp, zero = (step_cost(SMALL, Plan(dp=16, tp=8, zero=stage), A100).parts for stage in (0, 1))
    passes, own = 4 * 2, 12 + 2 * 12 + 2 + 2  # over all gradients of 2 bytes; over what is updated
    assert zero["optimizer"] == pytest.approx(ddp["optimizer"] * (passes + own / 16) / (passes + own))
    assert zero["data_parallel"] >= ddp["data_parallel"]  # its all-gather has no backward to hide behind


def test_hybrid_sharding_stays_in_the_node():
    plan = dict(dp=64, zero=3, attention="flash", micro_batch=1)
    everywhere, node = (step_cost(SMALL, Plan(**plan, shard=shard), A100).parts for shard in (64, 8))
    assert node["data_parallel"] < everywhere["data_parallel"]


def test_accumulation_adds_into_gradients_that_are_there():
    once, often = (step_cost(SMALL, Plan(microbatches=m), A100).parts for m in (1, 4))
    assert once["gradient_accumulation"] == 0
    assert often["gradient_accumulation"] == pytest.approx(3 * memory_seconds(2 * 2 * SMALL.parameters, A100))


def test_offload_pays_the_link_to_the_host():
    there = step_cost(SMALL, Plan(offload="optimizer"), A100)
    here = step_cost(SMALL, Plan(), A100)
    assert there.parts["offload"] == pytest.approx(4 * SMALL.parameters / 25e9)
    assert there.seconds > here.seconds


def test_better_devices_are_faster():
    plan = Plan(attention="flash", micro_batch=4)
    order = ["laptop-cpu", "v100", "a100-40gb", "a100-80gb", "h100", "h200", "b200"]
    times = [step_cost(SMALL, plan, GPUS[name]).seconds for name in order]
    assert times == sorted(times, reverse=True)
    own = Hardware.of(312e12, 2039e9, 300e9)
    assert step_cost(SMALL, plan, own).seconds == pytest.approx(times[3], rel=0.05)


def test_a_plan_that_does_not_fit_says_what_it_needs():
    with pytest.raises(ValueError, match=r"needs 3\d{3}.\d GB on a device and a100-80gb has 80 GB"):
        check_fits(GPT, Plan(), A100)


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("gpt-22b", dict(tp=8, micro_batch=4)),
        ("gpt3-175b", dict(tp=8, pp=8, chunks=3)),
        ("gpt-530b", dict(tp=8, pp=35, chunks=3)),
        ("gpt-1t", dict(tp=8, pp=64)),
    ],
)
def test_none_fits_before_and_all_fit_after(name, axes):
    """arXiv:2205.05198, figure 1: 80 GB hold none of the four models but with the paper's method."""
    with pytest.raises(ValueError, match="has 80 GB"):
        check_fits(MODELS[name], Plan(**axes), A100)
    check_fits(MODELS[name], Plan(**axes, sequence_parallel=True, recompute="selective"), A100)
