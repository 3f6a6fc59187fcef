"""What one rank sends in one training step of a plan: the closed forms of ``traffic.py``, added up."""

from __future__ import annotations

from math import gcd, prod

from simulator.inputs.checks import index
from simulator.inputs.placement import placement_of
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.ledgers.traffic import Traffic
from simulator.predict.context_traffic import context_layer_traffic
from simulator.predict.expert_traffic import copy_bytes
from simulator.predict.muon import mean_muon_traffic
from simulator.predict.traffic import (
    calls,
    expert_parallel_traffic,
    fsdp_traffic,
    pipeline_traffic,
    tensor_parallel_traffic,
    zero_traffic,
)
from simulator.predict.vocabulary_traffic import embedding_traffic, head_traffic, loss_traffic


def plan_traffic(shape: ModelShape, plan: Plan, stage: int = 0) -> Traffic:
    """What one rank of pipeline rank ``stage`` sends in one step of ``plan``, as the mean over its groups. Left out are
    a few numbers a step that ranks agree on: counts of targets and of routed tokens, the loss, the gradient norm."""
    plan.check(shape)
    index(plan.pp, stage=stage)
    e, m, tp = plan.itemsize, plan.microbatches, plan.tp
    tokens = plan.micro_batch * shape.sequence // plan.cp
    local = tokens // tp if plan.sequence_parallel else tokens
    cut = {"sequence_parallel": plan.sequence_parallel}
    total = data_parallel_traffic(shape, plan, stage)
    for kind, n in plan.kinds_on(shape, stage).items():
        queries, results = (tokens * kind.heads // tp * size for size in (kind.key_size, kind.value_size))
        keys = tokens * kind.kv_columns(tp)
        if (u := plan.head_ranks) > 1:  # a rank's queries need the heads that they share
            keys *= u // gcd(u, kind.heads // tp if kind.kv_rank else kind.kv_heads_on(tp))
        given = queries, keys, plan.cp, e
        ahead, back = context_layer_traffic(plan.context, *given, ulysses=u, results=results)
        forwards = 1 if plan.recompute in ("none", "offload") else 2
        total += (ahead * forwards + back) * (n * m)
        again = {"recompute": plan.recompute == "full"}
        total += tensor_parallel_traffic(
            tokens, kind.hidden, tp, n * m, e, blocks=kind.regions, **again, **cut
        )
        if plan.sequence_parallel:
            total += calls("all-reduce", shared_sums(kind, plan), e, tp, times=n * m)
        if kind.experts > 1:
            sent = local, kind.hidden, kind.experts_per_token
            there = copy_bytes(kind.hidden, plan)
            total += expert_parallel_traffic(*sent, plan.ep, n * m, e, there=there, **again)
    ends = Traffic()
    if stage == 0:
        ends += embedding_traffic(tokens, shape.hidden, tp, e, **cut)
    if stage == plan.rank_of(plan.stages - 1):
        norm = [shape.norm_parameters] if plan.sequence_parallel else []
        ends += calls("all-reduce", norm, e, tp) + head_traffic(tokens, shape.hidden, tp, e, **cut)
        ends += loss_traffic(tokens, tp)
    # Every tensor-parallel rank would send the same activation; with sequence parallelism, its own part.
    placement = placement_of(plan.schedule)
    pipeline = pipeline_traffic(local * shape.hidden, m, plan.pp, stage, plan.chunks, e, placement=placement)
    return total + ends * m + pipeline


def data_parallel_traffic(shape: ModelShape, plan: Plan, stage: int = 0) -> Traffic:
    """The part of ``plan_traffic`` that keeps the copies of the parameters equal. Experts have fewer copies.

    With ZeRO 3 a layer is a unit; the root unit (embedding, final norm, output) stays gathered.
    """
    index(plan.pp, stage=stage)
    dense, experts = plan.parameters_of(shape, stage)
    kinds, root = plan.kinds_on(shape, stage), plan.root_parameters(shape, stage)
    of_experts = [n for kind, layers in kinds.items() for n in [kind.routed_parameters(plan.ep)] * layers]
    whole = [kind.layer_parameters(plan.tp, plan.ep) for kind, layers in kinds.items() for _ in range(layers)]
    of_dense = [n - part for n, part in zip(whole, of_experts, strict=True)]
    total = Traffic()
    for elements, each, last, ranks in (
        (dense, of_dense, root, plan.copies[0]),
        (experts, of_experts, 0, plan.copies[1]),
    ):
        shard = min(plan.shard, ranks)
        if not elements:
            continue
        if plan.zero == 3:
            units = [n for n in each if n] + [last] * (last > 0)
            total += fsdp_traffic(
                units, ranks, plan.itemsize, shard=shard, keep_last=last > 0, accumulation=plan.microbatches
            )
        else:
            total += zero_traffic(plan.zero, [elements], ranks, plan.itemsize, accumulation=plan.microbatches)
    for matrices, copies in zip(plan.matrices_on(shape, stage), plan.copies, strict=True):
        if plan.optimizer == "muon" and plan.zero:
            total += mean_muon_traffic(sum(map(prod, matrices)), min(plan.shard, copies))
    return total


def shared_sums(kind: ModelShape, plan: Plan) -> list[int]:
    """With sequence parallelism a tensor-parallel rank has a part of the tokens, so what all have whole in a layer has
    a part of its gradient: norms, biases behind what is cut by rows, the router and the experts."""
    sizes = [kind.norm_parameters] * kind.norms + [kind.hidden] * (kind.regions * kind.biases)
    return [*sizes, *filter(None, (kind.router_parameters, kind.routed_parameters(plan.ep)))]
