"""The grader: right answers earn, wrong ones do not, and an accident costs its own exercise and no other."""

import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fixture_checks
import nbformat
import psutil
import pytest
from graded_here import run_here
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_lib.grading import grade as grader
from course_lib.grading.grade import grade
from course_lib.grading.sandbox import RUN, Limits, run
from course_lib.notebooks.build import build, read_notebook
from course_lib.notebooks.places import chapter_path

SLEEP = f"1000.{os.getpid()}"  # seconds of a process that only this run can have started
FOLDER = os.path.dirname(fixture_checks.__file__)
SETUP = f"import sys\nsys.path[:0] = [{FOLDER!r}]\nfrom fixture_checks import check"
SECONDS = 4  # for a cell: the answers here need none, a busy machine may
RIGHT = {
    "98.1": "# EXERCISE 98.1\ndef double(x):\n    return 2 * x",
    "98.2": "# EXERCISE 98.2\nfrom itertools import accumulate\ndef running_sums(v):\n    return list(accumulate(v))",
    "98.3": "# EXERCISE 98.3\nclass Counter:\n    n = 0\n\n    def __call__(self):\n"
    "        self.n += 1\n        return self.n",
}
WRONG = {
    "98.1": "# EXERCISE 98.1\ndef double(x):\n    return x * x",
    "98.2": "# EXERCISE 98.2\ndef running_sums(v):\n    return v",
    "98.3": "# EXERCISE 98.3\nclass Counter:\n    def __call__(self):\n        return 1",
}


def hand_in(chapter, answers):
    """The exercise notebook with these answers in it."""
    build(chapter.path, chapter.exercises)
    notebook = read_notebook(chapter.exercise)
    for number, source in answers.items():
        chapter.find(notebook, f"answer-{number[-1]}").source = source
    return notebook


def graded(chapter, notebook, **options):
    nbformat.write(notebook, chapter.exercise)
    result = grade(chapter.path, chapter.exercise, cell_timeout=SECONDS, **options)
    return {each.id: each for each in result.exercises}


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files that no other test shares."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def left_over(temporary):
    """Files of the grader, and processes that were told to put theirs there."""
    processes = []
    for process in psutil.process_iter():
        try:
            here = process.environ().get("TMPDIR", "").startswith(str(temporary))
            if here and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except (psutil.Error, OSError):
            continue
    return [*temporary.iterdir(), *processes]


def test_right_answers_earn_and_wrong_ones_are_told_why(chapter, temporary):
    seen = []
    answers = RIGHT | {"98.1": WRONG["98.1"]}
    results = graded(chapter, hand_in(chapter, answers), on_progress=lambda *event: seen.append(event))
    assert [each.status for each in results.values()] == ["failed", "passed", "passed"]
    assert results["98.1"].message.splitlines() == [
        "3: twice is 9, expected 6",
        "  This is what comes out when it is squared.",
        "-1: twice is 1, expected -2",
        "  For a hint: course hint 98.1",
    ]
    assert results["98.1"].earned == 0
    assert results["98.3"].earned == 4
    assert results["98.3"].facts == ("first call", "second call")
    assert {exercise for exercise, _, _ in seen} == {"98.1", "98.2", "98.3"}
    assert left_over(temporary) == []


def test_the_shipped_exercise_earns_nothing_and_starts_nothing(chapter, monkeypatch):
    monkeypatch.delattr(subprocess, "Popen")
    results = graded(chapter, hand_in(chapter, {}))
    assert [(each.status, each.message) for each in results.values()] == [
        ("unwritten", "not written yet: add x to itself"),
        ("unwritten", "not written yet: Running sums"),
        ("unwritten", "not written yet: A counter"),
    ]


@pytest.fixture
def no_process(monkeypatch):
    """For what a process of its own adds nothing to: its start takes longer."""
    monkeypatch.setattr(grader, "run", run_here)


@pytest.mark.usefixtures("no_process")
def test_an_answer_with_a_part_that_is_not_written_earns_nothing(chapter):
    """Its cell runs, and its check raises nothing: the check says that the rest is to be written."""
    notebook = hand_in(chapter, {"98.1": RIGHT["98.1"], "98.2": RIGHT["98.2"]})
    cell = chapter.find(notebook, "answer-3")
    cell.source += "\n\n    # to be done"
    results = graded(chapter, notebook)
    assert (results["98.3"].status, results["98.3"].earned) == ("unwritten", 0), results["98.3"].message
    assert results["98.3"].message == "not written yet: A counter"


