"""What checks say, and what becomes of an answer that raises, prints or returns nothing."""

import numpy as np
import pytest
import torch

from course_lib.grading.compare import describe, difference, same
from course_lib.grading.report import CheckFailed, Report, check


@check
def check_99_1(report, double):
    for n in (2, 3):
        report.case(f"{n} values")
        x = torch.arange(1.0, n + 1)
        report.close("result", double(x), 2 * x, mistakes={"squared, not doubled.": x * x})
    report.at_most("calls", getattr(double, "calls", 1), 1, likely="once is enough.")


def failure(answer):
    with pytest.raises(CheckFailed) as caught:
        check_99_1(answer)
    return caught.value


def test_a_right_answer_gets_its_facts_printed(capsys):
    check_99_1(lambda x: x + x)
    assert capsys.readouterr().out.splitlines() == [
        "  ✓ 2 values: result",
        "  ✓ 3 values: result",
        "  ✓ 3 values: calls: at most 1, as it should be",
    ]


def test_the_likely_mistake_is_the_one_whose_value_came_out():
    error = failure(lambda x: x**2)
    assert error.fact == "2 values: result differs most at [0]: 1, expected 2"
    assert error.likely == "squared, not doubled."
    assert error._render_traceback_() == [f"  ✗ {error.fact}", f"    likely: {error.likely}"]


@pytest.mark.parametrize(
    ("answer", "fact", "likely"),
    [
        (lambda x: None, "2 values: result is None", "a `return` is missing?"),
        (lambda x: 4 * x, "2 values: result is 2.000 times what is expected", None),
        (lambda x: x[:1], "2 values: result has shape (1,), expected (2,)", None),
        (lambda x: "two", "2 values: result is 'two', not numbers", None),
        (lambda x: x / 0, "2 values: result holds 2 values that are not finite", None),
        (lambda x, y: x, "2 values: TypeError", "keep the names and arguments that were given."),
        (lambda x: x @ torch.ones(5, 5), "2 values: RuntimeError", None),
        (
            lambda x: missing(x),  # noqa: F821
            "2 values: NameError: name 'missing' is not defined",
            "graded without your other",
        ),
    ],
)
def test_a_wrong_answer_is_told_in_one_line(answer, fact, likely):
    error = failure(answer)
    assert fact in error.fact
    assert "\n" not in error.fact
    assert (likely or "") in (error.likely or "")


def test_an_unwritten_answer_says_so():
    def answer(x):
        raise NotImplementedError("99.1: double it")

    assert failure(answer).fact == "not written yet: double it"


def test_the_line_of_the_answer_is_named():
    source = "def answer(x):\n    y = []\n    return y[3]\n"
    namespace = {"__name__": "__main__"}
    exec(compile(source, "<no file>", "exec"), namespace)
    assert "IndexError: list index out of range (line 3 of the answer" in failure(namespace["answer"]).fact


def test_an_answer_that_leaves_is_a_failure():
    def answer(x):
        raise SystemExit(0)

    assert "SystemExit" in failure(answer).fact


def test_a_missed_target_is_a_failure():
    def answer(x):
        return 2 * x

    answer.calls = 7
    error = failure(answer)
    assert (error.fact, error.likely) == ("3 values: calls: 7, and at most 1 are needed", "once is enough.")


def test_prints_of_the_answer_are_no_facts_and_are_shown_on_failure(capsys):
    def answer(x, factor=2):
        print("looking at", len(x))
        return factor * x

    check_99_1(answer)
    assert "looking" not in capsys.readouterr().out
    failure(lambda x: answer(x, 3))
    assert "  your answer printed:\n    looking at 2" in capsys.readouterr().out


def test_a_flood_of_prints_ends_the_check():
    def answer(x):
        for _ in range(1000):
            print("x" * 10_000)
        return 2 * x

    assert "printed more than 1,000,000 characters" in failure(answer).fact


def test_a_check_that_states_nothing_is_a_mistake_of_its_author():
    @check
    def check_99_2(report):
        pass

    with pytest.raises(RuntimeError, match="check_99_2 stated no fact"):
        check_99_2()


def test_same_is_exact_and_knows_types():
    assert same({"a": [torch.ones(2), 1]}, {"a": [torch.ones(2), 1]})
    assert same((1, 2), [1, 2])
    assert not same(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert not same(torch.ones(2), torch.ones(1, 2))
    assert not same([1], [1, 2])
    assert not same(np.ones(2), [1.0, 1.0])
    assert not same({"a": 1}, {"b": 1})


def test_difference_of_scalars_lists_and_tensors():
    assert difference([torch.ones(2), torch.zeros(2)], [[1, 1], [0, 0]], 1e-6) is None
    assert difference(torch.tensor(1, dtype=torch.bfloat16), 1.0, 1e-6) is None
    assert difference(3, 4, 1e-6) == "is 3, expected 4"


def test_describe_is_short():
    assert describe(torch.tensor([1.0, 2.5])) == "[1.0, 2.5] (float32)"
    assert describe(torch.zeros(40, 2)) == "a tensor of shape (40, 2)"
    assert len(describe("x" * 1000)) < 110


def test_an_answer_below_its_target_says_the_same_as_one_at_it():
    """What is printed is compared: doing better than the course must not cost the points."""
    said = []
    for calls in (1, 3):
        report = Report("97.1")
        report.at_most("messages", calls, 3)
        said.append(report.facts)
    assert said[0] == said[1]
