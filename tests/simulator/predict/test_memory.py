"""Memory: ZeRO's table, Korthikanti's formulas, and what sharding, pipelines and offloading change."""

from dataclasses import replace

import pytest

from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.ledgers.memory import MemoryBreakdown
from simulator.predict.in_flight import in_flight
from simulator.predict.memory import (
    activation_bytes,
    buffer_bytes,
    embedding_bytes,
    head_bytes,
    host_bytes,
    kept_layer_bytes,
    layer_bytes,
    model_states,
    plan_memory,
    rank_memory,
    stage_bytes,
)
from simulator.predict.memory_over_time import peak_saved
from simulator.predict.stages import plan_schedule

GPT = MODELS["gpt3-175b"]
SMALL = ModelShape(layers=10, hidden=64, heads=8, vocab=1000, sequence=32)

# arXiv:1910.02054, table 1: GB a device for 7.5 B parameters, by data-parallel degree; some cells are truncated.
ZERO_TABLE = {
    1: {1: 120, 4: 52.5, 16: 35.6, 64: 31.4, 256: 30.4, 1024: 30.1},
    2: {1: 120, 4: 41.3, 16: 21.6, 64: 16.6, 256: 15.4, 1024: 15.1},
    3: {1: 120, 4: 30, 16: 7.5, 64: 1.88, 256: 0.47, 1024: 0.12},
}


@pytest.mark.parametrize(
    ("stage", "ranks", "printed"), [(z, n, gb) for z, row in ZERO_TABLE.items() for n, gb in row.items()]
)
def test_zero_table_1(stage, ranks, printed):
    gigabytes = model_states(7.5e9, Plan(dp=ranks, zero=stage)).total / 1e9
    assert gigabytes == pytest.approx(printed, rel=0.006, abs=0.06)


@pytest.mark.parametrize(
    ("sequence_parallel", "recompute", "formula"),
    [
        (False, "none", lambda a, s, h, t: 10 + 24 / t + 5 * a * s / (h * t)),
        (True, "none", lambda a, s, h, t: 34 / t + 5 * a * s / (h * t)),
        (False, "selective", lambda a, s, h, t: 10 + 24 / t),
        (True, "selective", lambda a, s, h, t: 34 / t),
        (False, "full", lambda a, s, h, t: 2),
    ],
)
@pytest.mark.parametrize("t", [1, 8])
def test_bytes_of_one_layer(sequence_parallel, recompute, formula, t):
    """arXiv:2205.05198, table 2, in units of sbh."""
    plan = Plan(tp=t, micro_batch=4, sequence_parallel=sequence_parallel, recompute=recompute)
    sbh = GPT.sequence * 4 * GPT.hidden
    assert kept_layer_bytes(GPT, plan) == pytest.approx(sbh * formula(GPT.heads, GPT.sequence, GPT.hidden, t))


def test_first_stage_of_an_interleaved_pipeline():
    """arXiv:2205.05198, equations 5 and 6: L layers' worth, times 1 + (p-1)/(p m), and the embedding's mask."""
    plan = Plan(tp=8, pp=8, chunks=3, sequence_parallel=True)
    layer = layer_bytes(GPT, plan)
    sbh_t = GPT.sequence * GPT.hidden / 8
    assert activation_bytes(GPT, plan) == pytest.approx(GPT.layers * layer * (1 + 7 / 24) + sbh_t * 15)
    assert activation_bytes(GPT, Plan(tp=8, pp=8, sequence_parallel=True)) == pytest.approx(
        GPT.layers * layer + sbh_t * 8
    )


def test_without_a_pipeline_the_ends_add_what_the_paper_adds():
    """arXiv:2205.05198, section 4.3: (sbhL/t) (p/L + (4/L) (1 + v/h)) for p = 1."""
    plan = Plan(tp=8, sequence_parallel=True)
    sbh_t = GPT.sequence * GPT.hidden / 8
    ends = embedding_bytes(GPT, plan) + head_bytes(GPT, plan)
    assert ends == pytest.approx(sbh_t * (1 + 4 * (1 + GPT.vocab / GPT.hidden)))


def test_microbatches_in_flight():
    assert [in_flight(Plan(pp=4, microbatches=8), rank) for rank in range(4)] == [[4], [3], [2], [1]]
    assert in_flight(Plan(pp=4, microbatches=2), 0) == [2]
    interleaved = [in_flight(Plan(pp=4, chunks=2, microbatches=8), rank) for rank in range(4)]
    assert [sum(counts) for counts in interleaved] == [11, 9, 7, 5]
    assert interleaved[0] == [7, 4]
    assert in_flight(Plan(pp=4, chunks=2, microbatches=4), 0) == [4, 4]


def test_the_heaviest_moment_of_uneven_chunks_is_not_the_fullest():
    plan = Plan(pp=4, chunks=2, microbatches=8)
    assert in_flight(plan, 3) == [4, 1]
    assert in_flight(plan, 3, [9, 1]) == [5, 0]
    for layers in ((2, 2, 2, 2, 1, 1, 1, 1), (1, 1, 1, 1, 2, 2, 2, 2), (3, 1, 1, 1, 1, 1, 1, 3)):
        uneven = Plan(pp=4, chunks=2, microbatches=8, stage_layers=layers)
        shape = ModelShape(12, 64, 8, 8, 32)  # next to nothing at the ends
        replayed = peak_saved(plan_schedule(uneven), *stage_bytes(shape, uneven))
        for formula, peak in zip(plan_memory(shape, uneven), replayed, strict=True):
            assert formula.activations == pytest.approx(peak, rel=0.02)


