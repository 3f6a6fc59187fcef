"""The shapes count what the papers print, and a plan that cannot be says why."""

from dataclasses import replace

import pytest

from simulator.inputs.hardware import Hardware, Link
from simulator.inputs.known_devices import GPUS, find_device
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.flops import forward_flops
from simulator.predict.memory import plan_memory
from simulator.predict.step import step_cost


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2", 124_439_808),  # Hugging Face: GPT2LMHeadModel("gpt2").num_parameters()
        ("bert-base", 109_482_240),  # torchinfo on transformers.BertModel
        ("llama-2-7b", 6_738_415_616),  # the published checkpoints' sizes
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_parameters_to_the_last_one(name, parameters):
    assert MODELS[name].parameters == parameters


def test_megatron_formula_counts_all_but_the_final_norm():
    """arXiv:2104.04473, equation 2."""
    shape = MODELS["gpt3-175b"]
    l, h, V, s = shape.layers, shape.hidden, shape.vocab, shape.sequence
    assert shape.parameters == 12 * l * h * h + 13 * l * h + (V + s) * h + 2 * h


def test_mixtral_uses_two_of_eight_experts():
    assert MODELS["mixtral-8x7b"].active_parameters == pytest.approx(12.9e9, rel=0.002)  # arXiv:2401.04088


@pytest.mark.parametrize("name", ["gpt3-175b", "llama-2-70b", "mixtral-8x7b"])
@pytest.mark.parametrize("tp", [2, 8])
def test_tensor_parallel_ranks_hold_the_model_and_copies_of_what_is_not_split(name, tp):
    shape = MODELS[name]
    copied = 2 * shape.norm_parameters + (2 * shape.hidden if shape.biases else 0)
    copied += shape.router_parameters + shape.routed_parameters()
    assert tp * shape.layer_parameters(tp) == shape.layer_parameters() + (tp - 1) * copied


def test_every_parameter_is_on_some_stage():
    shape, plan = MODELS["llama-3-8b"], Plan(pp=4, chunks=2)
    assert sum(plan.parameters_of(shape, rank)[0] for rank in range(4)) == shape.parameters
    tied = MODELS["gpt2"]
    copies = sum(Plan(pp=2).parameters_of(tied, rank)[0] for rank in range(2))
    assert (
        copies == tied.parameters + tied.vocab * tied.hidden
    )  # first and last stage each hold the tied matrix
    assert Plan().parameters_of(tied, 0) == (tied.parameters, 0)


def test_a_window_is_counted_position_by_position():
    s, w = 40, 7
    shape = ModelShape(4, 64, 8, 128, s, window=w, full_layers=1)
    near, all_before = sum(min(i, w) for i in range(1, s + 1)), sum(range(1, s + 1))
    assert shape.attended == pytest.approx((3 * near / all_before + 1) / 4)
    assert replace(shape, window=s, full_layers=0).attended == ModelShape(4, 64, 8, 128, s).attended == 1
    whole = forward_flops(replace(shape, window=None, full_layers=0), 2)
    assert forward_flops(shape, 2) == pytest.approx(whole | {"core": shape.attended * whole["core"]})
    with pytest.raises(ValueError, match="full layers must be 0 without a window, not 1"):
        ModelShape(4, 64, 8, 128, s, full_layers=1)


def test_a_token_more_is_a_layer_a_product_and_an_output_more():
    """arXiv:2412.19437: 671 billion, and 11.5 of the second token, whose matrices of the vocabulary are shared."""
    once, twice = MODELS["deepseek-v3"], replace(MODELS["deepseek-v3"], next_tokens=1)
    last = list(once.kinds())[-1]
    h = once.hidden
    assert twice.parameters - once.parameters == last.layer_parameters() + 2 * h * h + 3 * h
    assert 11.5e9 < twice.parameters - once.parameters < 11.7e9
    plan = Plan(dp=64, ep=64, pp=4, microbatches=4, attention="flash")
    assert plan.kinds_on(twice, 3)[replace(last, next_tokens=1)] == plan.kinds_on(once, 3)[last] + 1
    assert [sum(plan.kinds_on(twice, rank).values()) for rank in range(4)] == [16, 15, 15, 16]
    one, two = forward_flops(once, 1), forward_flops(twice, 1)
    assert two["logits"] == 2 * one["logits"]
    parts = [step_cost(shape, plan, GPUS["h100"]).parts["logits"] for shape in (once, twice)]
    assert 2 < parts[1] / parts[0] < 2.3


def test_experts_are_dealt_out_over_the_data_axis():
    shape = MODELS["mixtral-8x7b"]
    dense, experts = Plan(dp=8, ep=4).parameters_of(shape, 0)
    assert dense + 4 * experts == shape.parameters


def test_layers_of_interleaved_stages_and_uneven_ones():
    shape = ModelShape(10, 64, 4, 100, 16)
    assert Plan(pp=4).layers_of(shape) == [[3], [3], [2], [2]]
    assert Plan(pp=2, chunks=2).layers_of(shape) == [[3, 2], [3, 2]]
    assert Plan(pp=2, stage_layers=(4, 6)).layers_of(shape) == [[4], [6]]


