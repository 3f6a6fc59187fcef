"""What each technique sends: the papers' multiples of the model, exactly per rank where nothing divides."""

import pytest

from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import CONTEXT, Plan
from simulator.inputs.shape import ModelShape
from simulator.pipeline.schedules import make_schedule
from simulator.predict.context_traffic import context_layer_traffic
from simulator.predict.plan_traffic import data_parallel_traffic, plan_traffic
from simulator.predict.traffic import (
    ddp_traffic,
    expert_parallel_traffic,
    fsdp_traffic,
    padded,
    pipeline_traffic,
    schedule_traffic,
    tensor_parallel_traffic,
    zero_traffic,
)

PSI = 1_000_000


@pytest.mark.parametrize(("stage", "multiple"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_zero_communication_volumes(stage, multiple):
    """arXiv:1910.02054, section 7: 2 Psi up to stage 2, 3 Psi with stage 3, for many ranks."""
    assert zero_traffic(stage, [PSI], 1000, itemsize=1).sent == pytest.approx(multiple * PSI, rel=2e-3)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_exact_figures_of_all_ranks_have_the_mean_of_the_closed_form(stage):
    sizes, ranks = [11, 7, 130], 4
    exact = [zero_traffic(stage, sizes, ranks, 4, rank).sent for rank in range(ranks)]
    assert all(isinstance(sent, int) for sent in exact)
    assert sum(exact) / ranks == pytest.approx(zero_traffic(stage, sizes, ranks, 4).sent)


def test_accumulation_reduces_once_or_every_time():
    ddp, two, three = (zero_traffic(stage, [PSI], 4, accumulation=8) for stage in (0, 2, 3))
    assert ddp.calls == 1
    assert two.of("reduce-scatter").calls == 8
    assert two.of("all-gather").calls == 1
    assert three.of("all-gather").calls == 16


def test_ddp_sends_resnet18_one_and_a_half_times_at_four_ranks():
    assert ddp_traffic([11_689_512], 4).sent == 1.5 * 4 * 11_689_512
    assert ddp_traffic([5], 1).rows == ()


def test_fsdp_gathers_twice_and_keeps_what_it_is_told_to():
    full = fsdp_traffic([PSI, PSI], 8, itemsize=2, gradient_itemsize=4)
    assert full.of("all-gather").sent == 2 * (2 * PSI) * 2 * 7 / 8
    assert full.of("reduce-scatter").sent == (2 * PSI) * 4 * 7 / 8
    assert fsdp_traffic([PSI, PSI], 8, keep_last=True).of("all-gather").calls == 3
    assert fsdp_traffic([PSI, PSI], 8, reshard=False).of("all-gather").calls == 2


def test_hybrid_shard_crosses_hosts_with_a_shard_only():
    """arXiv:2304.11277, section 3.2.2: 2M(W-1)/(G W) from each GPU, here with W copies and G GPUs in each."""
    W, G = 16, 8
    hybrid = fsdp_traffic([PSI], W * G, itemsize=1, shard=G)
    assert hybrid.of("all-reduce").sent == pytest.approx(2 * PSI / G * (W - 1) / W)
    ranks = [fsdp_traffic([PSI + 3], 6, 4, rank, shard=3).sent for rank in range(6)]
    assert sum(ranks) / 6 == pytest.approx(fsdp_traffic([PSI + 3], 6, 4, shard=3).sent)


def test_tensor_parallel_and_its_sequence_parallel_form_send_alike():
    """arXiv:2205.05198, section 4.2.2: a ring all-reduce is a reduce-scatter and an all-gather."""
    plain = tensor_parallel_traffic(4096, 512, 8)
    split = tensor_parallel_traffic(4096, 512, 8, sequence_parallel=True, regather=False)
    assert plain.calls == 4
    assert split.sent == plain.sent
    assert tensor_parallel_traffic(4096, 512, 8, recompute=True).calls == 6


def test_pipeline_ends_have_one_neighbour():
    sent = [pipeline_traffic(100, 6, 4, rank, itemsize=2).sent for rank in range(4)]
    assert sent == [1200, 2400, 2400, 1200]
    assert pipeline_traffic(100, 6, 4, 0, chunks=2).calls == 6 * (2 + 1)
    assert pipeline_traffic(100, 6, 1, 0).rows == ()


@pytest.mark.parametrize(
    ("name", "chunks"), [("gpipe", 1), ("1f1b", 1), ("zb-h1", 1), ("interleaved-1f1b", 2)]
)
def test_every_schedule_on_a_loop_sends_alike(name, chunks):
    schedule = make_schedule(name, 4, 8, chunks)
    for rank in range(4):
        assert schedule_traffic(schedule, 100, rank) == pipeline_traffic(100, 8, 4, rank, chunks)


def test_the_bottom_of_a_v_sends_nothing():
    """zb-v, arXiv:2401.10241, section 6: the last rank holds the two middle stages."""
    schedule = make_schedule("zb-v", 4, 8)
    assert [schedule_traffic(schedule, 1, rank).calls for rank in range(4)] == [16, 32, 32, 16]
    loop = sum(pipeline_traffic(1, 8, 4, rank, chunks=2).calls for rank in range(4))
    assert sum(schedule_traffic(schedule, 1, rank).calls for rank in range(4)) == loop - 2 * 8


def test_experts():
    assert expert_parallel_traffic(100, 8, 2, 4, itemsize=1).sent == 4 * (100 * 2 * 8) * 3 / 4
    assert (
        expert_parallel_traffic(100, 8, 2, 4).sent
        == 2 * expert_parallel_traffic(100, 8, 2, 4, itemsize=1).sent
    )
    eight_bits = expert_parallel_traffic(100, 8, 2, 4, there=8)  # there; back in 16
    assert eight_bits.sent == 3 / 4 * expert_parallel_traffic(100, 8, 2, 4).sent
    assert expert_parallel_traffic(1, 1, 1, 1).rows == ()


@pytest.mark.parametrize(
    ("context", "ulysses"), [*((way, 1) for way in CONTEXT), ("ring", 2), ("all-gather", 2)]
)
def test_a_plan_sends_what_its_way_of_context_parallelism_sends(context, ulysses):
    shape = ModelShape(4, 64, 8, 128, 32, kv_heads=4)
    sent = plan_traffic(shape, Plan(cp=4, microbatches=3, context=context, ulysses=ulysses, zero=1))
    other = data_parallel_traffic(shape, Plan(cp=4, microbatches=3, zero=1))
    ahead, back = context_layer_traffic(context, 8 * 64, 8 * 2 * 4 * 8, 4, ulysses=ulysses)
    assert sent.sent - other.sent == 3 * 4 * (ahead.sent + back.sent)


def test_a_whole_plan_is_the_sum_of_its_parts():
    shape = ModelShape(8, 64, 8, 128, 32)
    plan = Plan(dp=2, tp=2, pp=2, microbatches=4, sequence_parallel=True)
    total = plan_traffic(shape, plan, 0)
    # 4 layers, 4 microbatches: 6 all-gathers (2 of them again for the weight gradients), 4 reduce-scatters, and sums of
    # the gradients of 2 norms and 2 biases; the embedding: one of each but for sums
    assert {(row.collective, row.group_size, row.calls) for row in total.rows} == {
        ("all-gather", 2, 4 * 4 * 6 + 4),
        ("reduce-scatter", 2, 4 * 4 * 4 + 4),
        ("send", 2, 4),
        ("all-reduce", 2, 4 * 4 * 4 + 1),
    }
    # the head: its input enters, and is gathered again; sums of the loss (2) and of the last norm's gradient
    last = plan_traffic(shape, plan, 1)
    assert last.of("all-gather").calls == 4 * 4 * 6 + 4 * 2
    assert last.of("all-reduce").calls == 4 * 4 * 4 + 4 * 3 + 1


def test_experts_are_reduced_among_fewer_copies():
    shape = MODELS["mixtral-8x7b"]
    rows = {row.group_size: row for row in data_parallel_traffic(shape, Plan(dp=16, ep=8)).rows}
    assert set(rows) == {16, 2}
    assert rows[2].payload == 2 * shape.layers * shape.expert_parameters()
    assert plan_traffic(shape, Plan(dp=8, ep=8)).of("all-to-all").calls == 4 * shape.layers


def test_a_plan_with_zero_3_gathers_layers_twice_and_the_root_once():
    shape = ModelShape(8, 64, 8, 128, 32)
    traffic = data_parallel_traffic(shape, Plan(dp=4, zero=3))
    assert traffic.of("all-gather").calls == 8 + 8 + 1
    assert traffic.of("reduce-scatter").rows[0].payload == 2 * shape.parameters


def test_padding_rounds_up_to_whole_shards():
    assert padded([12, 13, 0], 4) == [12, 16, 0]


def test_shards_must_divide():
    with pytest.raises(ValueError, match="shard must divide the 8 ranks, not 3"):
        fsdp_traffic([PSI], 8, shard=3)
    with pytest.raises(ValueError, match="stage must be 0, 1, 2 or 3, not 4"):
        zero_traffic(4, [PSI], 2)
