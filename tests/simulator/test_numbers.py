"""Every number that the simulator's public functions take is checked: NaN, infinity and nonsense end in one sentence.

``CALLS`` holds a working call of each function. A test changes one number of it after the other; another one reads
the packages and fails where a function that takes numbers is missing from ``CALLS``.
"""

import importlib
import inspect
import pkgutil
import re
from dataclasses import replace
from functools import partial
from math import inf, nan

import pytest

import simulator
from simulator.explorer import Explorer, explore
from simulator.explorer.question import Question
from simulator.export import export
from simulator.inputs import compression, mixing, placement, traced
from simulator.inputs.chunks import chunk_sizes, proportional_chunks
from simulator.inputs.galaxy import Shares, deal_shares
from simulator.inputs.hardware import Hardware, Link
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.ledgers.cache import CacheHistory
from simulator.ledgers.memory import MemoryBreakdown
from simulator.ledgers.timeline import Span, Timeline
from simulator.ledgers.traffic import TrafficRow
from simulator.pipeline import schedules, v_schedules
from simulator.pipeline.actions import Schedule
from simulator.pipeline.engine import simulate
from simulator.planner import search
from simulator.planner.deal import deal
from simulator.planner.layer_split import price_layer
from simulator.planner.part import Part
from simulator.planner.stage_split import price_stages
from simulator.plots.bytes_over_time import plot_bytes_over_time
from simulator.plots.curves import plot_curves
from simulator.plots.groups import plot_groups
from simulator.plots.memory_bars import plot_memory
from simulator.plots.picture import smallest_text
from simulator.plots.plans import plot_plans
from simulator.plots.timeline import plot_timeline
from simulator.predict import (
    attention_io,
    checkpoint_interval,
    collective_time,
    collective_traffic,
    compression_time,
    compression_traffic,
    consensus,
    context_traffic,
    finetuning,
    flops,
    galaxy_traffic,
    goodput,
    kernel_time,
    kv_cache,
    layer_time,
    layout_steps,
    memory,
    overlap,
    placed_messages,
    plan_traffic,
    recomputation,
    recovery,
    serving,
    shares,
    step,
    traffic,
    unsharded,
    vocabulary_traffic,
)
from simulator.predict.expert_traffic import copy_bytes, per_rank, routed_traffic
from simulator.predict.memory_over_time import peak_saved, replay
from simulator.predict.muon import elements_on, matrix_owners, mean_muon_traffic, muon_seconds, muon_traffic

A100, GPT2, LINK = GPUS["a100-80gb"], MODELS["gpt2"], Link(1e-6, 1e9)
PLAN = Plan(dp=2, pp=2, microbatches=4)
SCHEDULE = schedules.make_schedule("1f1b", 2, 4)
RUN = simulate(SCHEDULE)
ARRIVALS = [serving.Arrival(3, 2)]
CACHE = serving.serve_in_blocks(ARRIVALS, 4, 2)
LAYERS = {"forward": [1.0, 1.0], "backward": [2.0, 2.0], "ranks": 2, "latency": 0.1, "bandwidth": 10.0}
SPEEDS = {"speeds": [1.0, 0.5], "update": 1.0}
RING = {"elements": 10, "itemsize": 4, "ranks": 4, "rank": 1}
POINTS = ((1e6, 0.5), (1e9, 0.9))
PAIR = [[0.5, 0.5], [0.5, 0.5]]
SENDER = compression_time.Method("8 bits", 1.0, compress=0.1)
WHOLE_MODEL = {"shape": GPT2, "plan": PLAN, "rank": 1}
PIECE = {name: 1.0 for name in ("kept", "output", "forward_peak", "backward_peak", "without_gradients")}
PIECE |= {"name": "", "parameters": 1, "forward": {}, "backward": {}}

