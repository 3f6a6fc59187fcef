"""The memory ledger: what one rank must hold, by category, in bytes.

Model states after ZeRO (arXiv:1910.02054), activations after Korthikanti et al. (arXiv:2205.05198), whose
coefficients each count what one operator keeps for its backward; sharded units after FSDP (arXiv:2304.11277).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from operator import mul

from simulator.inputs.checks import at_least, index, not_negative
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.ledgers.memory import MemoryBreakdown
from simulator.pipeline.schedules import make_schedule
from simulator.predict.in_flight import in_flight
from simulator.predict.memory_over_time import peak_saved

DDP_BUCKET = 25 * 2**20  # bytes, PyTorch's bucket_cap_mb


# ---- model states -----------------------------------------------------------------------------------------


def model_states(parameters: float, plan: Plan, copies: int | None = None) -> MemoryBreakdown:
    """Parameters, gradients and optimizer states of one device that computes with ``parameters`` of them.

    Mixed precision with Adam takes 2 + 2 + 12 bytes a parameter, with gradients in fp32 2 + 4 + 12; ZeRO stage 1
    divides the 12 among the ranks that share the states, stage 2 the gradients too, stage 3 everything.

    Args:
        copies: data-parallel ranks that hold the same parameters; None: all dp x cp of the plan.
    """
    copies = plan.copies[0] if copies is None else copies
    not_negative(parameters=parameters)
    at_least(1, copies=copies)
    shard = min(plan.shard, copies)
    here, grads, states = plan.itemsize, plan.gradient_itemsize, plan.optimizer_bytes
    states = 0 if plan.offload != "none" else states / (shard if plan.zero >= 1 else 1)
    grads = 0 if plan.offload != "none" else grads / (shard if plan.zero >= 2 else 1)
    here = 0 if plan.offload == "parameters" else here / (shard if plan.zero >= 3 else 1)
    return MemoryBreakdown(parameters * here, parameters * grads, parameters * states)


def host_bytes(shape: ModelShape, plan: Plan, rank: int = 0) -> float:
    """What offloading keeps in the host's memory for one device of pipeline rank ``rank``.

    The host updates its own copy of the parameters. With master weights that copy is among the optimizer's states;
    without them (fp32, bf16) it comes on top: 4 (parameter) + 4 (gradient) + 8 (Adam) bytes in fp32.
    """
    total = 0.0
    for parameters, sharers in zip(plan.parameters_of(shape, rank), plan.copies, strict=True):
        sharers = min(plan.shard, sharers) if plan.zero else 1
        states = plan.gradient_itemsize + plan.optimizer_bytes
        copy = 0 if plan.precision in ("mixed", "fp8") else plan.itemsize
        moved = {"none": 0, "optimizer": states + copy, "parameters": states + plan.itemsize}
        total += parameters * moved[plan.offload] / sharers
    if plan.offload != "none":
        total += _second_states(shape, plan, rank)
    if plan.recompute == "offload":
        kept = all_activation_bytes(shape, replace(plan, recompute="none"))[rank]
        total += kept - all_activation_bytes(shape, plan)[rank]
    return total


def _second_states(shape: ModelShape, plan: Plan, rank: int) -> float:
    """AdamW's second state of what Muon leaves to it."""
    if plan.optimizer != "muon":
        return 0
    matrices = sum(prod(matrix) for part in plan.matrices_on(shape, rank) for matrix in part)
    others = sum(plan.parameters_of(shape, rank)) - matrices
    return plan.state_itemsize * others / (plan.shard if plan.zero else 1)


# ---- activations ------------------------------------------------------------------------------------------


def attention_core_bytes(shape: ModelShape, plan: Plan) -> float:
    """Kept between the two products with the scores in one layer: 5 a s^2 b / t bytes without FlashAttention.

    Softmax output (2), dropout mask (1) and dropout output (2); FlashAttention keeps one fp32 number for each
    row of the scores instead (arXiv:2205.14135).
    """
    b, s, a = plan.micro_batch, shape.sequence, shape.heads / plan.tp
    rows = b * a * s / plan.cp * (2 if shape.crosses else 1)
    if plan.attention == "flash":
        return 4 * rows
    return rows * s * (2 * plan.itemsize + 1 if shape.dropout else plan.itemsize)


