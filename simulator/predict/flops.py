"""Floating-point operations of a training step, by component.

Model FLOPs are what the mathematics needs; hardware FLOPs add what recomputation repeats (arXiv:2205.05198,
section 5.3 and appendix A). One multiplication and one addition count two; attention counts the whole s x s
square, as the papers do, though a causal mask leaves half of it; of a window, as large a part as of that half.
"""

from __future__ import annotations

from simulator.inputs.checks import at_least
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape


def forward_flops(shape: ModelShape, batch: int) -> dict[str, float]:
    """Of one forward pass over ``batch`` sequences: projections, attention core, MLP, logits."""
    at_least(1, batch=batch)
    tokens, h = batch * shape.sequence, shape.hidden
    matrices = 3 if shape.activation == "swiglu" else 2
    projections = core = mlp = 0
    for kind, layers in shape.kinds().items():
        projections += layers * sum(out * into for out, into in kind.attention_linears())
        core += layers * (kind.norms - 1) * kind.heads * (kind.key_size + kind.value_size) * kind.attended
        mlp += layers * (kind.visits * matrices * h * kind.mlp_width + kind.router_parameters)
    projections += 2 * shape.next_tokens * h * h
    return {
        "projections": 2 * tokens * projections,
        "core": 2 * tokens * shape.sequence * core,
        "mlp": 2 * tokens * mlp,
        "logits": 2 * tokens * h * shape.vocab * (1 + shape.next_tokens),
    }


def model_flops(shape: ModelShape, batch: int) -> dict[str, float]:
    """Forward and backward, which computes two products for each of the forward's.

    For a GPT their sum is 72 B l s h^2 (1 + s/(6h) + V/(12hl)).
    """
    return {name: 3 * flops for name, flops in forward_flops(shape, batch).items()}


def hardware_flops(shape: ModelShape, plan: Plan, batch: int) -> dict[str, float]:
    """Model FLOPs and ``recomputation``: every layer's forward once more (never the logits), or the core.

    For selective recomputation the paper counts the core twice, forward and backward: 72 B l s h^2 (1 + s/(3h) +
    V/(12hl)). Only a third of that is repeated; we count as it does, so that HFU compares.
    """
    forward = forward_flops(shape, batch)
    again = 0.0
    if plan.recompute == "full":
        again = sum(forward.values()) - forward["logits"]
    elif plan.recompute == "selective" and plan.attention != "flash":
        again = 3 * forward["core"]
    return model_flops(shape, batch) | {"recomputation": again}
