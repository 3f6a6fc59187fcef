"""All plans for a model on so many devices, the fastest that fit first: every one is priced, none is guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from typing import Any

from simulator.any_module.price import Model, check, memory_of, step_of
from simulator.inputs.checks import at_least, refuse
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import RECOMPUTE, Plan
from simulator.inputs.shape import ModelShape
from simulator.inputs.traced import Traces
from simulator.predict.step import StepCost

MOST_CHUNKS = 8
LEAST_TOKENS = 2048  # of a sequence on one rank, where it is cut over a context-parallel axis
MORE = 2  # what would help: so many times the memory, or the speed of a link
# Fields of a plan that are right or wrong only beside others.
BY_AXES = (
    "dp",
    "tp",
    "pp",
    "cp",
    "ep",
    "ulysses",
    "zero",
    "shard",
    "chunks",
    "schedule",
    "micro_batch",
    "offload",
    "prefetch",
)
COMMUNICATION = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline", "data_parallel")


@dataclass(frozen=True)
class Found:
    """A plan that was priced.

    Args:
        peak: bytes of the fullest device.
    """

    plan: Plan
    cost: StepCost
    peak: float

    @property
    def seconds(self) -> float:
        return self.cost.seconds


@dataclass(frozen=True)
class Search:
    """What a search has found.

    Args:
        best: the plans that fit, the fastest first.
        tried: how many plans there are; ``fitting`` of them fit.
        with_more_memory: the fastest plan if devices had twice their memory; None: one of ``best`` is.
        least: bytes of the fullest device under the plan that needs least.
    """

    best: list[Found]
    tried: int
    fitting: int
    with_more_memory: Found | None
    least: float


def search_plans(
    model: Model,
    hardware: Hardware,
    gpus: int,
    global_batch: int,
    *,
    fixed: Mapping[str, Any] | None = None,
    keep: int = 10,
    each: Callable[[Iterator[Plan]], Iterator[Plan]] = iter,
) -> Search:
    """Price every plan that uses all devices, memory first.

    The axes dp, tp (inside a node), pp, cp (of long sequences) and ep, the stages of ZeRO, 1F1B and its interleaved
    form, recomputation and the microbatch (powers of 2) are varied; what else a plan has stays as it is by default.

    Args:
        model: a shape, or a module's traces, of which dp, tp (where it says how it is cut), pp (where its units are
            alike), ZeRO, recomputation and the microbatch are varied.
        gpus: devices, of which all are used.
        global_batch: sequences in a step.
        fixed: fields of ``Plan`` and the values that they must have; another schedule is looked at only here.
        keep: how many plans are returned.
        each: wraps the plans as they are priced, such as a progress bar.

    Raises:
        ValueError: no plan uses all devices for this batch.
    """
    at_least(1, gpus=gpus, global_batch=global_batch, keep=keep)
    found: list[Found] = []
    larger, least, tried, fitting = None, float("inf"), 0, 0
    for plan in each(plans(model, hardware, gpus, global_batch, fixed or {})):
        tried += 1
        peak = max(rank.occupied for rank in memory_of(model, plan, hardware))
        least = min(least, peak)
        if peak > MORE * hardware.memory:
            continue
        one = Found(plan, step_of(model, plan, hardware), peak)
        if peak > hardware.memory:
            larger = min((larger, one) if larger else (one,), key=_order)
            continue
        fitting += 1
        found = sorted([*found, one], key=_order)[:keep]
    if not tried:
        raise ValueError(
            f"no plan uses {gpus} devices for a global batch of {global_batch}"
            + (f" with {', '.join(f'{name} {value}' for name, value in fixed.items())}" if fixed else "")
        )
    helps = larger is not None and (not found or larger.seconds < found[0].seconds)
    return Search(found, tried, fitting, larger if helps else None, least)


def _order(found: Found) -> tuple:
    """The faster; of equally fast ones that with less memory, then that with fewer axes."""
    plan = found.plan
    return found.seconds, found.peak, plan.tp * plan.pp * plan.cp, plan.zero


def plans(
    model: Model, hardware: Hardware, gpus: int, global_batch: int, fixed: Mapping[str, Any]
) -> Iterator[Plan]:
    """Every plan that ``search_plans`` looks at."""
    for name in fixed:
        if name in ("microbatches", "stage_layers"):
            refuse(name, "left out: it follows from the batch and the stages", fixed[name])
    # What is fixed and no axis decides is checked once, so that its own sentence says what is wrong
    own: dict[str, Any] = {name: value for name, value in fixed.items() if name not in BY_AXES}
    Plan(**own).on(hardware)
    if isinstance(model, Traces):
        fixed = {"precision": model.first.precision, **fixed}
        own = {name: fixed[name] for name in (*own, "precision", "tp", "cp") if name in fixed}
        check(model, Plan(**own, micro_batch=model.samples))
    choose = _Choices(fixed)
    near = [n for n in _divisors(gpus) if n <= hardware.node_size and model.heads % n == 0]
    long = [n for n in _powers(gpus) if model.sequence // n >= LEAST_TOKENS] or [1]
    for tp, cp in product(choose("tp", near), choose("cp", long)):
        for pp in choose("pp", [n for n in _divisors(gpus) if n <= model.layers]):
            dp, rest = divmod(gpus, tp * cp * pp)
            if rest or not dp or global_batch % dp or dp not in choose("dp", [dp]):
                continue
            yield from _with_axes(
                model, hardware, global_batch, choose, {"dp": dp, "tp": tp, "pp": pp, "cp": cp}
            )


def _with_axes(
    model: Model, hardware: Hardware, global_batch: int, choose: _Choices, axes: dict[str, int]
) -> Iterator[Plan]:
    """Everything but the axes; what a plan or the model refuses is left out."""
    dp, pp = axes["dp"], axes["pp"]
    named = "schedule" in choose.fixed
    chunks = [n for n in range(1, MOST_CHUNKS + 1) if n == 1 or (pp > 1 and model.layers % (pp * n) == 0)]
    ways = choose("recompute", [way for way in RECOMPUTE if way != "offload"])  # tried where asked for
    for ep, micro_batch, zero, v, recompute in product(
        choose("ep", _divisors(gcd(dp, model.experts))),
        choose("micro_batch", _powers(global_batch // dp)),
        choose("zero", [0, 1, 2, 3] if dp * axes["cp"] > 1 else [0]),
        [choose.fixed.get("chunks")] if named else choose("chunks", chunks),
        ways,
    ):
        microbatches, rest = divmod(global_batch // dp, micro_batch)
        if rest or (not named and (v or 1) > 1 and microbatches % pp):
            continue  # an uneven interleaving is never the fastest
        free: dict[str, Any] = {
            "ep": ep,
            "micro_batch": micro_batch,
            "zero": zero,
            "recompute": recompute,
            "chunks": v,
        }
        usual: dict[str, Any] = {
            "microbatches": microbatches,
            "sequence_parallel": axes["tp"] > 1 and isinstance(model, ModelShape),
        }
        try:
            fields: dict[str, Any] = usual | choose.fixed | axes | free
            plan = Plan(**fields).on(hardware)
            check(model, plan)
        except ValueError:
            continue
        if recompute == "selective" and plan.attention == "flash" and len(ways) > 1:
            continue  # it has nothing to recompute there
        yield plan


class _Choices:
    """The values of a field: the one that is fixed, or all of them."""

    def __init__(self, fixed: Mapping[str, Any]) -> None:
        self.fixed = dict(fixed)

    def __call__(self, name: str, values: Any) -> list[Any]:
        return [self.fixed[name]] if name in self.fixed else list(values)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _powers(number: int) -> list[int]:
    """Powers of 2 that divide a number."""
    return [2**n for n in range(number.bit_length()) if number % 2**n == 0]


# ---- what a search says ------------------------------------------------------------------------------------


def why_slower(found: Found, best: Found) -> str:
    """The part of a step that a plan spends more on than the best one, in words."""
    more = {name: seconds - best.cost.parts[name] for name, seconds in found.cost.parts.items()}
    name = max(more, key=more.__getitem__)
    return f"{more[name] / best.seconds:+.1%} of {name.replace('_', ' ')}"


def what_binds(found: Found) -> str:
    """What beside arithmetic takes most of a step: messages, the bubble, or recomputation for lack of memory."""
    parts = found.cost.parts
    kinds = {name.replace("_", " "): parts[name] for name in (*COMMUNICATION, "bubble")}
    kinds["recomputation, for lack of memory"] = parts["recomputation"]
    name = max(kinds, key=kinds.__getitem__)
    return f"{name} ({kinds[name] / found.seconds:.1%} of the step)"


def what_helps(model: Model, hardware: Hardware, search: Search) -> dict[str, float]:
    """How many times as fast the best plan's step would be with twice of one thing.

    The plan stays, but for the memory: with more of it, another plan may be the best.
    """
    best = search.best[0]
    faster = {
        "memory": search.with_more_memory or best,
        "arithmetic": {name: MORE * getattr(hardware, name) for name in ("peak_flops", "fp8_flops")},
        "links inside a node": {"node": _wider(hardware.node)},
        "network between nodes": {"network": _wider(hardware.network)},
    }
    return {
        name: best.seconds
        / (
            change.seconds
            if isinstance(change, Found)
            else step_of(model, best.plan, replace(hardware, **change)).seconds
        )
        for name, change in faster.items()
    }


def _wider(link: Any) -> Any:
    return replace(link, bandwidth=MORE * link.bandwidth)