def layer_bytes(shape: ModelShape, plan: Plan) -> float:
    """What one layer keeps of one microbatch, without recomputation, on one rank; all layers of ``shape`` are alike.

    For a GPT in 16 bits: sbh (10 + 24/t + 5as/(ht)) with tensor parallelism, sbh (34/t + 5as/(ht)) with
    sequence parallelism too. The few numbers a norm keeps for each token are left out, as in the paper.
    """
    e, t, h = plan.itemsize, plan.tp, shape.hidden
    tokens = plan.micro_batch * shape.sequence / plan.cp
    split = t if plan.sequence_parallel else 1
    mask = 1 if shape.dropout else 0
    # (tokens, h), split only by sequence parallelism: two norms' inputs and outputs, two dropout masks
    outside = shape.norms * (2 * e + mask) * h / split
    # (tokens, h/t): q, k, v and the input of the projection. Where heads change ranks by an all-to-all, attention's
    # output is kept as it was computed and once more as the projection's input.
    given = shape.heads * shape.value_size / t
    attention = e * (_qkv(shape, t) + given + (given if plan.head_ranks > 1 else 0))
    if shape.crosses:
        attention *= 2
    # What queries, keys and values are made of, before and after its norm
    attention += e * 2 * ((shape.q_rank or 0) + (shape.kv_rank or 0))
    # (tokens, ffn/t): the activation's input (gate and up projection of SwiGLU, fused) and output
    routed = shape.experts_per_token * (plan.imbalance if shape.experts > 1 else 1)
    gates = 2 if shape.activation == "swiglu" else 1
    inner = (routed + shape.shared_experts) * e * (gates + 1) * shape.mlp_width / t
    if shape.experts > 1:
        # k copies of every token are the experts' inputs: not divided by ep, whose ranks get as many as they send. They
        # are weighed between an expert's matrices, as Megatron-LM does, so that what comes back need not be kept.
        inner += routed * e * h / split + 4 * shape.experts / split
    return tokens * (outside + attention + inner) + attention_core_bytes(shape, plan)


def _qkv(shape: ModelShape, tp: int) -> float:
    """Columns of q, k and v of one attention on one rank."""
    return shape.attention_width / tp + shape.kv_columns(tp)


def recomputed_bytes(shape: ModelShape, plan: Plan) -> float:
    """What one layer does not keep on the device but brings back in its backward, given the plan's recomputation."""
    if plan.recompute in ("full", "offload"):
        return layer_bytes(shape, plan)
    # FlashAttention recomputes the scores tile by tile: selective recomputation has nothing left to save.
    selective = plan.recompute == "selective" and plan.attention != "flash"
    return attention_core_bytes(shape, plan) if selective else 0


def kept_layer_bytes(shape: ModelShape, plan: Plan) -> float:
    """What one layer keeps of one microbatch until its backward; with full recomputation, its input: 2 sbh."""
    if plan.recompute == "full":
        return _layer_input(shape, plan)
    return layer_bytes(shape, plan) - recomputed_bytes(shape, plan)


def weight_bytes(shape: ModelShape, plan: Plan) -> float:
    """What the weights' backward of one layer needs, if it comes later: inputs and output gradients of its four
    linear layers, 32 sbh for a GPT (M_W of arXiv:2401.10241, table 1), and never more than the layer keeps."""
    h, t, gates = shape.hidden, plan.tp, 2 if shape.activation == "swiglu" else 1
    split = t if plan.sequence_parallel else 1
    attentions, inner = shape.norms - 1, shape.visits * shape.mlp_width / t
    latent = (shape.q_rank or 0) + (shape.kv_rank or 0)
    inputs = shape.norms * h / split + latent + attentions * shape.heads * shape.value_size / t + inner
    gradients = attentions * _qkv(shape, t) + latent + shape.norms * h / split + gates * inner
    tokens = plan.micro_batch * shape.sequence / plan.cp
    return min(plan.itemsize * tokens * (inputs + gradients), kept_layer_bytes(shape, plan))


