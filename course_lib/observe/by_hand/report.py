"""What a run prints: its losses beside those of one device, its ledgers beside their prediction."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from statistics import median

import torch

from course_lib.observe.by_hand.run import SEQUENCE, Run, new_model
from course_lib.observe.device import CPU, device_name
from course_lib.observe.ledgers.expert_load import busiest
from course_lib.observe.show.compare import Row, compare
from simulator.inputs.known_devices import find_device
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.ledgers.traffic import Traffic
from simulator.predict.memory import plan_memory
from simulator.predict.plan_traffic import plan_traffic
from simulator.predict.step import step_cost


def report(
    found: dict[str, tuple[Run, Run]],
    shape: ModelShape,
    plans: Mapping[str, Plan],
    ranks: int,
    batch: int,
    traffic: Callable[..., Traffic] | None,
) -> None:
    print(what(shape, ranks, batch))
    for name, (run, alone) in found.items():
        told = {"routed": run.routed} if run.routed else {}
        sent = (
            plan_traffic(shape, plans[name])
            if traffic is None
            else traffic(name, new_model(), ranks, batch, **told)
        )
        print(f"\n{name}")
        show(run, alone, shape, plans[name], sent, batch)
    if (crowd := sharers(ranks)) > 1:
        print(f"\n{crowd:.3g} ranks share a core or a device: a message also waits until its receiver runs.")


def what(shape: ModelShape, ranks: int, batch: int) -> str:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return (
        f"A GPT of {shape.parameters:,} parameters reads Python's documentation on {ranks} rank{'s' * (ranks > 1)} "
        f"({device}): {batch} texts of {SEQUENCE} bytes a step."
    )


def show(run: Run, alone: Run, shape: ModelShape, plan: Plan, sent: Traffic, batch: int) -> None:
    """A run's losses, how far they are from those of one device, and its ledgers beside the prediction."""
    shown = [0, len(run.losses) // 2, len(run.losses) - 1]
    print("loss " + ", ".join(f"{run.losses[i]:.4f} in step {i + 1}" for i in shown))
    print(
        f"largest difference to one device: loss {furthest(run.losses, alone.losses):.1e}, "
        f"gradient norm {furthest(run.norms, alone.norms):.1e}"
    )
    if alone.load:
        print(balance(alone, plan.ranks))
    memory = plan_memory(shape, plan)[0]
    computing, messages = predicted_seconds(shape, plan, sent, alone, batch)
    rows = [
        Row("a step", None, computing + messages, a_step(run), unit="s"),
        Row("messages on their way", None, messages, run.messages, unit="s"),
        Row("held at most", None, memory.total, run.peak, unit="B"),
    ]
    for kind, size in run.memory.as_dict().items():
        if size or getattr(memory, kind):
            rows.append(Row(f"  {kind.replace('_', ' ')}", None, getattr(memory, kind), size, unit="B"))
    for kind in dict.fromkeys(row.collective for row in (*run.traffic.rows, *sent.rows)):
        rows.append(Row(f"sent by {kind}", None, sent.of(kind).sent, run.traffic.of(kind).sent, unit="B"))
    print(compare(*rows))


def balance(run: Run, ranks: int) -> str:
    """In the last step: how far the busiest expert and rank of a layer are above the mean, and what is dropped."""
    wanted = sum(map(sum, run.load))
    expert, rank = busiest(run.load, ranks)
    dropped = 1 - sum(sum(row) for layer in run.routed for row in layer) / wanted
    return (
        f"tokens' copies in the last step: {expert:.2f} of the mean for the busiest expert of a layer, {rank:.2f} for "
        f"the busiest rank; {dropped:.1%} dropped"
    )


def a_step(run: Run) -> float:
    """Seconds: the median, without the first, in which much happens for the first time."""
    return median(run.seconds[1:])


def predicted_seconds(
    shape: ModelShape, plan: Plan, sent: Traffic, alone: Run, batch: int
) -> tuple[float, float]:
    """A step's seconds of computing, and of messages, which may travel beside it.

    How the parts of a step compare, the device's file knows; how fast this machine is, the run on one device says.
    """
    hardware = find_device(device_name() or CPU)
    one = step_cost(shape, Plan(micro_batch=batch, precision="fp32", attention="flash"), hardware)
    cost = step_cost(shape, plan, hardware)
    axes = "data", "tensor", "context", "expert"
    computing = cost.seconds - sum(cost.parts[f"{axis}_parallel"] for axis in axes)
    computing *= a_step(alone) / one.seconds * sharers(plan.ranks)
    return computing, hardware.node.seconds(sent.sent, sent.calls)


def sharers(ranks: int) -> float:
    """How many ranks compute on one device, or on one core."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    return max(1.0, here / (torch.cuda.device_count() or os.cpu_count() or 1))


def furthest(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
