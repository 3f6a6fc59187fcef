"""How long one operator, one collective and one layer take: rooflines for kernels, alpha-beta for links.

Nothing here is fitted to a model or a plan. Numbers that no data sheet prints are fields of ``Hardware``, one value for
each kind of device; the few constants below hold for all devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil
from operator import add

from simulator.inputs.checks import at_least
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.collective_time import collective_seconds, dispatch_seconds, exposed, group_link
from simulator.predict.kernel_time import (
    HOST_LINK,
    flash_seconds,
    grouped_seconds,
    matmul_seconds,
    memory_seconds,
)
from simulator.predict.memory import layer_bytes

# Bytes that the loss moves for one logit. Unfused, in fp32: converted, maximum, shifted, exponential, sum, and back.
# Fused: a 16-bit logit is read for the maximum and the sum, and once more when its gradient takes its place.
LOSS_BYTES = {"unfused": 36, "fused": 6}
# Bytes that a cast to 8 bits moves for a number: inputs, weights and outputs' gradients are read in 16 bits, and are
# written in 8 as they are and transposed. Scales of 4 bytes for 128 numbers in a row, or of 1 byte for 32, differ in
# the two, so that both are cast from 16 bits.
CAST_BYTES = {"tensor": 4, "delayed": 4, "block": 6 + 2 * 4 / 128, "mx": 6 + 2 / 32}


@dataclass(frozen=True)
class LayerSeconds:
    """Seconds of one layer on one microbatch; what several questions need is computed once, and passed on.

    Args:
        forward, backward: by part, without recomputation: ``attention`` and ``mlp`` (matrix products and what runs
            between them), ``norms`` (norms, dropout and residuals), ``tensor_parallel``, ``context_parallel`` and
            ``expert_parallel`` (the exposed communication).
        weight: the part of backward that no other layer waits for: the products for the weights.
        recomputation: what backward repeats of forward.
    """

    forward: dict[str, float]
    backward: dict[str, float]
    weight: float
    recomputation: float

    @cached_property
    def parts(self) -> dict[str, float]:
        """Forward, backward and recomputation together, by part."""
        both = {name: seconds + self.backward[name] for name, seconds in self.forward.items()}
        return both | {"recomputation": self.recomputation}

    @cached_property
    def forward_seconds(self) -> float:
        return sum(self.forward.values())

    @cached_property
    def backward_seconds(self) -> float:
        """With what it recomputes."""
        return sum(self.backward.values()) + self.recomputation


def layer_seconds(shape: ModelShape, plan: Plan, hardware: Hardware) -> LayerSeconds:
    """How long one layer takes on one microbatch; all layers of ``shape`` are alike."""
    plan = plan.on(hardware)
    core = _core(shape, plan, hardware)
    products = {
        part: _products(sizes, plan, hardware, fp8=plan.precision == "fp8" and part != "router")
        for part, sizes in _linears(shape, plan).items()
    }
    _, of_input, of_weight = map(sum, zip(*products.values(), strict=True))
    forward, backward = {}, {}
    for ahead, back in (
        _attention(shape, plan, hardware, products["attention"], core),
        _mlp(shape, plan, hardware, products["mlp"], products["router"]),
        _norms(shape, plan, hardware),
        _communication(shape, plan, hardware, core, of_input, of_weight),
    ):
        forward |= ahead
        backward |= back
    if plan.recompute == "offload":
        moved = layer_bytes(shape, plan) / HOST_LINK  # beside the layer's own computation, each way
        forward["offload"] = max(0.0, moved - sum(forward.values()))
        backward["offload"] = max(0.0, moved - sum(backward.values()))
    again = sum(forward.values()) if plan.recompute == "full" else 0.0
    if plan.recompute == "selective" and plan.attention != "flash":
        again = core[0]
    return LayerSeconds(forward, backward, of_weight, again)


def _tokens(shape: ModelShape, plan: Plan) -> int:
    return plan.micro_batch * shape.sequence // plan.cp


def _linears(shape: ModelShape, plan: Plan) -> dict[str, list[tuple[int, int, int, int]]]:
    """The linear layers of one layer as (m, n, k, groups): m tokens, n columns out, k in, for so many experts."""
    tokens, h, t = _tokens(shape, plan), shape.hidden, plan.tp
    gates, local = 2 if shape.activation == "swiglu" else 1, tokens // (t if plan.sequence_parallel else 1)
    groups = [(tokens, shape.mlp_width // t, shape.dense_mlps)]
    if shape.experts > 1:  # each gets its share of k copies of the tokens
        experts = shape.experts_on(plan.ep)
        busiest = ceil(local * shape.experts_per_token * plan.imbalance / experts)
        groups.append((busiest, shape.mlp_width, experts))
    return {
        "attention": [(tokens, out, into, 1) for out, into in shape.attention_linears(t)],
        "mlp": [size for m, f, n in groups if n for size in ((m, gates * f, h, n), (m, h, f, n))],
        "router": [(local, shape.experts, h, 1)] if shape.experts > 1 else [],
    }


Core = tuple[float, float]  # seconds of the attention core: forward, backward
# of a part's linear layers: forward, backward for the input and for the weight
Products = tuple[float, float, float]


def _products(
    sizes: list[tuple[int, int, int, int]], plan: Plan, hardware: Hardware, *, fp8: bool
) -> Products:
    e = plan.itemsize
    forward = sum(grouped_seconds(m, n, k, hardware, e, groups, fp8=fp8) for m, n, k, groups in sizes)
    of_input = sum(grouped_seconds(m, k, n, hardware, e, groups, fp8=fp8) for m, n, k, groups in sizes)
    added = 8 if plan.gradients == "fp32" and e < 4 else e  # an fp32 gradient is read, added to and written
    of_weight = sum(
        grouped_seconds(k, n, m, hardware, e, groups, fp8=fp8, gradient=added) for m, n, k, groups in sizes
    )
    if fp8:
        cast = CAST_BYTES[plan.scaling]
        forward += sum(memory_seconds(cast * batch * (m * k + k * n), hardware) for m, n, k, batch in sizes)
        of_input += sum(memory_seconds(cast * batch * m * n, hardware) for m, n, k, batch in sizes)
    return forward, of_input, of_weight


def _attention(
    shape: ModelShape, plan: Plan, hardware: Hardware, products: Products, core: Core
) -> tuple[dict, dict]:
    forward, *backward = products
    # q, k, v and the context change their layout: read and written once each way; rotary does so to q and k.
    own = shape.attention_width / plan.tp
    kv = own if shape.kv_rank else shape.kv_heads_on(plan.tp) * shape.head_size
    columns = (shape.norms - 1) * (2 * own + 2 * kv) + (0 if shape.learned_positions else own + kv)
    moved = memory_seconds(2 * plan.itemsize * _tokens(shape, plan) * columns, hardware)
    return {"attention": forward + core[0] + moved}, {"attention": sum(backward) + core[1] + moved}


def _core(shape: ModelShape, plan: Plan, hardware: Hardware) -> Core:
    """Scores, softmax, dropout, and the sum of the values: (forward, backward)."""
    # A part of the heads, and one of so many parts of the sequence
    heads, around = plan.micro_batch * shape.heads // (plan.tp * plan.head_ranks), plan.cp // plan.head_ranks
    ahead, back = core_seconds(shape, plan, hardware, heads, shape.sequence // around)
    times = 2 if shape.crosses else 1
    if plan.attention == "flash":
        times *= shape.attended  # tiles outside of the window are left out
    if not plan.zigzag and plan.attention == "flash":
        # Of n contiguous pieces the last meets n - 1/2, and the mean is n/2.
        times *= 2 - 1 / around
    return times * ahead, times * back


def core_seconds(shape: ModelShape, plan: Plan, hardware: Hardware, heads: int, rows: int) -> Core:
    """Of ``heads`` heads (of all sequences together), ``rows`` queries each and all keys: (forward, backward)."""
    at_least(1, heads=heads, rows=rows)
    s, e = shape.sequence, plan.itemsize
    if plan.attention == "flash":
        return flash_seconds(heads, rows, s, (shape.key_size + shape.value_size) // 2, hardware)
    scores = matmul_seconds(rows, s, shape.key_size, hardware, e, heads)
    values = matmul_seconds(rows, shape.value_size, s, hardware, e, heads)
    # Forward: softmax reads and writes; dropout too, and writes its mask. Backward: softmax reads two.
    square = heads * rows * s
    ahead = 2 * e + (2 * e + 1 if shape.dropout else 0)
    back = 3 * e + (2 * e + 1 if shape.dropout else 0)
    return (
        scores + values + memory_seconds(ahead * square, hardware),
        2 * (scores + values) + memory_seconds(back * square, hardware),
    )


def _mlp(
    shape: ModelShape, plan: Plan, hardware: Hardware, products: Products, router: Products
) -> tuple[dict, dict]:
    forward, *backward = map(add, products, router)
    gates = 2 if shape.activation == "swiglu" else 1
    one = plan.itemsize * _tokens(shape, plan)
    routed = shape.experts_per_token * plan.imbalance if shape.experts > 1 else shape.experts_per_token
    inner = one * (routed + shape.shared_experts) * shape.mlp_width / plan.tp
    ahead = memory_seconds((gates + 1) * inner, hardware)
    back = memory_seconds((2 * gates + 1) * inner, hardware)
    # Tokens are read and their k copies written in the order of the experts, and the other way round. Copies that come
    # from several ranks are put in order once more.
    k, dealt = shape.experts_per_token, 0.0
    if shape.experts > 1:
        passes = 2 * (k + 1) + (4 * k if plan.ep > 1 and shape.experts > plan.ep else 0)
        own = shape.hidden / (plan.tp if plan.sequence_parallel else 1)
        dealt = memory_seconds(passes * one * own * plan.imbalance, hardware)
    return {"mlp": forward + ahead + dealt}, {"mlp": sum(backward) + back + dealt}


def _norms(shape: ModelShape, plan: Plan, hardware: Hardware) -> tuple[dict, dict]:
    """Norms and as many residual additions, each with dropout: on every rank whole, unless sequence parallel."""
    elements = _tokens(shape, plan) * shape.hidden / (plan.tp if plan.sequence_parallel else 1)
    e, mask = plan.itemsize, 1 if shape.dropout else 0
    norm, residual, count = 2 * e, 3 * e + mask, shape.norms
    norm_back, residual_back = 5 * e, (2 * e + mask if shape.dropout else 0)
    return (
        {"norms": memory_seconds(count * (norm + residual) * elements, hardware)},
        {"norms": memory_seconds(count * (norm_back + residual_back) * elements, hardware)},
    )


def _communication(
    shape: ModelShape, plan: Plan, hardware: Hardware, core: Core, of_input: float, of_weight: float
) -> tuple[dict, dict]:
    tokens, h, t, e = _tokens(shape, plan), shape.hidden, plan.tp, plan.itemsize
    # An all-reduce, or an all-gather and a reduce-scatter, of each region in each direction; backward, beside the
    # products for the weights.
    tensor = shape.regions * collective_seconds("all-reduce", e * tokens * h, t, 1, hardware)
    ahead = {"tensor_parallel": tensor, "context_parallel": 0.0, "expert_parallel": 0.0}
    # Inputs that were kept in slices are gathered once more for their weights, beside the products for the inputs.
    again = shape.regions * collective_seconds("all-gather", e * tokens * h, t, 1, hardware)
    # Routed experts and their router are whole on all ranks, so their gradients are added up, too.
    whole = plan.gradient_itemsize * (shape.router_parameters + shape.routed_parameters(plan.ep))
    added = collective_seconds("all-reduce", whole, t, 1, hardware) if whole else 0.0
    waited = exposed(again, of_input, hardware) if plan.sequence_parallel else 0.0
    back = ahead | {"tensor_parallel": exposed(tensor, of_weight, hardware) + waited + added}
    if "tensor" in plan.overlap:
        ahead["tensor_parallel"] = tensor * (1 - hardware.overlap)
    own, kv = shape.heads // t * (shape.key_size + shape.value_size), shape.kv_columns(t)
    around, stride = plan.cp // plan.head_ranks, t * plan.head_ranks
    if plan.head_ranks > 1:
        # Queries, keys and values go to their heads and the context comes back; backward the same of the gradients.
        moved = e * tokens * (own + kv)
        exchanged = collective_seconds("all-to-all", moved, plan.head_ranks, t, hardware)
        # Both ends put the pieces in order: everything is read and written twice.
        ahead["context_parallel"] = back["context_parallel"] = exchanged + memory_seconds(4 * moved, hardware)
    if around > 1 and plan.context == "all-gather":
        # Before attention begins; backward gathers again, and the gradients go back by a reduce-scatter.
        gathered = collective_seconds("all-gather", e * tokens * kv * around, around, stride, hardware)
        ahead["context_parallel"] += gathered
        back["context_parallel"] += 2 * gathered
    elif around > 1:
        ring = group_link(around, stride, hardware).seconds((around - 1) * e * tokens * kv, around - 1)
        ahead["context_parallel"] += exposed(ring, core[0], hardware)
        back["context_parallel"] += exposed(2 * ring, core[1], hardware)
    if plan.ep > 1 and shape.experts > 1:
        # There, and back; backward, gradients go there, and come back.
        group = plan.ep, t * plan.cp, plan.node_limit, hardware
        sent = tokens * plan.imbalance / (t if plan.sequence_parallel else 1)
        sizes = (h + 4 * ceil(h / 128) if plan.dispatch == "fp8" else e * h), e * h
        both = sum(dispatch_seconds(sent, shape.experts_per_token, size, *group) for size in sizes)
        if "experts" in plan.overlap:
            both *= 1 - hardware.overlap  # it takes processors from the computation beside it
        ahead["expert_parallel"] = back["expert_parallel"] = both
    return ahead, back


# ---- the two ends of the model ----------------------------------------------------------------------------


def embedding_seconds(shape: ModelShape, plan: Plan, hardware: Hardware) -> float:
    """Look up, add up over the vocabulary's parts, dropout; backward, the gradients are added to their rows."""
    size = plan.itemsize * plan.micro_batch * shape.sequence // plan.cp * shape.hidden
    return memory_seconds(10 * size, hardware) + collective_seconds("all-reduce", size, plan.tp, 1, hardware)


def logits_seconds(shape: ModelShape, plan: Plan, hardware: Hardware) -> float:
    """Output and loss, forward and backward, of every token that is predicted."""
    tokens, h = plan.micro_batch * shape.sequence // plan.cp, shape.hidden
    part = -(-shape.vocab // plan.tp)
    sizes = (tokens, part, h), (tokens, h, part), (h, part, tokens)
    products = sum(matmul_seconds(*size, hardware, plan.itemsize) for size in sizes)
    gradient = collective_seconds("all-reduce", plan.itemsize * tokens * h, plan.tp, 1, hardware)
    slower = hardware.memory_efficiency / hardware.loss_efficiency
    loss = slower * memory_seconds(LOSS_BYTES[plan.loss] * tokens * part, hardware)
    one = products + loss + (1 - hardware.overlap) * gradient
    wide = (tokens, h // plan.tp, 2 * h), (tokens, 2 * h, h // plan.tp), (2 * h, h // plan.tp, tokens)
    joined = sum(matmul_seconds(*size, hardware, plan.itemsize) for size in wide) if shape.next_tokens else 0
    return one + shape.next_tokens * (one + joined)
