"""Every exercise rejects plausible wrong answers, each with its own hint, and slow ones for being slow; and accepts
right answers that are written in another way than the solution.

``solutions/mistakes/NN_topic.toml`` lists them: at least three wrong and one slow for each exercise. An answer is
given by what differs from the solution (``old`` stands in the solution's answer cell exactly once; both may be lists,
for a patch in several places), or in full (``source``)::

    [["05.2"]]
    when = "the sum is not divided by the number of ranks"   # the check names it: "This is what comes out when …"
    old = "gradient / ranks"
    new = "gradient"

    [["05.2"]]
    name = "one message per parameter"            # shown in the test's name
    says = "messages: 7 (target: at most 3)"      # part of what the check then says
    slow = true                                   # right, keeps those points, and misses its target
    source = '''
    def average(parameters, ranks):
        ...
    '''

    [["05.2"]]
    name = "flattens with numpy"
    right = true                                  # earns every point
    source = '''
    def average(parameters, ranks):
        ...
    '''

``without_idea = true`` marks an answer that leaves out what the exercise is about: a constant, one device that does
all the work, the version that the chapter begins with. It may earn one point at most; every exercise has one.

Learners are graded on other inputs each time (``judge.draw``). Here the inputs follow from the exercise, so that a test
gives the same result in every run; ``--draw 1``, ``--draw 2`` and so on try the same answers on other inputs.

The check cells run here in this process, on the answer alone, and their ranks stay from one answer to the next. That
the grader, which starts new ones, sees the same through a kernel is tested once per chapter: the solution earns every
point.
"""

import functools
import linecache
import random
import re
import tomllib
from pathlib import Path

import pytest
import torch

from course_lib.grading import judge, ranks
from course_lib.grading.failed import TARGET, CheckFailed, TargetMissed
from course_lib.grading.grade import grade
from course_lib.grading.material import MISTAKES, patch
from course_lib.notebooks.build import drift, read_notebook
from course_lib.notebooks.exercise import read_exercises, stub

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted(path.stem for path in (ROOT / "solutions").glob("[0-9][0-9]_*.ipynb"))


@pytest.fixture(scope="module", autouse=True)
def ranks_that_stay():
    """Hundreds of answers on ranks: to start new ones for each case would take most of the time."""
    with ranks.kept():
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


def solution(chapter, number):
    return notebook(chapter).cells[exercises(chapter)[number].answer].source


@functools.cache
def entries(chapter):
    text = (ROOT / MISTAKES / f"{chapter}.toml").read_text(encoding="utf-8")
    return {number: [_with_hint(entry) for entry in listed] for number, listed in tomllib.loads(text).items()}


def _with_hint(entry):
    hint = f"This is what comes out when {entry['when']}." if "when" in entry else entry.get("says", "")
    return {"hint": hint, "name": entry.get("when"), **entry}


def answer_source(chapter, number, entry):
    return patch(solution(chapter, number), entry)


def execute(source, namespace, name):
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)


@functools.cache
def names_before_each_answer(chapter):
    """Run the solution's cells in order, the checks left out; what is defined where each answer begins."""
    namespace = {"__name__": "__main__", "display": lambda *_, **__: None}
    begins = {exercise.answer: number for number, exercise in exercises(chapter).items()}
    checks = {exercise.check for exercise in exercises(chapter).values()}
    found = {}
    for index, cell in enumerate(notebook(chapter).cells):
        if index in begins:
            found[begins[index]] = dict(namespace)
        if cell.cell_type == "code" and index not in checks:
            execute(cell.source, namespace, f"<{chapter}, cell {index}>")
    return found


def check(chapter, number, source):
    """Run one check on one answer, as the notebook would."""
    namespace = dict(names_before_each_answer(chapter)[number])
    execute(source, namespace, f"<answer {number}>")
    execute(notebook(chapter).cells[exercises(chapter)[number].check].source, namespace, f"<check {number}>")


QUOTED = re.compile(r'^  The task: "(.*)"$', re.MULTILINE)
ALL = [(chapter, number) for chapter in CHAPTERS for number in exercises(chapter)]
LISTED = [
    pytest.param(chapter, number, entry, id=f"{number}-{entry['name'].replace(' ', '_').replace('`', '')}")
    for chapter in CHAPTERS
    for number, found in entries(chapter).items()
    for entry in found
]
RIGHT = [each for each in LISTED if each.values[2].get("right")]
WRONG = [each for each in LISTED if not each.values[2].get("right")]


@pytest.mark.parametrize(("chapter", "number"), ALL)
def test_every_exercise_has_wrong_answers_and_a_slow_one(chapter, number):
    found = [entry for entry in entries(chapter).get(number, []) if not entry.get("right")]
    wrong = [entry for entry in found if not entry.get("slow")]
    assert len(wrong) >= 3, (
        f"{chapter}.toml has {len(wrong)} wrong answers to {number}; at least 3 are wanted"
    )
    assert len({entry["hint"] for entry in wrong}) == len(wrong), (
        f"{number}: each wrong answer has its own hint"
    )
    assert len(found) > len(wrong), f"{chapter}.toml has no slow answer to {number}"


@pytest.mark.parametrize(("chapter", "number"), ALL)
def test_an_answer_without_the_idea_earns_one_point_at_most(chapter, number):
    # That a slow answer earns the points for being right and a wrong one none is tested below.
    found = [entry for entry in entries(chapter).get(number, []) if entry.get("without_idea")]
    assert found, f"which answer to {number} leaves out its idea? Mark it in {chapter}.toml"
    earned = {entry["name"]: exercises(chapter)[number].right for entry in found if entry.get("slow")}
    assert {name for name, points in earned.items() if points > 1} == set()


@pytest.mark.parametrize(("chapter", "number", "entry"), WRONG)
def test_wrong_answer_fails_with_its_hint(chapter, number, entry):
    with pytest.raises(CheckFailed) as failed:
        check(chapter, number, answer_source(chapter, number, entry))
    assert entry["hint"] in str(failed.value)
    if exercises(chapter)[number].target:
        is_right = isinstance(failed.value, TargetMissed)
        assert is_right == entry.get("slow", False), "slow answers are right, and the others are not"
    for quoted in QUOTED.findall(str(failed.value)):
        assert quoted in words(notebook(chapter).cells[exercises(chapter)[number].task].source)


@pytest.mark.parametrize(("chapter", "number", "entry"), RIGHT)
def test_right_answer_in_another_style_passes(chapter, number, entry):
    check(chapter, number, answer_source(chapter, number, entry))


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize(("chapter", "number"), ALL)
def test_the_shipped_answer_is_not_written_yet(chapter, number, capsys):
    exercise, text = exercises(chapter)[number], solution(chapter, number)
    try:
        check(chapter, number, stub(text, exercise))
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
    sorted((ROOT / MISTAKES).glob("*.toml")),
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


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_grader_gives_the_solution_every_point(chapter):
    path = ROOT / "solutions" / f"{chapter}.ipynb"
    result = grade(path, path)
    assert {each.id: each.message for each in result.exercises if each.status != "passed"} == {}