# Function -> a call that works. Only what stands here is changed, so every number is given, defaults too.
CALLS = {
    per_rank: {"load": [3.0, 1.0], "ranks": 2},
    copy_bytes: {"hidden": 4, "plan": Plan()},
    routed_traffic: {"routed": [[3.0, 1.0], [2.0, 2.0]], "hidden": 4, "rank": 0, "itemsize": 2, "there": 8},
    elements_on: {"sizes": [6, 3], "ranks": 2},
    mean_muon_traffic: {"matrices": 64.0, "ranks": 2},
    matrix_owners: {"shapes": [[2, 3], [2, 3]], "held": [[6, 0], [3, 3]]},
    muon_traffic: {"shapes": [[2, 3], [2, 3]], "held": [[6, 0], [3, 3]], "rank": 0, "itemsize": 2},
    Question: {
        "ranks": 2,
        "microbatches": 4,
        "chunks": 1,
        "forward": 1.0,
        "backward_input": 1.0,
        "backward_weight": 1.0,
        "transfer": 0.1,
        "together": 2.0,
        "speeds": [1.0, 0.5],
        "saved": 1e9,
        "kept": 0.5,
        "checkpoint": 0.5,
    },
    explore: {"ranks": 2, "microbatches": 4},
    Explorer(Question()).iframe: {"height": 900},
    chunk_sizes: {"elements": 10, "parts": 3},
    recovery.predict_recovery: {
        "ranks": 3,
        "detect": 0.05,
        "poll": 0.02,
        "last_call": 0.0,
        "connect": 0.1,
        "state_bytes": 1e6,
        "bandwidth": 1e9,
        "step_seconds": 0.1,
        "steps_lost": 0,
    },
    proportional_chunks: {"elements": 10, "shares": [7.0, 1.0]},
    compression.kept: {"density": 0.1, "elements": 100},
    compression.low_rank: {"shape": (16, 16), "matrix_rank": 2, "min_compression": 2.0},
    compression.fragment_steps: {"every": 10, "fragments": 4},
    mixing.ring_matrix: {"ranks": 3},
    mixing.pair_matrix: {"ranks": 3, "step": 1, "seed": 1},
    mixing.check_matrix: {"matrix": PAIR, "ranks": 2},
    consensus.second_eigenvalue: {"matrix": PAIR},
    consensus.consensus_bound: {"start": 1.0, "matrix": PAIR, "steps": 2},
    compression_time.Method: {"name": "8 bits", "sent": 4.0, "messages": 2, "compress": 0.1, "every": 2},
    compression_time.Method.of: {
        "name": "8 bits",
        "traffic": traffic.ddp_traffic([8], 2),
        "compress": 0.1,
        "every": 2,
    },
    compression_time.exchange_step_seconds: {"method": SENDER, "link": LINK, "compute": 1.0, "hidden": 0.1},
    compression_time.crossing_bandwidth: {"method": SENDER, "reference": SENDER, "latency": 0.1},
    compression_time.fastest: {"methods": [SENDER], "link": LINK, "hidden": 0.1},
    compression_traffic.bytegrad_traffic: {"sizes": [8, 8], "ranks": 2},
    compression_traffic.one_bit_traffic: {"sizes": [8, 8], "ranks": 2},
    compression_traffic.top_k_traffic: {"sizes": [8, 8], "ranks": 2, "density": 0.1, "itemsize": 4},
    compression_traffic.random_k_traffic: {
        "sizes": [8, 8],
        "ranks": 2,
        "density": 0.1,
        "itemsize": 4,
        "rank": 1,
    },
    compression_traffic.power_sgd_traffic: {
        "buckets": [[(8, 8), (8,)]],
        "ranks": 2,
        "matrix_rank": 1,
        "itemsize": 4,
        "min_compression": 2.0,
        "rank": 1,
    },
    compression_traffic.decentralised_traffic: {"sizes": [8, 8], "matrix": PAIR, "rank": 1, "itemsize": 4},
    compression_traffic.low_precision_decentralised_traffic: {"sizes": [8, 8], "matrix": PAIR, "rank": 1},
    compression_traffic.averaging_traffic: {
        "fragments": [8, 8],
        "ranks": 2,
        "every": 4,
        "steps": 8,
        "itemsize": 4,
        "rank": 1,
    },
    Shares((1, 1), (2, 2), (1, 1)).tokens: {"length": 4},
    deal_shares: {
        "ranks": 2,
        "heads": 8,
        "columns": 32,
        "group": 1,
    },
    partial(lambda ranks, **given: deal_shares(ranks, 8, 32, given), 2): {
        "heads": [5, 3],
        "columns": [16, 16],
        "sequence": [7, 1],
    },
    CacheHistory: {"slots": 8, "steps": (), "waiting": ()},
    CACHE.use: {"steps": [0, 1]},
    checkpoint_interval.young: {"cost": 30.0, "mtbf": 9000.0},
    checkpoint_interval.lost_share: {
        "interval": 600.0,
        "cost": 30.0,
        "restart": 60.0,
        "mtbf": 9000.0,
        "behind": 9.0,
    },
    checkpoint_interval.useful_share: {"interval": 600.0, "cost": 30.0, "restart": 60.0, "mtbf": 9000.0},
    goodput.ReportedRun: {"gpus": 64, "days": 3.0, "failures": 2},
    goodput.simulate_run: {
        "days": 2.0,
        "mtbf": 9000.0,
        "interval": 600.0,
        "cost": 30.0,
        "restart": 60.0,
        "seed": 1,
        "behind": 9.0,
    },
    serving.Arrival: {"prompt": 3, "new_tokens": 2, "step": 1},
    serving.blocks_for: {"tokens": 3, "block_size": 2},
    serving.power_of_two: {"tokens": 3},
    serving.serve_contiguous: {"arrivals": ARRIVALS, "slots": 8, "region": lambda arrival: 8, "every": 1},
    serving.serve_in_blocks: {"arrivals": ARRIVALS, "blocks": 4, "block_size": 2, "every": 1},
    serving.conversation_lengths: {
        "count": 2,
        "prompt": 3.0,
        "answer": 3.0,
        "longest": 40,
        "seed": 1,
    },
    Link: {"latency": 1e-6, "bandwidth": 1e9, "efficiency": 0.9},
    LINK.seconds: {"size": 10.0, "messages": 2},
    partial(replace, A100): {
        **{
            name: getattr(A100, name)
            for name in Hardware.__dataclass_fields__
            if name not in ("name", "attention")
        },
        "matmul_sizes": POINTS,
        "memory_sizes": POINTS,
    },
    A100.slowed: {"factor": 2.0, "memory": 1e9},
    Hardware.of: {"peak_flops": 1e12, "memory_bandwidth": 1e9, "link_bandwidth": 1e9, "memory": 1e9},
    ModelShape: {
        "layers": 2,
        "hidden": 8,
        "heads": 2,
        "vocab": 10,
        "sequence": 4,
        "kv_heads": 2,
        "ffn": 16,
        "experts": 2,
        "experts_per_token": 1,
        "other_parameters": 3,
        "head_dim": 4,
        "decoder_layers": 0,
        "dense_layers": 1,
        "expert_ffn": 8,
        "shared_experts": 1,
        "q_rank": 4,
        "kv_rank": 4,
        "rope_dim": 2,
        "value_dim": 4,
        "other_layer_parameters": 1,
        "window": 2,
        "full_layers": 1,
        "next_tokens": 1,
        "tied": True,
        "learned_positions": True,
        "biases": True,
        "dropout": False,
    },
    **{
        getattr(GPT2, name): {"tp": 2}
        for name in (
            "attention_parameters",
            "attention_linears",
            "kv_heads_on",
            "expert_parameters",
            "embedding_parameters",
            "head_parameters",
        )
    },
    GPT2.experts_on: {"ep": 1},
    GPT2.kv_columns: {"tp": 2},
    GPT2.kinds: {"first": 1, "count": 2},
    GPT2.layer_parameters: {"tp": 2, "ep": 1},
    GPT2.layer_matrices: {"tp": 2, "ep": 1},
    GPT2.routed_parameters: {"ep": 1},
    PLAN.matrices_on: {"shape": GPT2, "rank": 1},
    muon_seconds: {"shape": GPT2, "plan": PLAN, "hardware": A100, "rank": 1},
    Plan: {
        "dp": 2,
        "tp": 2,
        "pp": 2,
        "cp": 2,
        "ep": 2,
        "micro_batch": 2,
        "microbatches": 4,
        "chunks": 1,
        "stage_layers": (6, 6),
        "sequence_parallel": True,
        "zero": 1,
        "shard": 2,
        "prefetch": 1,
        "node_limit": 2,
        "imbalance": 1.5,
        "zigzag": False,
        "ulysses": 2,
    },
    PLAN.rank_of: {"stage": 1},
    PLAN.stages_of: {"rank": 1},
    PLAN.layers_on: {"shape": GPT2, "rank": 1},
    PLAN.kinds_on: {"shape": GPT2, "rank": 1},
    PLAN.parameters_of: {"shape": GPT2, "rank": 1},
    PLAN.root_parameters: {"shape": GPT2, "rank": 1},
    MemoryBreakdown: dict.fromkeys(MemoryBreakdown.__dataclass_fields__, 1.0),
    replay(RUN, 1.0)[0].at: {"time": 1.0},
    TrafficRow: {"collective": "send", "group_size": 2, "calls": 1, "payload": 4.0, "sent": 4.0},
    Schedule: {"name": "own", "ranks": 1, "microbatches": 1, "chunks": 1, "actions": ((),)},
    SCHEDULE.rank_of: {"stage": 1},
    SCHEDULE.stages_of: {"rank": 1},
    simulate: {
        "schedule": SCHEDULE,
        "forward": 1.0,
        "backward_input": [1.0, 2.0],
        "backward_weight": [[1.0] * 4] * 2,
        "transfer": 0.1,
        "message_bytes": 4.0,
        "bandwidth": 8.0,
        "speeds": [1.0, 0.5],
        "overlapped": 1.0,
    },
    layout_steps.sent_by_step: {"before": "part", "after": "whole", "ranks": 2},
    placement.chunks_of: {"name": "interleaved-1f1b", "v": 2},
    placement.rank_of: {"stage": 1, "ranks": 2, "placement": "v"},
    placement.stages_of: {"rank": 1, "ranks": 2, "chunks": 2, "placement": "v"},
    **{
        getattr(schedules, name): {"p": 2, "m": 4, "v": 1}
        for name in ("one_at_a_time", "gpipe", "one_f_one_b", "zb_h1", "zb_h2")
    },
    **{
        function: {"p": 2, "m": 4, "v": 2}
        for function in (schedules.interleaved_1f1b, v_schedules.zb_v, v_schedules.dualpipe_v)
    },
    schedules.interleaved_rounds: {"p": 2, "m": 4},
    schedules.make_schedule: {"name": "interleaved-1f1b", "ranks": 2, "microbatches": 4, "chunks": 2},
    **{
        function: {"length": 8, "size": 4, "heads": 2, "itemsize": 2, "dropout": True}
        for function in (attention_io.standard_forward, attention_io.standard_backward)
    },
    **{
        function: {
            "length": 8,
            "size": 4,
            "block_q": 4,
            "block_k": 2,
            "heads": 2,
            "itemsize": 2,
            "causal": True,
            "version": 2,
        }
        for function in (attention_io.flash_forward, attention_io.flash_backward)
    },
    attention_io.flash_fast_bytes: {"block_q": 4, "block_k": 2, "size": 4, "itemsize": 2},
    attention_io.best_blocks: {"length": 32, "size": 4, "fast_bytes": 10**5, "itemsize": 2, "multiple": 16},
    attention_io.paper_blocks: {"size": 4, "fast_elements": 64},
    attention_io.attention_flops: {"length": 8, "size": 4, "heads": 2, "causal": True},
    collective_time.all_reduce_rounds: {"algorithm": "tree", "ranks": 4},
    collective_time.all_reduce_seconds: {"algorithm": "ring", "payload": 8.0, "ranks": 4, "link": LINK},
    collective_time.tree_ring_crossover: {"ranks": 4, "link": LINK},
    collective_time.group_link: {"ranks": 4, "stride": 2, "hardware": A100},
    collective_time.collective_seconds: {
        "collective": "all-reduce",
        "payload": 8.0,
        "ranks": 4,
        "stride": 2,
        "hardware": A100,
    },
    collective_time.dispatch_seconds: {
        "tokens": 8.0,
        "copies": 2,
        "size": 4.0,
        "ranks": 16,
        "stride": 2,
        "node_limit": 2,
        "hardware": A100,
    },
    collective_time.exposed: {"communication": 1.0, "computation": 1.0, "hardware": A100, "overlap": 0.5},
    collective_traffic.sent_bytes: {"collective": "all-reduce", "payload": 8.0, "group_size": 2},
    collective_traffic.ring_reduce_scatter_sent: RING,
    collective_traffic.ring_all_gather_sent: RING,
    collective_traffic.ring_all_reduce_sent: RING,
    kv_cache.kv_cache_bytes_per_token: {"layers": 2, "kv_heads": 3, "head_size": 4, "bytes_per_number": 2},
    kv_cache.latent_cache_bytes_per_token: {
        "layers": 2,
        "latent": 3,
        "rope_size": 4,
        "bytes_per_number": 2,
    },
    flops.forward_flops: {"shape": GPT2, "batch": 2},
    flops.model_flops: {"shape": GPT2, "batch": 2},
    flops.hardware_flops: {"shape": GPT2, "plan": PLAN, "batch": 2},
    layer_time.core_seconds: {"shape": GPT2, "plan": PLAN, "hardware": A100, "heads": 2, "rows": 8},
    shares.measured_seconds: {
        "points": {"mlp": {4: (1.0, 2.0)}},
        "slowness": [1.0, 2.0],
        "handling": {"mlp": (1.0, 2.0)},
    },
    shares.with_heads: {"shape": GPT2, "heads": 3},
    shares.of_share: {"shape": GPT2, "block": "mlp", "share": 4},
    placed_messages.message_seconds: {
        "shape": GPT2,
        "plan": PLAN,
        "placement": "galaxy",
        "devices": [A100, A100],
        "sequence": [1, 1],
    },
    Part: {
        "name": "heads",
        "total": 3,
        "seconds": lambda rank, share: (float(share), float(share)),
        "bytes": 1.0,
        "longest": 0.5,
    },
    deal: {"parts": [Part("heads", 3, lambda rank, share: (float(share), float(share)))], "room": [1.0, 1.0]},
    price_layer: {
        "shape": GPT2,
        "devices": [A100, A100],
        "heads": [9, 3],
        "columns": [3000, 72],
        "sequence": [1000, 24],
    },
    price_stages: {"shape": GPT2, "devices": [A100, A100], "plan": PLAN, "layers": [9, 3]},
    kernel_time.matmul_seconds: {"m": 8, "n": 8, "k": 8, "hardware": A100, "itemsize": 2, "batch": 1},
    kernel_time.grouped_seconds: {
        "m": 8,
        "n": 8,
        "k": 8,
        "hardware": A100,
        "itemsize": 2,
        "groups": 2,
        "gradient": 8.0,
    },
    kernel_time.memory_seconds: {"size": 8.0, "hardware": A100},
    kernel_time.flash_seconds: {"heads": 2, "rows": 8, "columns": 8, "width": 4, "hardware": A100},
    partial(kernel_time.at_size, POINTS): {"size": 1e7},
    memory.model_states: {"parameters": 1e6, "plan": PLAN, "copies": 2},
    **{
        function: WHOLE_MODEL
        for function in (
            *(memory.host_bytes, memory.activation_bytes, memory.buffer_bytes),
            *(memory.placeholder_bytes, memory.rank_memory),
        )
    },
    memory.in_flight: {"plan": PLAN, "rank": 1, "weights": [2.0]},
    memory.reserved_bytes: {"allocated": 1e9, "hardware": A100},
    replay: {"execution": RUN, "saved": [2.0, 2.0], "kept": 1.0},
    peak_saved: {"schedule": SCHEDULE, "saved": [2.0, 2.0], "kept": [1.0, 1.0]},
    overlap.ddp_timeline: LAYERS
    | SPEEDS
    | {"gradient_bytes": [4.0, 4.0], "bucket_bytes": 4.0, "first_bucket_bytes": 4.0, "overlap": True},
    overlap.fsdp_timeline: LAYERS
    | SPEEDS
    | {"unit_bytes": [4.0, 4.0], "prefetch": 1, "reshard": True, "gradient_bytes": [4.0, 4.0]},
    finetuning.kept_terms: {"shape": GPT2, "batch": 2, "rank": 8, "itemsize": 4, "mask_itemsize": 1},
    finetuning.kept_activations: {"shape": GPT2, "batch": 2, "rank": 8, "itemsize": 4, "mask_itemsize": 1},
    recomputation.Segment: {"kept": 1.0, "again": 1.0, "forward": 1.0, "repeated": 0.5},
    recomputation.equal_layers: {"layers": 4, "segments": 2, "saved": 4.0, "kept": 1.0},
    export: {"framework": "deepspeed", "shape": GPT2, "plan": Plan(), "node_size": 8},
    traced.Piece: PIECE,
    traced.TracedModel: {
        "pieces": (traced.Piece(**PIECE),),
        "samples": 1,
        "itemsize": 4,
        "frozen": 1,
        "largest": 1,
        "fixed": 1.0,
        "tp": 1,
    },
    traced.Traces: {"trace": len, "samples": 1},
    search.search_plans: {"model": GPT2, "hardware": A100, "gpus": 2, "global_batch": 2, "keep": 1},
    step.stage_seconds: {"shape": GPT2, "plan": PLAN, "hardware": A100, "rank": 1},
    traffic.calls: {
        "collective": "all-reduce",
        "sizes": [8, 8],
        "itemsize": 4,
        "ranks": 2,
        "rank": 1,
        "times": 2,
    },
    traffic.ddp_traffic: {"sizes": [8, 8], "ranks": 2, "itemsize": 4, "rank": 1},
    traffic.zero_traffic: {
        "stage": 3,
        "sizes": [8, 8],
        "ranks": 2,
        "itemsize": 4,
        "rank": 1,
        "gradient_itemsize": 4,
        "accumulation": 2,
    },
    traffic.fsdp_traffic: {
        "units": [8, 8],
        "ranks": 4,
        "itemsize": 4,
        "rank": 1,
        "shard": 2,
        "gradient_itemsize": 4,
        "accumulation": 2,
    },
    traffic.tensor_parallel_traffic: {
        "tokens": 8,
        "hidden": 4,
        "ranks": 2,
        "layers": 2,
        "itemsize": 2,
        "rank": 1,
    },
    traffic.pipeline_traffic: {
        "elements": 8,
        "microbatches": 4,
        "ranks": 2,
        "rank": 1,
        "chunks": 1,
        "itemsize": 2,
    },
    traffic.schedule_traffic: {"schedule": SCHEDULE, "elements": 8, "rank": 1, "itemsize": 2},
    traffic.expert_parallel_traffic: {
        "tokens": 8,
        "hidden": 4,
        "experts_per_token": 2,
        "ranks": 2,
        "layers": 2,
        "itemsize": 2,
        "there": 8,
    },
    context_traffic.context_layer_traffic: {
        "context": "ring",
        "queries": 64,
        "keys": 32,
        "ranks": 2,
        "itemsize": 2,
        "ulysses": 2,
        "results": 64,
    },
    galaxy_traffic.galaxy_traffic: {
        "shape": GPT2,
        "placement": "galaxy",
        "ranks": 2,
        "rank": 1,
        "heads": [7, 5],
        "columns": [2048, 1024],
        "sequence": [7, 5],
        "batch": 2,
        "itemsize": 4,
        "backward": True,
        "overlap": False,
    },
    galaxy_traffic.step_traffic: {"step": "all-gather", "lengths": [5, 3], "bytes_of_token": 4, "rank": 1},
    vocabulary_traffic.embedding_traffic: {"tokens": 6, "hidden": 4, "ranks": 2, "itemsize": 2},
    vocabulary_traffic.head_traffic: {"tokens": 6, "hidden": 4, "ranks": 2, "itemsize": 2},
    vocabulary_traffic.loss_traffic: {"tokens": 6, "ranks": 2, "itemsize": 4},
    plan_traffic.plan_traffic: {"shape": GPT2, "plan": PLAN, "stage": 1},
    plan_traffic.data_parallel_traffic: {"shape": GPT2, "plan": PLAN, "stage": 1},
    traffic.padded: {"sizes": [5, 6], "ranks": 2},
    unsharded.unsharded_history: {"unit_bytes": [4.0, 4.0], "ranks": 2, "root_bytes": 1.0, "prefetch": 1},
    partial(plot_bytes_over_time, replay(RUN, 1.0)): {"capacity": 8.0},
    partial(plot_curves, {"a": [1.0, 2.0]}): {"bottom": 0.5},
    partial(plot_groups, {"tp": [[0, 1]]}): {"node_size": 2},
    partial(plot_memory, MemoryBreakdown(1.0)): {"capacity": 8.0},
    partial(smallest_text, '<svg width="100pt"></svg>'): {"column": 640.0},
    partial(plot_plans, {"a": ({"attention": 1.0}, MemoryBreakdown(1.0))}): {"capacity": 8.0},
    partial(plot_timeline, Timeline(RUN.spans)): {"width": 6.0},
}
# What takes numbers and is not changed here, with the reason.
ELSEWHERE = {
    "at_least, index, not_negative, positive, positive_or_infinite, finite, part, amounts": "the checks themselves",
    "speeds_of, yes_or_no, is_number, refuse": "the checks themselves",
    "grid_of, titles_for, ticks_in, label_capacity, unit_of, human": "for drawings: lengths, and sizes checked before",
    "move_behind_line": "a place in a drawing",
    "Piece, CacheUse": "parts of a CacheHistory, whole numbers of a run",
    "Picture, in_rounds, Event, Message, Meeting, rendezvous": "what a run has recorded, in plain tuples",
    "Span, Peak, Node, Gap, Action, explain_deadlock, Execution": "parts of a Timeline or Schedule, which checks them",
    "MemoryHistory, StepCost, StageSeconds, UnitSeconds, LayerSeconds": "answers, whose parts were checked",
    "Explorer": "of a challenge; tests/simulator/explorer/test_explorer.py tries wrong ones",
    "Measured": "of a recorded Timeline, which checks its numbers; tests/simulator/explorer/test_measured.py",
    "MemoryQuestion": "counts for Plan and ModelShape; tests/simulator/explorer/test_calculator.py tries wrong ones",
    "formulas, Term, check_room": "of bytes that plan_memory has computed",
    "Asked": "of export, which has checked it",
    "seconds_together": "of lists; tests/simulator/pipeline/test_together.py tries a wrong one",
    "largest_micro_batch, changes_that_fit": "a device's memory, which Hardware has checked",
    "bytes_around": "of one rank, for replay and for the explorer, which check its numbers",
    "plans, why_slower, what_binds, what_helps, Found, Search": "of search_plans, which checks its numbers",
    "of, busy": "of Timeline: a rank without spans has none, whichever it is",
    "plot_layer_split": "shares by name, tried in test_split_timeline.py",
    "plot_parts": "numbers by name, tried in test_plots.py",
    "plot_cache": "steps of requests and the number of one, tried in test_serving.py",
    "Shares": "an answer of deal_shares, which checks the numbers",
    "row_name, shade": "words and colours of a drawing, whose numbers were checked before",
    "GoodputRun": "an answer of simulate_run",
    "Moved, total_bytes": "answers: bytes that were counted or predicted",
    "LayerSplit, StageSplit": "answers of the planner",
    "Form": "a row of the table of schedules",
    "one_stage_seconds": "of plan_stages, which has checked its numbers",
    "cost, slowest, enough, trimmed, fits, check_fits, lacking": "of shares that were dealt out",
    "fastest, fastest_within, shortest_times, levels": "of a Part, for deal, which checks the room",
    "Figure, explore_block_life, explore_buckets, explore_interval": "sliders; tests/simulator/figures",
    "explore_kv_blocks, explore_rank, explore_ring": "sliders; tests/simulator/figures",
    "explore_tiles, explore_unequal": "sliders; tests/simulator/figures",
    "Call, Group, Issued, Recorded, RankTrace, RankStep, Row": "what the files of a run hold; tests/simulator/trace",
    "read_rank, read_dump, rank_in, add, union, between, calls_within": "of a run's files, checked as they are read",
    "Axes, ranks, met, measure, laid_over, in_words": "of ranks that were read from files",
    "PublishedRow, error, summary, misses, gpt, all_cards": "rows of papers, whose shapes, plans and links check",
}