def _layer_input(shape: ModelShape, plan: Plan) -> float:
    """(s/cp, b, h), split along s by sequence parallelism: 2 sbh bytes."""
    tokens = plan.micro_batch * shape.sequence / plan.cp
    return plan.itemsize * tokens * shape.hidden / (plan.tp if plan.sequence_parallel else 1)


def embedding_bytes(shape: ModelShape, plan: Plan) -> float:
    """The mask of the dropout behind the embedding: sbh."""
    return _layer_input(shape, plan) / plan.itemsize if shape.dropout else 0


def head_bytes(shape: ModelShape, plan: Plan) -> float:
    """Input and output of the final norm, and the logits, split by vocabulary: 4sb (h + V/t), as the loss keeps them
    in fp32; a fused loss leaves them in 16 bits."""
    wide = plan.itemsize if plan.loss == "fused" else 4
    logits = plan.micro_batch * shape.sequence / plan.cp * wide * shape.vocab / plan.tp
    # with two norms' outputs side by side, too
    more = shape.next_tokens * (4 * _layer_input(shape, plan) + logits)
    return 2 * _layer_input(shape, plan) + logits + more


def activation_bytes(shape: ModelShape, plan: Plan, rank: int = 0) -> float:
    """All that pipeline rank ``rank`` keeps at its peak: layers of every microbatch in flight, and the ends."""
    index(plan.pp, rank=rank)
    return all_activation_bytes(shape, plan)[rank]


def all_activation_bytes(shape: ModelShape, plan: Plan) -> list[float]:
    """``activation_bytes`` of every pipeline rank, by a closed form for 1F1B and from its actions otherwise."""
    if plan.schedule not in ("1f1b", "interleaved-1f1b"):
        # From some microbatch on, every further one takes the place of an earlier one; except in GPipe.
        m = plan.microbatches if plan.schedule == "gpipe" else min(plan.microbatches, 4 * plan.pp)
        schedule = make_schedule(plan.schedule, plan.pp, m, plan.chunks)
        return peak_saved(schedule, *stage_bytes(shape, plan))
    kept, peaks = _layers_bytes(shape, plan, kept_layer_bytes), []
    for rank, layers in enumerate(plan.layers_of(shape)):
        counts = in_flight(plan, rank, layers)
        peaks.append(sum(map(mul, counts, (kept[stage] for stage in plan.stages_of(rank)))))
        if rank == 0:
            peaks[0] += embedding_bytes(shape, plan) * counts[0]
    peaks[-1] += head_bytes(shape, plan)  # the last stage goes straight on to the backward
    return peaks


def stage_bytes(shape: ModelShape, plan: Plan) -> tuple[list[float], list[float]]:
    """(saved by F, of that kept from B until W) of one microbatch, one entry a stage."""
    saved, kept = (_layers_bytes(shape, plan, each) for each in (kept_layer_bytes, weight_bytes))
    saved[0] += embedding_bytes(shape, plan)
    saved[-1] += head_bytes(shape, plan)
    kept[-1] += head_bytes(shape, plan)
    return saved, kept


def _layers_bytes(shape: ModelShape, plan: Plan, each: Callable[[ModelShape, Plan], float]) -> list[float]:
    """The layers of every stage together, given the bytes of each."""
    one = {kind: each(kind, plan) for kind in shape.kinds()}
    return [sum(n * one[kind] for kind, n in kinds.items()) for kinds in plan.kinds_by_stage(shape)]


# ---- what is alive for a moment ---------------------------------------------------------------------------


