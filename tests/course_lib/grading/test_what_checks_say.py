"""What checks say, and what becomes of an answer that raises, prints or returns nothing."""

import linecache
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from fixture_checks import check, exercise

from course_lib.grading import material
from course_lib.grading.compare import describe, difference, in_number, inequality, same, settle
from course_lib.grading.complaints import explain
from course_lib.grading.failed import CheckFailed, TargetMissed
from course_lib.grading.judge import Fact
from course_lib.grading.mistakes import Mistake
from course_lib.runtime.errors import RankError

FACTS = {"result": Fact("the result", tolerance=1e-5), "calls": Fact("calls", most=1)}


def observe(double, case):
    return {"result": double(case.given), "calls": getattr(double, "calls", 1)}


def twice(x):
    return 2 * x


@pytest.fixture(autouse=True)
def doubling():
    given = {f"{n} values": torch.arange(1.0, n + 1) for n in (2, 3)}
    exercise(
        "99.1", twice, given, "the result", {"it is squared": lambda x: x * x}, observe, calls=FACTS["calls"]
    )
    material._read["99.1"].facts = FACTS


def failure(answer):
    with pytest.raises(CheckFailed) as caught:
        check("99.1", answer)
    return caught.value


def test_a_notebook_shows_a_cross_and_the_command_for_a_hint():
    error = failure(lambda x: x**2)
    assert error.lines[0] == "2 values: the result differs in 1 of 2 places"
    shown = error._render_traceback_()
    assert shown[0] == "  ✗ 2 values: the result differs in 1 of 2 places"
    assert shown[1] == "    (first difference at [0]: got 1, expected 2)"
    assert shown[-1] == "    For a hint: course hint 99.1"
    assert str(error).splitlines()[-1] == "  For a hint: course hint 99.1"


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            "rank 0 raised RuntimeError: [rank0]:[F1123 23:45:33.697309228 ProcessGroupGloo.cpp:1537] Check failed: "
            "outputShape[0] * worldSize == inputShape[0] (8 vs. 12).",
            "rank 0 raised RuntimeError: the outputs of all ranks have 8 rows together, and the input has 12",
        ),
        (
            "rank 0 raised RuntimeError: Check failed: inputShape[0] * worldSize == outputShape[0] (2 vs. 4)",
            "rank 0 raised RuntimeError: the inputs of all ranks have 2 rows together, and the output has 4",
        ),
        (
            "rank 2 raised RuntimeError: ProcessGroupGloo::allgather: invalid tensor size at index 0 "
            "(expected (4), got (6))",
            "rank 2 raised RuntimeError: allgather: a tensor has the shape (6), and (4) is wanted",
        ),
    ],
)
def test_what_gloo_logs_becomes_a_sentence(raised, said):
    assert explain(RankError(raised, 0)) == [said]


def test_a_line_of_a_check_is_none_of_the_answer():
    frames = """rank 0 raised RuntimeError: no

  File "<13.1>", line 4, in f
    g(x)
  File "/course/exercises/checks/ex_13_1.py", line 85, in on_rank
    out.backward()"""
    assert explain(RankError(frames, 0)) == [
        "rank 0 raised RuntimeError: no",
        "in line 4 of your answer: `g(x)`",
    ]


def test_a_tensor_that_is_asked_for_its_truth_is_explained():
    means = explain(RuntimeError("Boolean value of Tensor with more than one value is ambiguous"))[-1]
    assert "`is` asks whether two are one tensor" in means


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("norm = dist.all_reduce(x)", "`dist.all_reduce` returns None: it writes into its tensor."),
        ("work = dist.all_reduce(x, async_op=True)", "in line 2 of your answer: `None.sqrt()`"),
        ("x.grad = None", "in line 2 of your answer: `None.sqrt()`"),
    ],
)
def test_none_of_a_collective_is_explained(line, said):
    linecache.cache["<answer>"] = 0, None, [f"{line}\n", "None.sqrt()\n"], "<answer>"
    frame = 'Traceback:\n  File "<answer>", line 2, in answer\n    None.sqrt()\n'
    raised = "rank 0 raised AttributeError: 'NoneType' object has no attribute 'sqrt'\n\n"
    assert explain(RankError(raised + frame, 0))[-1] == said
    assert explain(RankError(raised + frame.replace("None.sqrt", "x.grad.sqrt"), 0))[-1] == (
        said if "async" not in line and "dist" in line else "The `.grad` of a frozen parameter is None."
    )