WHOLE = (nan, inf, -1, True, 2.5, "4")  # in place of a count
AMOUNT = (nan, -inf, -1.0, True, "4")  # in place of an amount


def name_of(function):
    return getattr(function, "func", function).__qualname__ + ("()" if isinstance(function, partial) else "")


def bad(value):
    """What must be refused in the place of ``value``."""
    if isinstance(value, bool):
        return (nan, 2, "yes", None)
    return WHOLE if isinstance(value, int) else AMOUNT


def changed(value):
    """(what is given instead, the wrong number in it), for a number and for each number of a list."""
    if isinstance(value, int | float):
        for wrong in bad(value):
            yield wrong, wrong
    elif isinstance(value, list | tuple):
        for i, one in enumerate(value):
            for other, wrong in changed(one):
                yield type(value)([*value[:i], other, *value[i + 1 :]]), wrong


def refusal(function, call):
    """The sentence with which ``function`` refuses the call; None: it takes it."""
    try:
        function(**call)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("function", CALLS, ids=name_of)
def test_nonsense_is_refused_in_one_sentence(function):
    call = CALLS[function]
    function(**call)
    tried = 0
    for name, value in call.items():
        for given, wrong in changed(value):
            if (
                wrong == -1.0
                and type(wrong) is float
                and (name in NEGATIVE or function in (MemoryBreakdown, traced.Piece))
            ):
                continue
            sentence = refusal(function, call | {name: given})
            assert sentence, f"{name_of(function)} takes {given!r} as its {name}"
            assert (repr(wrong) if isinstance(wrong, str) else str(wrong)) in sentence, sentence
            assert " must " in sentence
            assert "\n" not in sentence
            tried += 1
    assert tried


