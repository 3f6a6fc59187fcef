"""The check of 12.2: a plan that uses all GPUs, fits their memory and is fast; and its picture. It needs no ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any

from course_lib.grading.complaints import NOT_WRITTEN
from course_lib.grading.report import Report, check
from simulator.inputs.hardware import Hardware
from simulator.inputs.known_devices import find_device
from simulator.inputs.plan import Plan
from simulator.inputs.shape import MODELS, ModelShape
from simulator.plots import Picture, plot_plans
from simulator.predict.memory import plan_memory
from simulator.predict.step import check_fits, step_cost

# model, device, GPUs, sequences in a step
CASES = [
    ("gpt2-xl", "a100-40gb", 12, 96),
    ("llama-2-13b", "a100-40gb", 24, 96),
    ("gpt3-175b", "a100-80gb", 128, 256),
]
MAY_CHANGE = ("dp", "tp", "pp", "micro_batch", "microbatches", "sequence_parallel", "recompute", "zero")
DEFAULTS = Plan()


@check
def check_12_2(report: Report, choose_plan: Callable[..., Plan]) -> None:
    frugal: list[Callable[[], bool]] = []  # for each plan: whether it needs the least memory

    def least_memory(percent: float) -> float | None:
        """Asked at the end, of the plans for all models."""
        return percent if all(needs_least() for needs_least in frugal) else None

    for model, device, gpus, sequences in CASES:
        shape, hardware = MODELS[model], find_device(device)
        with report.case(f"{model} on {gpus} {device}, {sequences} sequences"):
            plan = choose_plan(shape, hardware, gpus, sequences)
            report.true(isinstance(plan, Plan), "it is a Plan", f"the answer is {plan!r}, and no Plan")
            _check_plan(report, plan, shape, hardware, gpus, sequences)
            seconds = step_cost(shape, plan, hardware).seconds
            best = fastest(model, device, gpus, sequences)
            frugal.append(partial(_needs_least, plan, shape, hardware, gpus, sequences))
            percent = round(100 * seconds / step_cost(shape, best, hardware).seconds, 1)
            report.at_most(
                "time of a step, in percent of the fastest plan's",
                percent,
                105,
                mistakes={
                    "when the plan that needs the least memory is chosen, and not the fastest that fits": partial(
                        least_memory, percent
                    ),
                    **_slow_ways(percent, plan, model, device, gpus, sequences),
                },
                given=(),
                task="at most 5 percent longer than that of the fastest such plan",
            )


def _check_plan(
    report: Report, plan: Plan, shape: ModelShape, hardware: Hardware, gpus: int, sequences: int
) -> None:
    others = [f.name for f in fields(Plan) if f.name not in (*MAY_CHANGE, "shard")]
    changed = [name for name in others if getattr(plan, name) != getattr(DEFAULTS, name)]
    fact = "nothing is changed but what may be"
    report.true(
        not changed, fact, f"the plan sets {', '.join(changed)}", task="All other fields keep their defaults"
    )
    report.equal("GPUs", plan.ranks, gpus, task="The plan uses all `gpus`")
    ways = {
        "when `microbatches` is the number for all data-parallel ranks together": plan.dp * sequences,
        "when a microbatch is taken to be one sequence": plan.micro_batch * sequences,
    }
    report.equal(
        "sequences in a step",
        plan.global_batch,
        sequences,
        mistakes=ways if plan.dp != plan.micro_batch else {},
        task="a step has `sequences` sequences",
    )
    problem = _refused(plan.check, shape)
    report.true(
        not problem, "the model can be cut like this", problem, task="The model can be cut as the plan says"
    )
    needed = max(rank.occupied for rank in plan_memory(shape, plan, hardware))
    room = f"the fullest GPU needs {needed / 1e9:.1f} GB and has {hardware.memory / 1e9:.0f} GB"
    last = plan_memory(shape, plan, hardware)[-1].occupied <= hardware.memory
    tensors = max(rank.occupied for rank in plan_memory(shape, plan)) <= hardware.memory
    ways = {
        "when only the last pipeline rank is looked at, which holds the least": "the last",
        "when only the tensors are counted, and not what `plan_memory` calls reserved": "the tensors",
        "when only the last pipeline rank is looked at, or only the tensors without `reserved`": "both",
    }
    report.true(
        needed <= hardware.memory,
        "it fits into the memory of every GPU",
        room,
        got={(True, False): "the last", (False, True): "the tensors", (True, True): "both"}.get(
            (last, tensors)
        ),
        mistakes=ways,
        task="It fits into the memory of every GPU",
    )


def _refused(function: Callable[..., Any], *arguments: Any) -> str:
    try:
        function(*arguments)
    except ValueError as error:
        return str(error)
    return ""


def plans(gpus: int, sequences: int, zero: int = 1, cut: bool = True) -> Iterator[Plan]:
    """Every plan that uses all GPUs, of those that the task names; tensor parallelism within 8 GPUs.

    ``cut``: with sequence parallelism wherever there is tensor parallelism.
    """
    for tp in (1, 2, 4, 8):
        for pp in range(1, gpus // tp + 1):
            dp, left = divmod(gpus, tp * pp)
            if left or sequences % dp:
                continue
            for micro_batch in (1, 2, 4, 8):
                microbatches, left = divmod(sequences // dp, micro_batch)
                if left:
                    continue
                for recompute in ("none", "selective", "full"):
                    yield Plan(
                        dp,
                        tp,
                        pp,
                        micro_batch=micro_batch,
                        microbatches=microbatches,
                        recompute=recompute,
                        sequence_parallel=cut and tp > 1,
                        zero=zero,
                    )


@cache
def fitting(
    model: str, device: str, gpus: int, sequences: int, zero: int = 1, cut: bool = True
) -> list[tuple[float, Plan]]:
    """The plans that fit, with the seconds of a step, the fastest first."""
    shape, hardware = MODELS[model], find_device(device)
    found = []
    for plan in plans(gpus, sequences, zero, cut):
        if not (_refused(plan.check, shape) or _refused(check_fits, shape, plan, hardware)):
            found.append((step_cost(shape, plan, hardware).seconds, plan))
    return sorted(found, key=lambda pair: pair[0])


def fastest(model: str, device: str, gpus: int, sequences: int) -> Plan:
    return fitting(model, device, gpus, sequences)[0][1]


def _slow_ways(
    percent: float, plan: Plan, model: str, device: str, gpus: int, sequences: int
) -> dict[str, float]:
    """Which one habit makes a plan as slow as the answer's, by its percent; or what the answer's plan shows of it."""
    shape, hardware = MODELS[model], find_device(device)
    found = fitting(model, device, gpus, sequences)
    best = found[0][0]
    tests: dict[str, Callable[[Plan], bool]] = {
        "when every plan recomputes whole layers": lambda plan: plan.recompute == "full",
        "when there is no pipeline": lambda plan: plan.pp == 1,
        "when there is no tensor parallelism": lambda plan: plan.tp == 1,
        "when the tensor-parallel ranks are always 8": lambda plan: plan.tp == 8,
    }
    ways = {}
    if plan.dp == gpus != found[0][1].dp:
        ways["when all GPUs are data-parallel ranks"] = percent
    if plan.dp == 1 != found[0][1].dp:
        ways["when there is no data parallelism"] = percent
    # A habit is looked for among plans that shard as the answer's plan does.
    cut = plan.sequence_parallel or plan.tp == 1
    alike = fitting(model, device, gpus, sequences, plan.zero, cut) if percent > 105 else found
    if percent > 105 and alike and round(100 * alike[0][0] / best, 1) == percent:
        # The fastest of those: what makes it slow is how it shards.
        return ways | {
            f"when every plan has zero={plan.zero}" + ", and no sequence parallelism" * (not cut): percent
        }
    for text, test in tests.items():
        first = next((seconds for seconds, plan in alike if test(plan)), None)
        if first is not None and round(100 * first / best, 1) == percent:
            ways[text] = percent
    without = [replace(plan, sequence_parallel=False) for _, plan in found[:1]]
    if without and round(100 * step_cost(shape, without[0], hardware).seconds / best, 1) == percent:
        ways["when sequence parallelism is left out"] = percent
    return ways


def _needs_least(plan: Plan, shape: ModelShape, hardware: Hardware, gpus: int, sequences: int) -> bool:
    """Whether the fullest GPU has no less under any plan that trades all the time that it can for memory."""

    def fullest(plan: Plan) -> float:
        return max(rank.occupied for rank in plan_memory(shape, plan, hardware))

    frugal = [
        replace(other, zero=3)
        for other in plans(gpus, sequences)
        if other.micro_batch == 1 and other.recompute == "full" and not _refused(other.check, shape)
    ]
    return fullest(plan) <= min(map(fullest, frugal))


def draw_plans(choose_plan: Callable[..., Plan]) -> Picture | None:
    """What a step's time goes into under the learner's own plans, and the memory of the fullest GPU."""
    drawn = {}
    for model, device, gpus, sequences in CASES:
        shape, hardware = MODELS[model], find_device(device)
        try:
            plan = choose_plan(shape, hardware, gpus, sequences)
        except NotImplementedError:
            print(f"{NOT_WRITTEN}: this cell draws your plans")
            return None
        memory = max(plan_memory(shape, plan, hardware), key=lambda rank: rank.occupied)
        name = f"{model}: tp {plan.tp}, pp {plan.pp}, dp {plan.dp}"
        drawn[name] = step_cost(shape, plan, hardware).parts, memory
    return plot_plans(drawn)