def buffer_bytes(shape: ModelShape, plan: Plan, rank: int = 0) -> float:
    """Communication buffers, and the one layer that recomputation brings back to life.

    DDP and ZeRO 1: one bucket of gradients on its way. ZeRO 2: the gradients of one layer before they are
    scattered. ZeRO 3: the root unit (embedding, final norm, output), which stays gathered, the layer in use, those
    prefetched, and the gradients of the largest unit.
    """
    index(plan.pp, rank=rank)
    kinds = plan.kinds_on(shape, rank)
    # With activation offload two layers are there at once: one computes, one is on its way from or to the host.
    layers = 2 if plan.recompute == "offload" and plan.layers_on(shape, rank) > 1 else 1
    held = layers * max(recomputed_bytes(kind, plan) for kind in kinds) + placeholder_bytes(shape, plan, rank)
    if plan.dp * plan.cp == 1:
        return held
    dense, experts = plan.parameters_of(shape, rank)
    unit = max(kind.layer_parameters(plan.tp, plan.ep) for kind in kinds)
    root = plan.root_parameters(shape, rank)
    if plan.zero < 2:
        return held + min(DDP_BUCKET, plan.gradient_itemsize * (dense + experts))
    if plan.zero == 2:
        return held + plan.gradient_itemsize * unit
    gathered = plan.itemsize * (root + unit * min(1 + plan.prefetch, plan.layers_on(shape, rank)))
    return held + gathered + plan.gradient_itemsize * max(root, unit)


def placeholder_bytes(shape: ModelShape, plan: Plan, rank: int = 0) -> float:
    """What autograd is given in place of a gradient where a kernel adds into an fp32 gradient by itself.

    Megatron-LM and Transformer Engine return an empty 16-bit tensor for each linear weight. Those of the layers are
    kept, one for each shape of weight, and shared by all layers and by all experts; the output layer's lives while it
    runs backward.
    """
    index(plan.pp, rank=rank)
    if plan.gradients == "same" or plan.itemsize == 4 or plan.zero >= 2:
        return 0
    last = rank == plan.rank_of(plan.stages - 1)
    output = -(-shape.vocab // plan.tp) * shape.hidden if last else 0
    layer = max(kind.layer_parameters(plan.tp, kind.experts) for kind in plan.kinds_on(shape, rank))
    return plan.itemsize * (layer + output)


# ---- the whole --------------------------------------------------------------------------------------------


def rank_memory(
    shape: ModelShape, plan: Plan, rank: int = 0, hardware: Hardware | None = None
) -> MemoryBreakdown:
    """The peak of one device of pipeline rank ``rank``."""
    index(plan.pp, rank=rank)
    return plan_memory(shape, plan, hardware)[rank]


def plan_memory(shape: ModelShape, plan: Plan, hardware: Hardware | None = None) -> list[MemoryBreakdown]:
    """The peak of every pipeline rank; the heaviest decides whether the plan fits.

    Args:
        hardware: the device: it decides what the plan leaves open (``Plan.on``), and adds what its driver, libraries
            and allocator hold beyond the tensors, as ``reserved``. None: the bytes of the tensors alone, which is what
            ``torch.cuda.max_memory_allocated`` counts.
    """
    plan.check(shape)
    plan = plan.on(hardware)
    alike, activations = plan.alike(shape), all_activation_bytes(shape, plan)
    rest = {rank: _without_activations(shape, plan, rank) for rank in set(alike)}
    ranks = []
    for like, peak in zip(alike, activations, strict=True):
        reserved = reserved_bytes(rest[like].total + peak, hardware) if hardware else 0
        ranks.append(replace(rest[like], activations=peak, reserved=reserved))
    return ranks


def reserved_bytes(allocated: float, hardware: Hardware) -> float:
    """What is taken beyond ``allocated`` bytes of tensors: the context, and blocks that the allocator cannot reuse."""
    not_negative(allocated=allocated)
    return hardware.context + hardware.fragmentation * allocated


def _without_activations(shape: ModelShape, plan: Plan, rank: int) -> MemoryBreakdown:
    dense, experts = plan.parameters_of(shape, rank)
    states = model_states(dense, plan) + model_states(experts, plan, plan.copies[1])
    if plan.offload == "none":
        more = _second_states(shape, plan, rank)
        states = replace(states, optimizer_states=states.optimizer_states + more)
    return replace(states, buffers=buffer_bytes(shape, plan, rank))
