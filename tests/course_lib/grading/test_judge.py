"""The engine of the checks: what it prints of a right, a wrong and a slow answer, and when it names a mistake."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from course_lib.grading import judge
from course_lib.grading.failed import CheckFailed, TargetMissed
from course_lib.grading.judge import Fact
from course_lib.grading.material import material
from course_lib.grading.mistakes import Mistake
from course_lib.notebooks.places import course_root
from course_lib.runtime.errors import RankError

CHECKS = course_root() / "exercises" / "checks"


class Case(NamedTuple):
    name: str
    numbers: list[int]


FACTS = {
    "mean": Fact("the mean", task="Return the **mean**.", tolerance=1e-6),
    "calls": Fact("additions", most=1),
}
CASES = [Case("two numbers", [1, 3]), Case("three numbers", [1, 2, 6])]


def observe(answer, case):
    mean, calls = answer(case.numbers)
    return {"mean": mean, "calls": calls}


def right(numbers):
    return sum(numbers) / len(numbers), 1


def total(numbers):
    return sum(numbers), 1


def slow(numbers):
    return sum(numbers) / len(numbers), len(numbers)


def stub(numbers):
    raise NotImplementedError("99.1: add them up")


MISTAKES = {"the sum is not divided": total, "numbers are added one by one": slow}


@pytest.fixture
def check(monkeypatch):
    """``check(answer, mistakes)`` of an exercise that has no files."""

    given = SimpleNamespace(exercise="99.1", solution=right, seed=None, known={})

    def run(answer, mistakes=MISTAKES, observe=observe, facts=FACTS):
        listed = [Mistake(when, lambda made=made: made) for when, made in mistakes.items()]
        given.facts, given.observe = facts, observe
        given.cases, given.mistakes = lambda seed: CASES, listed
        monkeypatch.setattr(judge, "material", lambda exercise: given)
        judge.check("99.1", answer)

    return run


def test_a_right_answer_has_a_line_for_each_case_and_each_target(check, capsys):
    check(right)
    assert capsys.readouterr().out.splitlines() == [
        "  ✓ two numbers", "  ✓ three numbers", "  ✓ additions (target: at most 1)"
    ]  # fmt: skip


def test_a_wrong_answer_is_told_with_its_mistake_and_the_task(check):
    with pytest.raises(CheckFailed) as failed:
        check(lambda numbers: (float(sum(numbers)), 1))
    assert failed.value.lines == [
        "two numbers: the mean is 4, expected 2 (2 times)",
        "  This is what comes out when the sum is not divided.",
        '  The task: "Return the mean."',
        "three numbers: the mean is 9, expected 3 (3 times)",
    ]


def test_a_slow_answer_is_right_and_misses_its_target(check, capsys):
    with pytest.raises(TargetMissed, match="when numbers are added one by one"):
        check(slow)
    assert capsys.readouterr().out.splitlines() == ["  ✓ two numbers", "  ✓ three numbers"]


def test_what_the_solution_and_the_mistakes_give_is_observed_once_for_a_seed(check, monkeypatch):
    answers = []

    def observed(answer, case):
        answers.append(answer)
        return observe(answer, case)

    for seed in (1, 2):
        monkeypatch.setattr(judge, "draw", lambda seed=seed: seed)
        for _ in range(2):
            with pytest.raises(CheckFailed, match="is not divided"):
                check(lambda numbers: (float(sum(numbers)), 1), observe=observed)
    assert answers.count(right) == answers.count(total) == len(CASES) * 2


def test_a_mistake_is_not_named_where_it_explains_one_case_only(check):
    with pytest.raises(CheckFailed) as failed:
        check(lambda numbers: (sum(numbers) if len(numbers) == 2 else 0, 1))
    assert "comes out" not in str(failed.value)


def test_of_two_mistakes_with_one_result_none_is_named(check):
    with pytest.raises(CheckFailed) as failed:
        check(total, {"the sum is not divided": total, "the length is forgotten": total})
    assert "comes out" not in str(failed.value)


def test_late_cases_are_tried_while_two_mistakes_fit_and_those_that_are_not_are_counted(check, monkeypatch):
    monkeypatch.setattr(judge, "PATIENCE", -1)
    both = {
        "the sum is not divided": total,
        "the ends are added": lambda numbers: (numbers[0] + numbers[-1], 1),
    }
    with pytest.raises(CheckFailed, match="comes out when the sum is not divided") as failed:
        check(total, both)
    assert "three numbers: the mean is 9" in str(failed.value)
    assert "not tried" not in str(failed.value)
    for mistakes, named in ((MISTAKES, True), ({}, False)):  # one fits, none does: no other case helps
        with pytest.raises(CheckFailed) as failed:
            check(total, mistakes)
        assert failed.value.lines[-1] == "… and 1 more case was not tried"
        assert ("comes out when" in str(failed.value)) == named
    monkeypatch.setattr(judge, "LIMIT", -1)
    with pytest.raises(CheckFailed, match="1 more case was not tried") as failed:
        check(total, both)
    assert "comes out" not in str(failed.value)


def test_an_answer_that_is_not_written_fails_nothing(check, capsys):
    check(stub)
    assert capsys.readouterr().out == "  ○ not written yet: add them up\n"


def test_what_an_answer_raises_is_told_and_can_be_a_mistake(check):
    def raises(numbers):
        raise KeyError("seven")

    with pytest.raises(CheckFailed, match="two numbers: KeyError: 'seven'") as failed:
        check(raises, {**MISTAKES, "seven is looked up": raises})
    assert "when seven is looked up" in str(failed.value)


def test_a_case_may_have_a_task_of_its_own_which_is_quoted_of_what_is_raised_too(check, monkeypatch):
    case = SimpleNamespace(name="no number", numbers=[], task="Of no number it is 0.")
    monkeypatch.setitem(globals(), "CASES", [case])
    with pytest.raises(CheckFailed, match="no number: ZeroDivisionError") as failed:
        check(lambda numbers: (sum(numbers) / len(numbers), 1), {})
    assert failed.value.lines[-1] == '  The task: "Of no number it is 0."'


def test_after_a_hang_no_case_is_tried_and_only_mistakes_that_hang_are(check, monkeypatch):
    tried = []

    def hangs(numbers):
        tried.append(numbers)
        raise RankError("ranks 0 and 1 wait for all_reduce")

    with pytest.raises(CheckFailed, match="and 1 more case was not tried"):
        check(hangs, {"a mistake that does not hang": lambda numbers: pytest.fail("tried")})
    assert tried == [[1, 3]]


HANG = "the ranks hang: stopped after {} s\nrank 0  waits in send(to rank {}), at {}\nrank 1  has returned"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (RankError(HANG.format(6, 1, "<a>, line 2")), RankError(HANG.format(7, 1, "<b>, line 9")), True),
        (RankError(HANG.format(6, 1, "<a>, line 2")), RankError(HANG.format(6, 0, "<a>, line 2")), False),
        (
            RankError("rank 0 raised KeyError: rank 0", 0),
            RankError("rank 2 raised KeyError: rank 2", 2),
            True,
        ),
        (RankError("rank 0 raised KeyError: 3", 0), RankError("rank 0 raised KeyError: 4", 0), False),
        (
            RankError("rank 0 was killed by signal 6 in a", 0),
            RankError("rank 1 was killed by signal 6 in b", 1),
            True,
        ),
    ],
)
def test_ranks_that_hang_are_told_apart_by_who_waits_for_whom_and_others_not_by_who_was_first(
    one, other, same
):
    told, other_told = (judge._told(judge.Seen(None, raised=error)) for error in (one, other))
    assert (told == other_told) == same


def test_a_fact_names_the_rank_and_the_entry():
    fact = Fact("the gradient of {}", tolerance=1e-5, each="rank")
    want = [{"a": torch.ones(2), "b": None}] * 3
    assert fact.wrong(want, want) == []
    got = [want[0], {"a": 2 * torch.ones(2), "b": None}, {"a": torch.ones(2), "b": 1.0}]
    assert fact.wrong(got, want) == [
        "rank 1: the gradient of a is 2.000 times what is expected",
        "(first difference at [0]: got 2, expected 1)",
        "(2 of 3 ranks)",
    ]
    assert fact.wrong(None, want)[0].startswith("the gradient is None")


@pytest.mark.parametrize("fact", [Fact("parts"), Fact("parts", tolerance=1e-5)])  # a number in other cases
def test_a_text_says_what_is_wrong(fact):
    assert fact.wrong("", "") == []
    assert fact.wrong("rank 0 has nothing", "") == ["rank 0 has nothing"]
    assert fact.alike("rank 0 has nothing", "rank 0 has nothing")
    assert not fact.alike("rank 0 has nothing", "rank 1 has nothing")


def test_a_text_is_left_out_where_nothing_is_wrong_and_a_value_is_not(check):
    facts = {"form": Fact("the answer", each="rank")} | FACTS

    def formed(answer, case):
        mean, calls = answer(case.numbers)
        return {"mean": mean, "calls": calls} if mean else {"form": ["", "it gives 0"] * (calls == 1)}

    check(right, observe=formed, facts=facts)
    with pytest.raises(CheckFailed, match="two numbers: rank 1: it gives 0"):
        check(lambda _: (0, 1), observe=formed, facts=facts)
    with pytest.raises(KeyError):  # a mistake of the check: nothing is said, and no mean is there
        check(
            lambda _: (0, 2), observe=lambda *given: formed(*given) if given[0] is right else {}, facts=facts
        )


def test_a_trace_tells_mistakes_with_one_result_apart(check):
    def traced(answer, case):
        return observe(answer, case) | {"trace": answer.__name__}

    def forgotten(numbers):
        return total(numbers)

    with pytest.raises(CheckFailed, match="when the length is forgotten"):
        check(
            forgotten, {"the sum is not divided": total, "the length is forgotten": forgotten}, observe=traced
        )


def test_a_target_may_count_what_is_beyond_the_solution():
    fact = Fact("steps more than the fewest", most=0, beyond=True)
    assert fact.wrong(7, 7) == []
    assert fact.wrong(9, 7) == ["steps more than the fewest: 2 (target: at most 0)"]


def test_a_target_may_be_a_share_of_what_the_solution_needs():
    fact = Fact("time, in percent of the fastest", most=105, percent=True)
    assert fact.wrong(2.1, 2.0) == []
    assert fact.wrong(2.5, 2.0) == ["time, in percent of the fastest: 125.0 (target: at most 105)"]


@pytest.mark.parametrize("exercise", sorted(path.stem for path in CHECKS.glob("ex_*.py")))
def test_cases_and_mistakes_have_names_of_their_own(exercise):
    """By them is remembered what was observed."""
    given = material(exercise.removeprefix("ex_").replace("_", "."))
    for names in ([case.name for case in given.cases(1)], [mistake.when for mistake in given.mistakes]):
        assert len(set(names)) == len(names)
    assert all(mistake.named for mistake in given.mistakes), "others end no sentence of the check"
