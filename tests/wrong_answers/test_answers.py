"""Every exercise rejects plausible wrong answers, each with its own hint, and slow ones for being slow; and accepts
right answers that are written in another way than the solution.

``solutions/mistakes/NN_topic.diff`` lists them, in the form that ``course_lib/grading/mistakes.py`` explains: at least
three wrong and one slow for each exercise, one of them without the exercise's idea, which may earn one point at most.

Learners are graded on other inputs each time (``judge.draw``). Here the inputs follow from the exercise, so that a test
gives the same result in every run; ``--draw 1``, ``--draw 2`` and so on try the same answers on other inputs.

The checks run here in this process, on the answer alone, and their ranks stay from one answer to the next. A listed
mistake is observed once, whether it is handed in or compared with what is. That the grader sees the same in a process
of its own is tested once per chapter: the solution earns every point. A quarter of the chapters share that process,
whose start would take longer than most.
"""

import functools
import random
import re
import time
from pathlib import Path

import psutil
import pytest
import torch

from course_lib.grading import CELL_TIMEOUT, judge, sandbox
from course_lib.grading import grade as grader
from course_lib.grading.failed import TARGET, CheckFailed, TargetMissed
from course_lib.grading.material import MISTAKES, check_file, material
from course_lib.grading.mistakes import read_mistakes
from course_lib.notebooks.build import drift, read_notebook
from course_lib.notebooks.exercise import read_exercises, stub
from course_lib.runtime.kept import kept

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted(path.stem for path in (ROOT / "solutions").glob("[0-9][0-9]_*.ipynb"))


@pytest.fixture(scope="module", autouse=True)
def ranks_that_stay():
    """Hundreds of answers on ranks: to start new ones for each case would take most of the time."""
    with kept():
        yield


@pytest.fixture(autouse=True)
def inputs_that_follow_from_the_name(request, monkeypatch):
    drawn = request.config.getoption("--draw")
    # The same for all answers to an exercise: what its solution and its mistakes give is observed once.
    exercise = getattr(request.node, "callspec", None) and request.node.callspec.params.get("number")
    seed = random.Random(f"{drawn} {exercise}").randrange(2**31)
    monkeypatch.setattr(judge, "draw", lambda: seed)
    random.seed(request.node.name)  # for answers that draw on their own
    torch.manual_seed(random.randrange(2**31))


@functools.cache
def notebook(chapter):
    return read_notebook(ROOT / "solutions" / f"{chapter}.ipynb")


@functools.cache
def exercises(chapter):
    return {exercise.id: exercise for exercise in read_exercises(notebook(chapter), chapter)}


@functools.cache
def entries(chapter):
    return read_mistakes(ROOT / MISTAKES / f"{chapter}.diff")


def check(number, entry):
    """Run one check on a listed answer."""
    given = material(number)
    named = (mistake.answer for mistake in given.mistakes if mistake.when == entry.when)
    judge.check(number, next(named, None) or given.make(entry.patched(given.source)))


def hint(entry):
    """What a check says of a listed answer: that it is this mistake, or what stands behind ``says``."""
    return f"This is what comes out when {entry.when}." if entry.named else entry.says


def words(text):
    return " ".join(text.split())


QUOTED = re.compile(r'^  The task: "(.*)"$', re.MULTILINE)
ALL = [(chapter, number) for chapter in CHAPTERS for number in exercises(chapter)]
LISTED = [
    pytest.param(chapter, number, entry, id=f"{number}-{entry.when.replace(' ', '_').replace('`', '')}")
    for chapter in CHAPTERS
    for number, found in entries(chapter).items()
    for entry in found
]
RIGHT = [each for each in LISTED if "right" in each.values[2].words]
WRONG = [each for each in LISTED if "right" not in each.values[2].words]


@pytest.mark.parametrize(("chapter", "number"), ALL)
def test_every_exercise_has_wrong_answers_and_a_slow_one(chapter, number):
    found = [entry for entry in entries(chapter).get(number, []) if "right" not in entry.words]
    wrong = [entry for entry in found if "slow" not in entry.words]
    assert len(wrong) >= 3, (
        f"{chapter}.diff has {len(wrong)} wrong answers to {number}; at least 3 are wanted"
    )
    assert len({hint(entry) for entry in wrong}) == len(wrong), (
        f"{number}: each wrong answer has its own hint"
    )
    assert len(found) > len(wrong), f"{chapter}.diff has no slow answer to {number}"


