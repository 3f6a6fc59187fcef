"""The memory calculator computes in the page what Python computes: every part, formula, verdict and change."""

import itertools
import random
from math import isclose

import pytest

from simulator.explorer.calculator import CHOICES, MemoryQuestion, calculate, known

COUNTS = {"dp": (1, 2, 3, 8), "tp": (1, 2, 8), "pp": (1, 2, 3, 4, 8), "cp": (1, 1, 2)}
OTHER = {
    "sequence": (None, None, 1024, 4096),
    "micro_batch": (1, 2, 5),
    "microbatches": (None, None, 3, 8, 13, 40),
}
WRONG = [
    {"model": "gpt-5"},
    {"gpu": "abacus"},
    {"zero": 4},
    {"attention": "fast"},
    {"sequence_parallel": "maybe"},
    {"dp": 0},
    {"tp": 2.5},
    {"tp": 3},
    {"tp": "two"},
    {"pp": 64},
    {"sequence": 0.5},
    {"micro_batch": None},
    {"microbatches": 0},
    {"cp": 3},
    {"gpu": "v100", "precision": "fp8"},
]
PROGRAM = """
const told = questions.asked.map((question) => {
  try {
    return modules.calculate.calculate(question, questions.known);
  } catch (error) { return { error: error.message }; }
});
console.log(JSON.stringify(told));
"""


def drawn(count):
    """Questions at random that can be asked: each schedule, model and device many times."""
    draw, found = random.Random(3), []
    while len(found) < count:
        values = {name: draw.choice(accepted) for name, accepted in (CHOICES | COUNTS | OTHER).items()}
        try:
            found.append(MemoryQuestion(**values))
        except ValueError:
            continue
    return found


@pytest.fixture(scope="module")
def page(run_in_node):
    """``page(questions)``: what the page says to each."""
    return lambda asked: run_in_node(PROGRAM, {"asked": asked, "known": known()}, "calculator_main")


def test_every_number_and_every_sentence_is_the_same(page):
    questions = drawn(160)
    seen = {(question.schedule, question.pp > 1) for question in questions}
    assert seen == set(itertools.product(CHOICES["schedule"], (False, True)))
    told = page([question.as_dict() for question in questions])
    for question, found in zip(questions, told, strict=True):
        right = calculate(question)
        for mine, theirs in zip(found["ranks"], right["ranks"], strict=True):
            assert list(mine) == list(theirs)
            for name, part in theirs.items():
                assert isclose(mine[name]["bytes"], part["bytes"], rel_tol=1e-12), (question, name)
                for (words, size), (right_words, right_size) in zip(
                    mine[name]["terms"], part["terms"], strict=True
                ):
                    assert words == right_words, question
                    assert isclose(size, right_size, rel_tol=1e-9, abs_tol=1e-3), (question, name, words)
        del found["ranks"], right["ranks"]
        assert found == right, question
    assert {found["fits"] for found in told} == {True, False}


def test_what_is_wrong_is_refused_in_the_same_sentence(page):
    for wrong, told in zip(WRONG, page([MemoryQuestion().as_dict() | wrong for wrong in WRONG]), strict=True):
        with pytest.raises(ValueError) as error:
            MemoryQuestion.of(MemoryQuestion().as_dict() | wrong)
        assert told == {"error": str(error.value)}, wrong