def test_sizes_that_follow():
    plan = Plan(dp=3, tp=2, pp=4, cp=2, micro_batch=5)
    assert (plan.ranks, plan.microbatches, plan.global_batch) == (48, 4, 60)
    assert Plan(pp=4, chunks=2).microbatches == 8
    assert Plan(pp=4, chunks=2, microbatches=6).schedule == "interleaved-1f1b"
    assert Plan(pp=4).schedule == "1f1b"
    assert Plan(pp=4, schedule="zb-v").chunks == 2
    assert [Plan(precision=p).optimizer_bytes for p in ("mixed", "bf16", "fp32")] == [12, 4, 8]
    assert [Plan(optimizer=o).optimizer_bytes for o in ("adam", "momentum", "sgd")] == [12, 8, 4]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (dict(dp=0), "dp must be a whole number of at least 1, not 0"),
        (dict(tp=2.5), "tp must be a whole number of at least 1, not 2.5"),
        (dict(zero=4), "zero must be 0, 1, 2 or 3, not 4"),
        (dict(recompute="some"), "recompute must be one of none, selective, full, offload, not some"),
        (dict(dp=4, ep=3), "ep must divide the 4 data-parallel ranks, not 3"),
        (dict(pp=4, chunks=0), "chunks must be a whole number of at least 1, not 0"),
        (dict(pp=4, schedule="2f2b"), "schedule must be one of one-at-a-time, gpipe, .*, not 2f2b"),
        (dict(pp=4, schedule="zb-v", chunks=1), "zb-v takes exactly 2 chunks a rank"),
        (dict(cp=4, ulysses=3), "ulysses must divide the 4 context-parallel ranks, not 3"),
        (dict(dp=8, shard=3), "shard must divide the 8 data-parallel ranks, not 3"),
        (dict(offload="parameters"), "offload of parameters needs zero 3, not zero 0"),
    ],
)
def test_an_impossible_plan_says_why(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Plan(**arguments)


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (Plan(tp=5), "tp must divide the 12 heads, not 5"),
        (Plan(pp=13), "13 pipeline stages need as many layers; the model has 12"),
        (Plan(pp=2, stage_layers=(6, 5)), "2 numbers that add up to 12, not \\(6, 5\\)"),
        (Plan(cp=3), "the sequence of 1024 cannot be split into 3 equal pieces"),
        (Plan(dp=2, ep=2), "ep must divide the 1 experts, not 2"),
    ],
)
def test_a_plan_that_does_not_fit_the_shape_says_why(plan, sentence):
    with pytest.raises(ValueError, match=sentence):
        plan.check(MODELS["gpt2"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (dict(layers=0), "layers must be a whole number of at least 1, not 0"),
        (dict(heads=5), "hidden must be a multiple of the 5 heads, not 64"),
        (dict(kv_heads=3), "kv heads must divide the 4 heads, not 3"),
        (dict(activation="relu"), "activation must be one of gelu, swiglu, not relu"),
        (dict(experts_per_token=2), "experts per token must be at most the 1 experts, not 2"),
    ],
)
def test_an_impossible_shape_says_why(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        ModelShape(**(dict(layers=2, hidden=64, heads=4, vocab=100, sequence=16) | arguments))


def test_hardware_by_three_numbers_and_refused_numbers():
    own = Hardware.of(100e12, 1e12, 50e9)
    assert (own.peak_flops, own.memory_bandwidth, own.node.bandwidth) == (100e12, 1e12, 50e9)
    assert set(GPUS) >= {"v100", "a100-40gb", "a100-80gb", "h100", "h200", "b200", "laptop-cpu"}
    with pytest.raises(ValueError, match="peak flops must be a number more than 0, not 0"):
        Hardware.of(0, 1e12, 50e9)
    with pytest.raises(ValueError, match="bandwidth must be a number more than 0, or infinity, not"):
        Link(1e-6, 0)


def test_devices_by_an_unmistakable_part_of_their_name():
    assert find_device("A100-40GB") is GPUS["a100-40gb"]
    assert find_device("cpu") is GPUS["laptop-cpu"]
    with pytest.raises(ValueError, match=r"gpu must be one of v100, .* not a100"):
        find_device("a100")


def test_link_is_alpha_beta():
    assert Link(1e-3, 1e6).seconds(2e6, messages=3) == pytest.approx(2.003)


def test_a_plan_leaves_the_attention_kernel_to_the_device():
    """The same question has the same answer everywhere: memory, step and what fits all ask ``Plan.on``."""
    assert Plan().on(None).attention == Plan().on(GPUS["v100"]).attention == "unfused"
    assert Plan().on(GPUS["h100"]).attention == "flash"
    assert Plan(attention="unfused").on(GPUS["h100"]).attention == "unfused"
    shape, open_plan, flash = MODELS["llama-2-7b"], Plan(tp=8), Plan(tp=8, attention="flash")
    on_device = [replace(rank, reserved=0) for rank in plan_memory(shape, open_plan, GPUS["h100"])]
    assert on_device == plan_memory(shape, flash)
    assert plan_memory(shape, open_plan) == plan_memory(shape, Plan(tp=8, attention="unfused"))
    assert step_cost(shape, open_plan, GPUS["h100"]) == step_cost(shape, flash, GPUS["h100"])