@pytest.mark.parametrize(("chapter", "number"), ALL)
def test_an_answer_without_the_idea_earns_one_point_at_most(chapter, number):
    # That a slow answer earns the points for being right and a wrong one none is tested below.
    found = [entry for entry in entries(chapter).get(number, []) if "without idea" in entry.words]
    assert found, f"which answer to {number} leaves out its idea? Mark it in {chapter}.diff"
    assert exercises(chapter)[number].right <= 1 or not [e.when for e in found if "slow" in e.words]


@pytest.mark.parametrize(("chapter", "number", "entry"), WRONG)
def test_wrong_answer_fails_with_its_hint(chapter, number, entry):
    with pytest.raises(CheckFailed) as failed:
        check(number, entry)
    assert hint(entry) in str(failed.value)
    if exercises(chapter)[number].target:
        is_right = isinstance(failed.value, TargetMissed)
        assert is_right == ("slow" in entry.words), "slow answers are right, and the others are not"
    for quoted in QUOTED.findall(str(failed.value)):
        assert quoted in words(notebook(chapter).cells[exercises(chapter)[number].task].source)


@pytest.mark.parametrize(("chapter", "number", "entry"), RIGHT)
def test_right_answer_in_another_style_passes(chapter, number, entry):
    check(number, entry)


@pytest.mark.parametrize(("chapter", "number"), ALL)
def test_what_a_check_quotes_of_the_task_stands_there_once(chapter, number):
    task = words(notebook(chapter).cells[exercises(chapter)[number].task].source)
    facts = check_file(number).FACTS.values()
    assert [f.task for f in facts if f.task and task.count(f.task.removesuffix("…")) != 1] == []
    assert [f.task for f in material(number).facts.values() if f.task and f.task not in task] == []


@pytest.mark.parametrize(("chapter", "number"), ALL)
def test_the_shipped_answer_is_not_written_yet(chapter, number, capsys):
    given = material(number)
    try:
        judge.check(number, given.make(stub(given.source, exercises(chapter)[number])))
        said = capsys.readouterr().out
    except NotImplementedError as unwritten:  # raised while the cell ran, before any check
        said = f"not written yet: {unwritten}"
    assert "not written yet: " in said


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_all_exercises_of_a_chapter_have_hints_or_none_has(chapter):
    assert len({bool(exercise.hints) for exercise in exercises(chapter).values()}) == 1


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_exercises_are_built_from_the_solutions(chapter):
    assert drift(ROOT / "solutions" / f"{chapter}.ipynb", ROOT / "exercises") is None


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / MISTAKES).glob("*.diff")),
    ids=lambda p: p.stem,
)
def test_wrong_answers_belong_to_an_exercise(path):
    assert path.stem in CHAPTERS
    assert set(entries(path.stem)) <= set(exercises(path.stem))


@pytest.mark.parametrize(("chapter", "number"), ALL)
def test_checks_were_executed_in_the_solution_and_state_the_target(chapter, number):
    # That the solution passes, nbval proves with these outputs, and the grader below.
    exercise = exercises(chapter)[number]
    stated = "".join(output.get("text", "") for output in notebook(chapter).cells[exercise.check].outputs)
    assert stated
    assert bool(exercise.target) <= (TARGET in stated), "points for a target that the check does not state"


def hand_in(chapter, monkeypatch, run):
    """Grade the solution, where ``run`` stands for the process that judges."""
    path = ROOT / "solutions" / f"{chapter}.ipynb"
    monkeypatch.setattr(grader, "run", run)
    return grader.grade(path, path)


@functools.cache
def judged_together(quarter):
    """The verdicts on all solutions of a quarter of the chapters, by one process. ``tests/conftest.py`` knows it."""
    work = []
    with pytest.MonkeyPatch.context() as patch:
        for chapter in CHAPTERS:
            if int(chapter[:2]) % 4 == quarter:
                hand_in(chapter, patch, lambda asked, *_: (work.extend(asked), ({}, False))[1])
    limits = sandbox.Limits(CELL_TIMEOUT, time.monotonic() + 900, psutil.virtual_memory().total)
    return sandbox.run(work, limits, lambda exercise: None)[0]


@pytest.mark.timeout(1200)  # of the first: it waits for a quarter of the chapters
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_grader_gives_the_solution_every_point(chapter, monkeypatch):
    verdicts = judged_together(int(chapter[:2]) % 4)
    result = hand_in(chapter, monkeypatch, lambda *_: (verdicts, False))
    assert {each.id: each.message for each in result.exercises if each.status != "passed"} == {}
    outputs = "".join(o.get("text", "") for cell in notebook(chapter).cells for o in cell.get("outputs", []))
    shown = [line.removeprefix("  ✓ ") for line in outputs.splitlines() if line.startswith("  ✓ ")]
    assert [fact for each in result.exercises for fact in each.facts] == shown, "execute the solutions again"