@pytest.mark.usefixtures("no_process")
def test_edited_deleted_and_duplicated_checks_are_ignored(chapter):
    """Wrong answers whose checks were tampered with, with saved outputs that look right, and tags that skip."""
    notebook = hand_in(chapter, WRONG)
    edited = chapter.find(notebook, "check-1")
    edited.source = "print('  ✓ 3\\n  ✓ -1')  # check(\"98.1\", double)"
    edited.metadata.tags = ["nbval-skip"]
    edited.execution_count = 7
    chapter.find(notebook, "answer-1").metadata.tags = ["nbval-skip", "raises-exception"]
    notebook.cells.remove(chapter.find(notebook, "check-2"))
    extra = new_code_cell("def check(*_): print('  ✓ first call')\ncheck(\"98.3\", Counter)")
    notebook.cells.append(extra)
    results = graded(chapter, notebook)
    assert [each.earned for each in results.values()] == [0, 0, 0]
    assert [each.status for each in results.values()] == ["failed"] * 3
    notes = [each.message.splitlines()[-1].split()[1] for each in results.values()]
    assert notes == ["edited", "missing", "duplicated"]


def test_what_can_be_said_without_running_anything(chapter):
    notebook = hand_in(chapter, {"98.2": RIGHT["98.2"], "98.3": "# EXERCISE 98.3\nclass Counter(:\n    pass"})
    notebook.cells.remove(chapter.find(notebook, "answer-1"))
    notebook.cells.append(new_code_cell(RIGHT["98.2"]))
    results = graded(chapter, notebook)
    assert [each.status for each in results.values()] == ["missing", "refused", "error"]
    assert "no cell begins with `# EXERCISE 98.1`" in results["98.1"].message
    assert "2 cells begin with `# EXERCISE 98.2`" in results["98.2"].message
    assert results["98.3"].message.startswith("not Python: invalid syntax (line 2: `class Counter(:`)")


GOOD, BAD = "def double(x):\n    return 2 * x\n", "def double(x):\n    return x\n"
ACCIDENTS = [  # what happens, an answer, its status, and what is said
    (
        "an endless loop",
        "def double(x):  # NBVAL_RAISES_EXCEPTION\n    while True: pass",
        "timeout",
        f"the check took longer than {SECONDS} s, and was then in line 3 of your answer: `while True: pass`",
    ),
    (
        "an endless loop in the cell",
        "# NBVAL_SKIP\nimport time\nwhile True: time.sleep(1)",
        "timeout",
        f"the answer took longer than {SECONDS} s, and was then in line 4 of your answer",
    ),
    (
        "an endless loop that nothing interrupts",
        "import time\ndef double(x):\n    while True:\n        try:\n            time.sleep(9)\n        except: pass",
        "timeout",
        f"the check took longer than {SECONDS} s; if other",
    ),
    (
        "a check that takes long, and ends well",
        "import time\nslept = []\ndef double(x):\n    try:\n        time.sleep(0 if slept else 99)\n"
        "    except KeyboardInterrupt:\n        slept.append(x)\n    return 2 * x",
        "timeout",
        f"the check took longer than {SECONDS} s; if other",
    ),
    (
        "os._exit, with a process left behind",
        "import os, subprocess\nleft = {'PATH': os.environ['PATH'], 'COURSE_GRADING': os.environ['COURSE_GRADING']}\n"
        f"def double(x):\n    subprocess.Popen(['sleep', '{SLEEP}'], env=left, start_new_session=True)\n"
        "    os._exit(0)",
        "error",
        "the process ended in the check: by os._exit, or a crash?",
    ),
    (
        "100 MB printed",
        GOOD + "for _ in range(100):\n    print('x' * 1_000_000)",
        "error",
        "printed more than",
    ),
    (
        "100 MB printed while checked",
        "def double(x):\n    print('x' * 100_000_000)",
        "failed",
        "printed more than",
    ),
    ("a question", "def double(x):\n    return input()", "failed", "EOFError"),
    ("an early exit", GOOD + "raise SystemExit(0)", "error", "the answer's cell raised SystemExit"),
    ("an exit while checked", "def double(x):\n    raise SystemExit(0)", "failed", "SystemExit"),
    ("an error in the cell", "x = 1\nx.y", "error", "in line 3 of your answer: `x.y`"),
    ("another name", "def twice(x):\n    return 2 * x", "error", "does not define `double`"),
    ("its own check", BAD + "def check(*_):\n    print('  ✓ 3\\n  ✓ -1')", "failed", "is 3, expected 6"),
    (
        "prints the facts, then fails",
        "def double(x):\n    print('  ✓ 3\\n  ✓ -1')\n    return x",
        "failed",
        "is 3, expected 6",
    ),
    (
        "a file of the course",
        BAD + "import course_lib.data, pathlib\nfolder = pathlib.Path(course_lib.data.__file__).parents[1]\n"
        "(folder / 'grading' / 'judge.py').write_text('check = print')\nopen('left.txt', 'w').close()",
        "failed",
        "is 3, expected 6",
    ),
    (
        "names and settings left behind",
        GOOD + "import os, random\nhelper = 2\nos.environ['LEFT'] = '1'\nos.chdir('/')",
        "passed",
        "",
    ),
    (
        "another answer's name",
        "def double(x):\n    return helper * x",
        "failed",
        "name 'helper' is not defined",
    ),
    (
        "another answer's settings",
        "import os\ndef double(x):\n    return 0 if 'LEFT' in os.environ or os.getcwd() == '/' else 2 * x",
        "passed",
        "",
    ),
    ("an honest answer", GOOD + "display(double(3))\n%time double(3)", "passed", ""),
]


