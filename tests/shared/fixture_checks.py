"""The exercises of the small chapters that the grader is tested with; their notebooks import ``check`` from here."""

from types import SimpleNamespace
from typing import Any, NamedTuple

from course_lib.grading import material
from course_lib.grading.judge import Fact, check  # noqa: F401 - notebooks call it
from course_lib.grading.mistakes import Mistake


class Case(NamedTuple):
    name: str
    given: Any


def observe(answer, case):
    return {"result": answer(case.given)}


def exercise(number, solution, inputs, says, mistakes=None, observe=observe, **targets):
    """One that has no files. ``inputs``: the name of each case -> what the answer gets."""
    listed = [Mistake(when, lambda made=made: made) for when, made in (mistakes or {}).items()]
    given = SimpleNamespace(exercise=number, solution=solution, observe=observe, seed=None, known={})
    given.facts = {"result": Fact(says), **targets}
    given.cases, given.mistakes = lambda seed: [Case(*item) for item in inputs.items()], listed
    material._read[number] = given


def double(x):
    return 2 * x


def running_sums(values):
    return [sum(values[: n + 1]) for n in range(len(values))]


class Counter:
    step = 1

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += self.step
        return self.calls


class Stuck(Counter):
    def __call__(self):
        return 1


def call(counter, case):
    count = counter()
    return {"result": [count() for _ in range(case.given)][-1]}


def half_observed(half, case):
    return {"result": half(case.given), "calls": getattr(half, "calls", 1)}


exercise("98.1", double, {"3": 3, "-1": -1}, "twice", {"it is squared": lambda x: x * x})
exercise("98.2", running_sums, {"no values": [], "four values": [1, 2, 3, 4]}, "the sums")
exercise(
    "98.3", Counter, {"first call": 1, "second call": 2}, "the count", {"the count is not kept": Stuck}, call
)
for number in range(1, 31):  # one more doubling for each attack
    exercise(f"97.{number}", double, {"3": 3, "-1": -1}, "twice")
exercise(
    "96.1",
    lambda x: x / 2,
    {"6": 6},
    "half",
    {"it is doubled": double},
    half_observed,
    calls=Fact("calls", most=1),
)