NEGATIVE = {"bottom", "time", "again", "rows"}  # may lie below 0
# A rate or a memory may be infinite: then it costs no time, or is never full.
INFINITE = {"bandwidth", "memory", "link_bandwidth", "bucket_bytes", "first_bucket_bytes"}


@pytest.mark.parametrize("function", CALLS, ids=name_of)
def test_infinity_is_refused_unless_it_means_something(function):
    call = CALLS[function]
    for name, value in call.items():
        if isinstance(value, float):
            sentence = refusal(function, call | {name: inf})
            if name in INFINITE:
                assert sentence is None
            else:
                assert "inf" in (sentence or ""), f"{name_of(function)} takes infinity as its {name}"


def public_functions():
    """Functions, classes and methods of the simulator that name a number among their arguments."""
    for found in pkgutil.walk_packages(simulator.__path__, "simulator."):
        if found.name.startswith("simulator.cli") or found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        for name, thing in vars(module).items():
            if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
                continue
            if inspect.isclass(thing):
                yield name, thing
                for method, function in vars(thing).items():
                    if inspect.isroutine(function) and not method.startswith("_"):
                        yield method, getattr(thing, method)
            elif inspect.isfunction(thing):
                yield name, thing


def takes_numbers(thing):
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(re.search(r"\b(int|float|Duration|Sizes)\b", str(p.annotation)) for p in parameters)


def test_no_public_function_that_takes_numbers_is_left_out():
    called = {name_of(function).split(".")[-1].removesuffix("()") for function in CALLS}
    called |= {"Hardware"}  # by ``replace``
    left = {name for names in ELSEWHERE for name in names.split(", ")}
    found = {name for name, thing in public_functions() if takes_numbers(thing)}
    assert found >= {"Link", "simulate", "replay", "ddp_timeline", "plan_traffic"}
    assert not found - called - left, (
        "these take numbers: give each a call in CALLS, or a reason in ELSEWHERE"
    )
    assert not left - {name for name, _ in public_functions()}, (
        "these are named in ELSEWHERE and do not exist"
    )


def test_a_timeline_refuses_spans_without_a_time():
    for start, end in ((nan, 1.0), (0.0, nan), (0.0, inf), (-inf, 0.0), (2.0, 1.0)):
        with pytest.raises(
            ValueError, match=f"span 'F0' of rank 3 must .* not start at {start} and end at {end}"
        ):
            Timeline([Span(3, "compute", "F0", start, end)])