def test_accidents_earn_nothing_and_cost_nobody_else(tmp_path, temporary):
    """All in one notebook, since each that ends the process costs a new one; the honest answer is the last."""
    judge = Path(inspect.getfile(grade)).with_name("judge.py")
    before = judge.read_bytes()
    solved = [new_code_cell(SETUP, execution_count=1)]
    handed_in = []
    for number, (name, source, _, _) in enumerate(ACCIDENTS, 1):
        marked = f"# EXERCISE 97.{number}\ndef double(x):\n    # BEGIN SOLUTION\n    return x + x\n    # END SOLUTION"
        check = new_code_cell(f'check("97.{number}", double)', metadata={"tags": ["nbval-check-output"]})
        heading = new_markdown_cell(f"### Exercise 97.{number} · {name.capitalize()} (1 point)")
        solved += [heading, new_code_cell(marked), check]
        handed_in += [new_code_cell(f"# EXERCISE 97.{number}\n{source}"), check]
    nbformat.write(new_notebook(cells=solved), tmp_path / "97_accidents.ipynb")
    nbformat.write(new_notebook(cells=handed_in), tmp_path / "handed_in.ipynb")
    result = grade(tmp_path / "97_accidents.ipynb", tmp_path / "handed_in.ipynb", cell_timeout=SECONDS)
    for (name, _, status, message), each in zip(ACCIDENTS, result.exercises, strict=True):
        assert (name, each.status) == (name, status), each.message
        assert message in each.message, name
    assert result.earned == sum(status == "passed" for _, _, status, _ in ACCIDENTS)
    assert judge.read_bytes() == before
    assert left_over(temporary) == []
    assert not [p for p in psutil.process_iter(["cmdline"]) if SLEEP in (p.info["cmdline"] or [])]


def test_an_answer_that_takes_all_the_memory_is_ended(temporary):
    source = "kept = []\nwhile True:\n    kept.append(b'x' * (1 << 26))"
    work = [{"exercise": "98.1", "source": source, "names": [], "course": [SETUP]}]
    limits = Limits(cell=300, deadline=time.monotonic() + 300, memory=1 << 30)
    found, in_time = run(work, limits, lambda exercise: None)
    assert in_time
    assert found["98.1"].message == "the answer needs more memory than there is to spare"
    assert left_over(temporary) == []


def test_when_the_grader_is_killed_the_answers_end_too():
    process = subprocess.Popen([sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    loop = {"exercise": "98.1", "source": "", "names": [], "course": ["while True: pass"]}
    process.stdin.write(json.dumps([loop]).encode() + b"\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline()) == ["98.1", "course"]
    process.stdin.close()
    assert process.wait(timeout=60) == 3
    process.stdout.close()


def test_the_limit_for_all_runs_is_kept(chapter):
    hanging = "# EXERCISE 98.1\nimport time\n\ndef double(x):\n    time.sleep(600)"
    results = graded(chapter, hand_in(chapter, {**RIGHT, "98.1": hanging}), time_limit=4)
    assert results["98.1"].status == "timeout"
    assert results["98.3"].status == "timeout"
    assert "not reached within the 4 s" in results["98.3"].message


def test_chapters_are_found_by_number_and_name(tmp_path):
    for name in ("04_collectives", "05_ddp"):
        (tmp_path / f"{name}.ipynb").touch()
    assert [chapter_path(text, tmp_path).stem for text in ("5", "05", "05_ddp")] == ["05_ddp"] * 3
    with pytest.raises(ValueError, match="no exercises for chapter '7'; chapters with exercises: 04, 05"):
        chapter_path("7", tmp_path)
