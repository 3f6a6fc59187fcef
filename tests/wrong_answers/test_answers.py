"""Every exercise rejects plausible wrong answers, each with its own hint, and slow ones for being slow; and accepts
right answers that are written in another way than the solution.

``solutions/mistakes/NN_topic.diff`` lists them, in the form that ``course_lib/grading/mistakes.py`` explains: at least
three wrong and one slow for each exercise, one of them without the exercise's idea, which may earn one point at most.

Learners are graded on other inputs each time (``judge.draw``). Here the inputs follow from the exercise, so that a test
gives the same result in every run; ``--draw 1``, ``--draw 2`` and so on try the same answers on other inputs.

The checks run here in this process, and their ranks stay from one answer to the next. A listed mistake is observed once
in a case, whether it is handed in or compared with what is. A wrong answer is tried up to the first case that fails,
if its hint comes out there: further cases leave fewer mistakes to take it for, not more. That the grader sees the same
in a process of its own is tested for one chapter.
"""

import functools
import math
import random
import re
from pathlib import Path

import pytest
import torch
from graded_here import run_here

from course_lib.grading import grade as grader
from course_lib.grading import judge
from course_lib.grading.failed import TARGET, CheckFailed, TargetMissed
from course_lib.grading.material import MISTAKES, check_file, material
from course_lib.grading.mistakes import read_mistakes
from course_lib.notebooks.build import drift, read_notebook
from course_lib.notebooks.exercise import read_exercises, stub
from course_lib.runtime import hang
from course_lib.runtime.kept import kept

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted(path.stem for path in (ROOT / "solutions").glob("[0-9][0-9]_*.ipynb"))


@pytest.fixture(scope="module", autouse=True)
def ranks_that_stay():
    """Hundreds of answers on ranks: to start new ones for each case would take most of the time."""
    with kept(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(hang, "DEADLOCK_AFTER", 2.0)  # seconds; a dozen answers hang, in several cases
        yield


@pytest.fixture
def drawn(request):
    """An exercise's seed: the same for all answers to it, so what its mistakes give is observed once."""
    draw = request.config.getoption("--draw")
    return lambda number: random.Random(f"{draw} {number}").randrange(2**31)


@pytest.fixture(autouse=True)
def inputs_that_follow_from_the_name(request, monkeypatch, drawn):
    number = getattr(request.node, "callspec", None) and request.node.callspec.params.get("number")
    monkeypatch.setattr(judge, "draw", lambda: drawn(number))
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
    for mistake in given.mistakes:
        if getattr(mistake.answer, "__dict__", None):  # it remembers its calls, and a learner's has had none
            mistake.answer = mistake.make()
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
def test_wrong_answer_fails_with_its_hint(chapter, number, entry, monkeypatch):
    monkeypatch.setattr(judge, "LIMIT", math.inf)  # on a busy machine a check takes long
    for patience in (-1, math.inf):
        monkeypatch.setattr(judge, "PATIENCE", patience)
        with pytest.raises(CheckFailed) as failed:
            check(number, entry)
        if hint(entry) in str(failed.value):
            break
    assert hint(entry) in str(failed.value)
    if exercises(chapter)[number].target:
        is_right = isinstance(failed.value, TargetMissed)
        assert is_right == ("slow" in entry.words), "slow answers are right, and the others are not"
    for quoted in QUOTED.findall(str(failed.value)):
        task = notebook(chapter).cells[exercises(chapter)[number].task].source
        assert quoted in words(task).replace("**", "")


@pytest.mark.parametrize(("chapter", "number", "entry"), RIGHT)
def test_right_answer_in_another_style_passes(chapter, number, entry):
    check(number, entry)


@pytest.mark.parametrize(("chapter", "number"), ALL)
def test_what_a_check_quotes_of_the_task_stands_there_once(chapter, number):
    task = words(notebook(chapter).cells[exercises(chapter)[number].task].source)
    facts = check_file(number).FACTS.values()
    assert [f.task for f in facts if f.task and task.count(f.task.removesuffix("…")) != 1] == []
    given = material(number)
    asked = [*given.facts.values(), *given.cases(0)]
    assert [each.task for each in asked if getattr(each, "task", None) and each.task not in task] == []


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


def graded(chapter, on_progress=None):
    path = ROOT / "solutions" / f"{chapter}.ipynb"
    return grader.grade(path, path, on_progress=on_progress).exercises


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_solution_earns_every_point(chapter, drawn, monkeypatch):
    def begin(number, *_):
        monkeypatch.setattr(judge, "draw", lambda: drawn(number))

    monkeypatch.setattr(grader, "run", run_here)
    found = graded(chapter, begin)
    assert {each.id: each.message for each in found if each.status != "passed"} == {}
    outputs = "".join(o.get("text", "") for cell in notebook(chapter).cells for o in cell.get("outputs", []))
    shown = [line.removeprefix("  ✓ ") for line in outputs.splitlines() if line.startswith("  ✓ ")]
    assert [fact for each in found for fact in each.facts] == shown, "execute the solutions again"


def test_the_grader_sees_the_same_in_a_process_of_its_own():
    assert {each.id: each.message for each in graded("05_ddp") if each.status != "passed"} == {}
