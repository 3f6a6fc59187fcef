"""03.5: the largest batch that fits, from two calls of what may be a measurement."""

import random
from dataclasses import replace

from course_lib.grading.judge import Fact, record
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.predict.memory import plan_memory

FACTS = {
    "batch": Fact("the largest batch that fits", "Return the largest batch whose step fits into `capacity`…"),
    "calls": Fact("calls of `bytes_of`", "at most 2 calls of `bytes_of`.", most=2),
}

# total: bytes at the peak of a step, by the batch
Case = record("name total capacity")


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    states, each, fits = draw.randrange(10**8, 10**10), draw.randrange(10**6, 10**8), draw.randrange(3, 90)

    def line(batch: int) -> int:
        if not isinstance(batch, int) or batch < 1:
            raise ValueError(f"bytes_of was called with {batch!r}; a batch is a whole number of at least 1.")
        return states + batch * each

    return [
        of_model("gpt2-xl", Plan(), 80),
        of_model("gpt2", Plan(), 24),
        of_model("gpt2-xl", Plan(recompute="full"), 80),
        of_model("bert-large", Plan(precision="fp32", attention="flash"), 16),
        of_model("gpt2-xl", Plan(), 24),  # not even one
        Case("exactly full", line, line(fits)),
        Case("one byte too few for one more", line, line(fits) - 1),
        Case("exactly one sequence", line, line(1)),
        Case("one byte too few for one sequence", line, line(1) - 1),
        Case("less than the model states", line, states // 3),
    ]


def of_model(model: str, plan: Plan, gigabytes: int) -> Case:
    def total(batch: int) -> int:
        return round(plan_memory(MODELS[model], replace(plan, micro_batch=batch))[0].total)

    name = f"{model} ({plan.precision}, recompute {plan.recompute}) on {gigabytes} GB"
    return Case(name, total, gigabytes * 10**9)


def observe(largest_batch, case: Case) -> dict:
    asked = []

    def bytes_of(batch: int) -> int:
        asked.append(batch)
        return case.total(batch)

    return {"batch": largest_batch(bytes_of, case.capacity), "calls": len(asked)}
