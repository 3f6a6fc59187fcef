"""12.2: a plan that uses all GPUs, fits into their memory and is fast."""

from dataclasses import fields

from course_lib.grading.complaints import NOT_WRITTEN
from course_lib.grading.judge import Fact, record
from simulator.inputs.hardware import Hardware
from simulator.inputs.known_devices import find_device
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.plots import Picture, plot_plans
from simulator.predict.memory import plan_memory
from simulator.predict.step import step_cost

MAY_BE_SET = ("dp", "tp", "pp", "micro_batch", "microbatches", "sequence_parallel", "recompute", "zero")
FIXED = [field.name for field in fields(Plan) if field.name not in (*MAY_BE_SET, "shard")]
FACTS = {
    "kind": Fact("the answer", "It returns a `Plan` for training the model `shape`"),
    "fixed": Fact("other fields", "All other fields keep their defaults."),
    "gpus": Fact("GPUs", "The plan uses all `gpus`"),
    "sequences": Fact("sequences", "a step has `sequences` sequences"),
    "cut": Fact("the cut", "The model can be cut as the plan says"),
    "fits": Fact("memory", "It fits into the memory of every GPU"),
    "seconds": Fact(
        "time of a step, in percent of the fastest plan's", "the step takes at most…", most=105, percent=True
    ),
}


# sequences: in a step
class Case(record("model device gpus sequences")):
    @property
    def name(self) -> str:
        return f"{self.model} on {self.gpus} {self.device}, {self.sequences} sequences"

    @property
    def given(self) -> tuple[ModelShape, Hardware, int, int]:
        return MODELS[self.model], find_device(self.device), self.gpus, self.sequences


CASES = [
    Case("gpt2-xl", "a100-40gb", 12, 96),
    Case("gpt2-xl", "a100-40gb", 22, 100),
    Case("llama-2-13b", "a100-40gb", 24, 96),
    Case("gpt3-175b", "a100-80gb", 128, 256),
]


def observe(choose_plan, case: Case) -> dict:
    shape, hardware, _, sequences = case.given
    plan = choose_plan(*case.given)
    if not isinstance(plan, Plan):
        return {"kind": f"the answer is {plan!r}, and no Plan"}
    changed = [name for name in FIXED if getattr(plan, name) != getattr(Plan(), name)]
    fixed = f"the plan sets {', '.join(changed)}" if changed else ""
    found = {"fixed": fixed, "gpus": plan.ranks, "trace": str(plan)}
    product = f"dp {plan.dp} · micro_batch {plan.micro_batch} · microbatches {plan.microbatches}"
    said = f"a step has {plan.global_batch:,} sequences ({product}), expected {sequences}"
    found["sequences"] = "" if plan.global_batch == sequences else said
    try:
        plan.check(shape)
        needed = max(rank.occupied for rank in plan_memory(shape, plan, hardware))
        seconds = step_cost(shape, plan, hardware).seconds
    except ValueError as error:
        return found | {"cut": str(error)}
    room = f"the fullest GPU needs {needed / 1e9:.1f} GB and has {hardware.memory / 1e9:.0f} GB"
    found["fits"] = room if needed > hardware.memory else ""
    return found | {"seconds": seconds}


def draw_plans(choose_plan) -> Picture | None:
    """What a step's time goes into under the learner's own plans, and the memory of the fullest GPU."""
    drawn = {}
    for case in CASES:
        shape, hardware, *_ = case.given
        try:
            plan = choose_plan(*case.given)
        except NotImplementedError:
            print(f"{NOT_WRITTEN}: this cell draws your plans")
            return None
        memory = max(plan_memory(shape, plan, hardware), key=lambda rank: rank.occupied)
        name = f"{case.model}: tp {plan.tp}, pp {plan.pp}, dp {plan.dp}"
        drawn[name] = step_cost(shape, plan, hardware).parts, memory
    return plot_plans(drawn)