def test_tuples_are_shown_as_tuples_whatever_the_answer_used():
    assert repr(settle([[[0, 1]], ()], [[(0, 2)], []])) == "[[(0, 1)], []]"


@pytest.mark.parametrize(
    ("answer", "fact", "detail"),
    [
        (lambda x: None, "2 values: the result is None: nothing was returned", ""),
        (lambda x: 4 * x, "2 values: the result is 2.000 times what is expected", "got 4, expected 2"),
        (lambda x: 0 * x, "2 values: the result is zero everywhere", ""),
        (lambda x: x[:1], "2 values: the result has shape (1,), expected (2,)", ""),
        (lambda x: "two", "2 values: the result is 'two', not numbers", ""),
        (lambda x: x / 0, "2 values: the result holds 2 values that are not finite", ""),
        (lambda x, y: x, "2 values: TypeError", ""),
        (lambda x: x @ torch.ones(5, 5), "2 values: RuntimeError", ""),
        (
            lambda x: missing(x),  # noqa: F821
            "2 values: NameError: name 'missing' is not defined",
            "`missing` is defined neither in the answer nor in the course's cells above it.",
        ),
    ],
)
def test_a_wrong_answer_is_told_by_facts(answer, fact, detail):
    error = failure(answer)
    assert error.lines[0].startswith(fact)
    assert detail in str(error)
    assert "This is what comes out" not in str(error)


def test_the_line_of_the_answer_is_named():
    source = "def answer(x):\n    y = []\n    return y[3]\n"
    namespace = {"__name__": "__main__"}
    exec(compile(source, "<no file>", "exec"), namespace)
    lines = failure(namespace["answer"]).lines
    assert lines[:2] == ["2 values: IndexError: list index out of range", "  in line 3 of your answer"]


class Outside(BaseException):
    """What no `except Exception` catches."""


@pytest.mark.parametrize("kind", [SystemExit, Outside])
def test_an_answer_that_leaves_is_a_failure(kind):
    def answer(x):
        raise kind("TargetMissed")

    error = failure(answer)
    assert kind.__name__ in str(error)
    assert not isinstance(error, TargetMissed)


def test_every_case_is_tried_and_the_first_three_failures_are_told(capsys):
    inputs = {f"x = {n}": n for n in (1, 2, 3, 5, 7, 11)}
    exercise("99.1", twice, inputs, "the result", {"it is squared": lambda x: x * x})
    assert failure(lambda x: x * x).lines == [
        "x = 1: the result is 1, expected 2",
        "  This is what comes out when it is squared.",
        "x = 3: the result is 9, expected 6",
        "x = 5: the result is 25, expected 10",
        "… and 2 more cases fail",
    ]
    assert "  ✓ x = 2" in capsys.readouterr().out


def test_a_mistake_that_a_right_case_rules_out_is_not_named():
    """3 + 2 is 5, but whoever adds 2 has no 2 for 1."""
    exercise("99.1", twice, {"1": 1, "3": 3}, "the result", {"2 is added": lambda x: x + 2})
    assert "This is what comes out" not in str(failure(lambda x: 5 if x == 3 else 2 * x))


def test_the_sentence_that_a_named_mistake_violates_takes_the_place_of_the_general_one():
    exercise("99.1", twice, {"3": 3}, "the result")
    given = material._read["99.1"]
    given.facts = {"result": Fact("the result", task="Twice x.")}
    given.mistakes = [Mistake("it is squared", lambda: lambda x: x * x, "Do not square.")]
    for answer, sentence in ((lambda x: x * x, "Do not square."), (lambda x: 7, "Twice x.")):
        assert failure(answer).lines[-1] == f'  The task: "{sentence}"'


@pytest.mark.parametrize(
    ("fact", "verb"),
    [
        ("the positions", "differ"),
        ("keys and values of every layer", "differ"),
        ("all gradients, in one vector,", "differ"),
        ("the norm of all gradients", "differs"),
        ("the loss", "differs"),
        ("what it returns", "differs"),
    ],
)
def test_the_verb_agrees_with_the_fact(fact, verb):
    assert in_number(fact, "differs in 1 of 2 places") == f"{verb} in 1 of 2 places"
    assert in_number("the logits", "is 3, expected 4") == "are 3, expected 4"


