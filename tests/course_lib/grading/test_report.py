"""What checks say, and what becomes of an answer that raises, prints or returns nothing."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from course_lib.grading.compare import describe, difference, in_number, same, settle
from course_lib.grading.complaints import explain
from course_lib.grading.failed import CheckFailed, TargetMissed
from course_lib.grading.report import Report, check
from course_lib.runtime.errors import RankError


@check
def check_99_1(report, double):
    for n in (2, 3):
        report.case(f"{n} values")
        x = torch.arange(1.0, n + 1)
        report.close("result", double(x), 2 * x, mistakes={"when it is squared": x * x})
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
        "  ✓ 3 values: calls (target: at most 1)",
    ]


def test_the_mistake_named_is_the_one_whose_value_came_out():
    error = failure(lambda x: x**2)
    assert error.lines == [
        "2 values: result differs in 1 of 2 places",
        "  (first difference at [0]: got 1, expected 2)",
        "  This is what comes out when it is squared.",
    ]
    assert error._render_traceback_()[0] == "  ✗ 2 values: result differs in 1 of 2 places"
    assert error._render_traceback_()[1] == "    (first difference at [0]: got 1, expected 2)"


def test_what_is_wrong_ends_with_the_command_for_a_hint():
    error = failure(lambda x: x**2)
    assert str(error).splitlines()[-1] == "  For a hint: course hint 99.1"
    assert error._render_traceback_()[-1] == "    For a hint: course hint 99.1"


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            "rank 0 raised RuntimeError: [rank0]:[F1123 23:45:33.697309228 ProcessGroupGloo.cpp:1537] Check failed: "
            "outputShape[0] * worldSize == inputShape[0] (8 vs. 12).",
            "rank 0 raised RuntimeError: the outputs of all ranks have 8 rows together, and the input has 12",
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


def test_tuples_are_shown_as_tuples_whatever_the_answer_used():
    assert repr(settle([[[0, 1]], ()], [[(0, 2)], []])) == "[[(0, 1)], []]"


@pytest.mark.parametrize(
    ("answer", "fact", "detail"),
    [
        (lambda x: None, "2 values: result is None: nothing was returned", ""),
        (lambda x: 4 * x, "2 values: result is 2.000 times what is expected", "got 4, expected 2"),
        (lambda x: 0 * x, "2 values: result is zero everywhere", ""),
        (lambda x: x[:1], "2 values: result has shape (1,), expected (2,)", ""),
        (lambda x: "two", "2 values: result is 'two', not numbers", ""),
        (lambda x: x / 0, "2 values: result holds 2 values that are not finite", ""),
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


def test_an_unwritten_answer_is_no_failure(capsys):
    def answer(x):
        raise NotImplementedError("99.1: double it")

    check_99_1(answer)
    assert capsys.readouterr().out == "  ○ not written yet: double it\n"


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


def test_a_missed_target_leaves_the_answer_right(capsys):
    def answer(x):
        return 2 * x

    answer.calls = 7
    error = failure(answer)
    assert isinstance(error, TargetMissed)
    assert error.lines == ["3 values: calls: 7 (target: at most 1)", "  likely: once is enough."]
    assert capsys.readouterr().out.splitlines() == ["  ✓ 2 values: result", "  ✓ 3 values: result"]


@check
def check_99_3(report, double):
    for n in (1, 2, 3, 5, 7, 11):
        with report.case(f"x = {n}"):
            report.equal("result", double(n), 2 * n, mistakes=MISTAKES, given=(n,), task="Twice x.")
            report.at_most("calls", n, 7)


MISTAKES = {"when it is squared": lambda x: x * x, "when 2 is added": lambda x: x + 2}


def lines_of(answer):
    with pytest.raises(CheckFailed) as caught:
        check_99_3(answer)
    return caught.value.lines


def test_every_case_is_tried_and_the_first_three_failures_are_told(capsys):
    assert lines_of(lambda x: x * x) == [
        "x = 1: result is 1, expected 2",
        "  This is what comes out when it is squared.",
        '  The task: "Twice x."',
        "x = 3: result is 9, expected 6",
        "x = 5: result is 25, expected 10",
        "… and 2 more cases fail",
    ]
    assert "  ✓ x = 2: result" in capsys.readouterr().out


@pytest.mark.parametrize(("rank", "tried"), [(None, [2]), (1, [2, 3, 4])])
def test_after_a_hang_no_further_case_is_tried(rank, tried):
    begun = []

    @check
    def check_99_4(report, answer):
        for ranks in (2, 3, 4):
            with report.case(f"{ranks} ranks"), report.case("8 values"):
                begun.append(ranks)
                answer()

    def answer():
        raise RankError("the ranks hang: stopped after 8 s" if rank is None else "rank 1 left", rank)

    with pytest.raises(CheckFailed) as caught:
        check_99_4(answer)
    assert begun == tried
    assert ("After ranks have hung, no further case is tried." in str(caught.value)) == (rank is None)


def test_a_mistake_that_a_right_case_rules_out_is_not_named():
    """3 + 2 is 5, but whoever adds 2 has no 2 for 1."""
    assert "This is what comes out" not in "\n".join(lines_of(lambda x: 5 if x == 3 else 2 * x))


def test_a_mistake_that_explains_one_wrong_case_and_not_the_next_is_not_named():
    """The squares of 1 and 3 come out, and three times 5: who squares does not do that."""
    assert "This is what comes out" not in "\n".join(lines_of(lambda x: x * x if x < 5 else 3 * x))


def test_of_two_mistakes_that_give_the_same_none_is_named():
    @check
    def check_99_4(report, double):
        same_again = {**MISTAKES, "when it is multiplied by itself": lambda x: x * x}
        report.equal("result", double(3), 6, mistakes=same_again, given=(3,))

    with pytest.raises(CheckFailed) as caught:
        check_99_4(lambda x: x * x)
    assert caught.value.lines == ["result is 9, expected 6"]


def test_the_sentence_that_a_named_mistake_violates_takes_the_place_of_the_general_one():
    @check
    def check_99_8(report, double):
        tasks = {"when it is squared": "Do not square."}
        report.equal("result", double(3), 6, mistakes=MISTAKES, given=(3,), task="Twice x.", tasks=tasks)

    for answer, sentence in ((lambda x: x * x, "Do not square."), (lambda x: 7, "Twice x.")):
        with pytest.raises(CheckFailed) as caught:
            check_99_8(answer)
        assert caught.value.lines[-1] == f'  The task: "{sentence}"'


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
    @check
    def check_99_5(report, double):
        programs = {"when it is squared": lambda x: x * x, "when it is tripled": lambda x: 3 * x}
        for x in (3, 5):
            with report.case(f"x = {x}"):
                report.equal("result", double(x), 2 * x, mistakes=programs, given=(x,))

    with pytest.raises(CheckFailed) as caught:
        check_99_5(lambda x: 3 * x)
    assert caught.value.lines[1] == "  This is what comes out when it is tripled."


def test_a_mistake_that_cannot_be_made_here_explains_nothing():
    @check
    def check_99_6(report, double):
        report.equal("result", double(3), 6, mistakes={"when it is divided": lambda x: x / 0}, given=(3,))

    with pytest.raises(CheckFailed) as caught:
        check_99_6(lambda x: None)
    assert caught.value.lines == ["result is None: nothing was returned"]


def test_a_mistake_that_gives_none_is_not_made_here():
    @check
    def check_99_8(report, double):
        for x in (3, 4):
            with report.case(f"x = {x}"):
                odd = {"when odd numbers are squared": x * x if x % 2 else None}
                report.equal("result", double(x), 2 * x, mistakes=odd)

    for answer, named in ((lambda x: None, False), (lambda x: 9 if x == 3 else 1, True)):
        with pytest.raises(CheckFailed) as caught:
            check_99_8(answer)
        assert ("This is what comes out" in str(caught.value)) == named


def test_ranks_are_compared_one_by_one():
    @check
    def check_99_7(report, results):
        want = [torch.zeros(2), torch.ones(3)]
        swapped = {"when the ranks are swapped": lambda want: want[::-1]}
        report.on_every_rank("every rank has its own", results, want, mistakes=swapped, given=(want,))

    check_99_7([torch.zeros(2), torch.ones(3)])
    with pytest.raises(CheckFailed) as caught:
        check_99_7([torch.ones(3), torch.zeros(2)])
    assert caught.value.lines == [
        "its own: rank 0's result has shape (3,), expected (2,)",
        "  (2 of 2 ranks have a wrong result)",
        "  This is what comes out when the ranks are swapped.",
    ]
    with pytest.raises(CheckFailed, match="rank 1's result differs in 1 of 3 places"):
        check_99_7([torch.zeros(2), torch.tensor([1.0, 2.0, 1.0])])


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
    @check
    def check_99_8(report, double):
        report.equal("result", double(3), 6)

    check_99_8(answer)


@pytest.mark.parametrize(
    "answer",
    [(0, 1, 2), range(3), np.arange(3), torch.arange(3), map(int, "012"), {0: 1, 1: 1, 2: 1}.keys()],
)
def test_a_list_is_right_in_any_style(answer):
    @check
    def check_99_9(report, numbers):
        report.equal("numbers", numbers, [0, 1, 2])

    check_99_9(answer)


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

    assert "printed more than 1,000,000 characters" in str(failure(answer))


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
    assert difference(3, 4, 1e-6) == "is 3, expected 4 (0.75 times)"
    close = difference(1501380.5, 1501375.5, 1e-6)
    assert close == "is 1501380.5, expected 1501375.5 (1.0000033 times)", (
        "digits enough to see that they differ"
    )
    assert difference([Fraction(1, 3)], [1 / 3], 1e-9) is None


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