def test_uneven_stages_count_the_heaviest():
    plan = Plan(pp=2, stage_layers=(3, 7), microbatches=1)
    first, last = plan_memory(SMALL, plan)
    assert last.activations == 7 * layer_bytes(SMALL, plan) + head_bytes(SMALL, plan)
    assert last.total > first.total
    assert plan_memory(SMALL, Plan(pp=3))[0].parameters > plan_memory(SMALL, Plan(pp=3))[1].parameters


def test_tied_embedding_is_on_both_ends_and_untied_too():
    tied = plan_memory(SMALL, Plan(pp=2))
    matrix = 2 * SMALL.vocab * SMALL.hidden
    total = 2 * SMALL.parameters
    assert sum(rank.parameters for rank in tied) == total + matrix
    assert rank_memory(SMALL, Plan()).parameters == total


def test_grouped_queries_and_swiglu_keep_what_they_compute():
    llama, plan = MODELS["llama-2-70b"], Plan(attention="flash", tp=8)
    h, s, f = llama.hidden, llama.sequence, llama.ffn
    # norms' inputs and outputs; q, projection's input; k and v of one head; gate, up and product; the row sums
    expected = s * (8 * h + 2 * (2 * h / 8) + 2 * (2 * 128) + 3 * 2 * f / 8) + 4 * 8 * s
    assert layer_bytes(llama, plan) == expected


def test_flash_attention_keeps_no_scores():
    unfused, flash = (layer_bytes(GPT, Plan(attention=kind)) for kind in ("unfused", "flash"))
    rows = GPT.heads * GPT.sequence
    assert unfused - flash == rows * (5 * GPT.sequence - 4)
    selective = kept_layer_bytes(GPT, Plan(attention="flash", recompute="selective"))
    assert selective == flash


def test_context_parallel_ranks_keep_their_part_of_the_sequence():
    whole, part = (layer_bytes(GPT, Plan(cp=cp, attention="flash")) for cp in (1, 4))
    assert part == whole / 4


def test_experts():
    mixtral = MODELS["mixtral-8x7b"]
    plan = Plan(dp=8, ep=8, zero=1)
    states = rank_memory(mixtral, plan)
    dense, experts = plan.parameters_of(mixtral, 0)
    assert experts * 8 + dense == mixtral.parameters
    assert states.parameters == 2 * (dense + experts)
    assert states.optimizer_states == 12 * (dense / 8 + experts)  # no other rank holds the same experts
    dense_layer = replace(mixtral, experts=1, experts_per_token=1)
    # each token's second copy of the MLP's inner activations, its two copies at the experts, and the router's logits
    more = 3 * 2 * mixtral.ffn + 2 * 2 * mixtral.hidden + 4 * 8
    assert layer_bytes(mixtral, plan) - layer_bytes(dense_layer, plan) == mixtral.sequence * more


def test_precisions_and_optimizers():
    def per_parameter(**plan):
        return model_states(1, Plan(**plan)).total

    assert per_parameter() == 16
    assert per_parameter(optimizer="momentum") == 12
    assert per_parameter(optimizer="sgd") == 8
    assert per_parameter(precision="fp32") == 16
    assert per_parameter(precision="fp32", optimizer="sgd") == 8
    assert per_parameter(precision="bf16") == 8


def test_hybrid_sharding_shares_within_the_group():
    assert model_states(1, Plan(dp=64, zero=3, shard=8)).total == 2
    assert model_states(1, Plan(dp=64, zero=3)).total == 0.25


def test_zero_3_holds_the_units_in_use():
    layer, root = 2 * SMALL.layer_parameters(), 2 * Plan().root_parameters(SMALL, 0)
    assert root > layer  # its gradients are the largest
    assert buffer_bytes(SMALL, Plan(dp=4, zero=3, prefetch=0)) == 2 * root + layer
    assert buffer_bytes(SMALL, Plan(dp=4, zero=3)) == 2 * root + 2 * layer
    assert buffer_bytes(SMALL, Plan(dp=4, zero=3, prefetch=99)) == 2 * root + 10 * layer
    middle = Plan(dp=4, pp=5, zero=3)
    assert buffer_bytes(SMALL, middle, rank=1) == 3 * layer  # no root on a stage in the middle
    assert buffer_bytes(SMALL, Plan(dp=4, zero=2)) == layer
    assert buffer_bytes(SMALL, Plan(dp=4)) == 2 * SMALL.parameters  # all gradients fit in one bucket
    assert buffer_bytes(SMALL, Plan()) == 0


def test_recomputation_brings_one_layer_back():
    plan = Plan(recompute="full")
    assert buffer_bytes(SMALL, plan) == layer_bytes(SMALL, plan)
    assert activation_bytes(SMALL, plan) < activation_bytes(SMALL, Plan())


def test_offload_moves_bytes_to_the_host():
    stay, optimizer, everything = (
        Plan(dp=4, zero=3, offload=kind) for kind in ("none", "optimizer", "parameters")
    )
    states = [rank_memory(SMALL, plan).model_states for plan in (stay, optimizer, everything)]
    host = [host_bytes(SMALL, plan) for plan in (stay, optimizer, everything)]
    assert states == [4 * SMALL.parameters, SMALL.parameters / 2, 0]
    assert [s + h for s, h in zip(states, host, strict=True)] == [4 * SMALL.parameters] * 3


def test_breakdowns_add_up():
    total = MemoryBreakdown(1, 2, 3, 4, 5) + MemoryBreakdown(10, buffers=1)
    assert total == MemoryBreakdown(11, 2, 3, 4, 6)
    assert (total.total, total.model_states) == (26, 16)