def test_two_mistakes_are_told_apart_by_another_case():
    mistakes = {"it is squared": lambda x: x * x, "it is tripled": lambda x: 3 * x}
    exercise("99.1", twice, {"3": 3, "5": 5}, "the result", mistakes)
    assert failure(lambda x: 3 * x).lines[1] == "  This is what comes out when it is tripled."


def test_a_mistake_that_cannot_be_made_here_explains_nothing():
    exercise("99.1", twice, {"3": 3}, "the result", {"it is divided": lambda x: x / 0})
    assert failure(lambda x: None).lines == ["3: the result is None: nothing was returned"]


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: Fraction(2 * x),
        lambda x: np.int64(2 * x),
        lambda x: torch.tensor(2 * x),
        lambda x: 2.0 * x,
        lambda x: Decimal(2 * x),
    ],
)
def test_a_number_is_right_in_any_style(answer):
    exercise("99.1", twice, {"3": 3}, "the result")
    check("99.1", answer)


@pytest.mark.parametrize(
    "answer",
    [(0, 1, 2), range(3), np.arange(3), torch.arange(3), map(int, "012"), {0: 1, 1: 1, 2: 1}.keys()],
)
def test_a_list_is_right_in_any_style(answer):
    exercise(
        "99.1", [0, 1, 2], {"all": None}, "the numbers", observe=lambda numbers, case: {"result": numbers}
    )
    check("99.1", answer)


def test_prints_of_the_answer_are_no_facts_and_are_shown_on_failure(capsys):
    def answer(x, factor=2):
        print("looking at", len(x))
        return factor * x

    check("99.1", answer)
    assert "looking" not in capsys.readouterr().out
    failure(lambda x: answer(x, 3))
    assert "  your answer printed:\n    looking at 2" in capsys.readouterr().out


def test_a_flood_of_prints_ends_the_check():
    def answer(x):
        for _ in range(1000):
            print("x" * 10_000)
        return 2 * x

    assert "printed more than 1,000,000 characters" in str(failure(answer))


def test_same_is_exact_and_knows_types():
    assert same({"a": [torch.ones(2), 1]}, {"a": [torch.ones(2), 1]})
    assert same((1, 2), [1, 2])
    assert not same(torch.ones(2), torch.tensor([1.0, 2.0]))
    assert not same(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert not same(torch.ones(2), torch.ones(1, 2))
    assert not same([1], [1, 2])
    assert not same(np.ones(2), [1.0, 1.0])
    assert not same({"a": 1}, {"b": 1})


def test_difference_of_scalars_lists_and_tensors():
    assert difference([torch.ones(2), torch.zeros(2)], [[1, 1], [0, 0]], 1e-6) == ()
    assert difference(torch.tensor(1, dtype=torch.bfloat16), 1.0, 1e-6) == ()
    assert difference(3, 4, 1e-6) == ("is 3, expected 4 (0.75 times)",)
    (close,) = difference(1501380.5, 1501375.5, 1e-6)
    assert close == "is 1501380.5, expected 1501375.5 (1.0000033 times)", (
        "digits enough to see that they differ"
    )
    assert difference([Fraction(1, 3)], [1 / 3], 1e-9) == ()


def test_lists_of_unlike_length_say_where_they_part():
    _, said = inequality([1, 2, 3, 4], [1, 2, 4, 5, 6])
    assert said == "(4 entries, expected 5; first difference at [2]: got 3, expected 4)"


def test_describe_is_short():
    assert describe(torch.tensor([1.0, 2.5])) == "[1.0, 2.5] (float32)"
    assert describe(torch.zeros(40, 2)) == "a tensor of shape (40, 2)"
    assert len(describe("x" * 1000)) < 110


def test_an_answer_below_its_target_says_the_same_as_one_at_it(capsys):
    """What is printed is compared: doing better than the course must not cost the points."""
    said = []
    for calls in (0, 1):
        answer = lambda x: 2 * x  # noqa: E731
        answer.calls = calls
        check("99.1", answer)
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
