"""The grader: right answers earn, wrong ones do not, and neither does anything tried in place of an answer."""

import os
import tempfile
import time
from pathlib import Path

import fixture_checks
import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import course_lib
from course_lib.grading import files, landlock
from course_lib.grading.grade import grade
from course_lib.notebooks.build import build, read_notebook
from course_lib.notebooks.places import chapter_path

SLEEP = f"1000.{os.getpid()}"  # seconds of a process that only this run can have started
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
    assert {exercise for exercise, _, _ in seen} == {"", "98.1", "98.2", "98.3"}
    assert left_over(temporary) == []


def test_the_shipped_exercise_earns_nothing_and_starts_nothing(chapter):
    begin = time.monotonic()
    results = graded(chapter, hand_in(chapter, {}))
    assert [(each.status, each.message) for each in results.values()] == [
        ("unwritten", "not written yet: add x to itself"),
        ("unwritten", "not written yet: Running sums"),
        ("unwritten", "not written yet: A counter"),
    ]
    assert time.monotonic() - begin < 1


def test_an_answer_with_a_part_that_is_not_written_earns_nothing(chapter):
    """Its cell runs, and its check raises nothing: the check says that the rest is to be written."""
    notebook = hand_in(chapter, {"98.1": RIGHT["98.1"], "98.2": RIGHT["98.2"]})
    cell = chapter.find(notebook, "answer-3")
    cell.source += "\n\n    # to be done"
    results = graded(chapter, notebook)
    assert (results["98.3"].status, results["98.3"].earned) == ("unwritten", 0), results["98.3"].message
    assert results["98.3"].message == "not written yet: A counter"


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


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(0)",
        "def double(x):  # NBVAL_RAISES_EXCEPTION\n    while True: pass",
        "# NBVAL_RAISES_EXCEPTION\nwhile True: pass",
        "# NBVAL_SKIP\ndouble = None",
        "print = lambda *_: None\ndef double(x): return 2 * x",
        "def check(*_): pass",
        "import ast\nclass Strip(ast.NodeTransformer): pass\nget_ipython().ast_transformers.append(Strip())",
        "import threading\nfor _ in range(100): threading.Thread(target=input).start()",
    ],
)
def test_attacks_in_plain_sight_are_refused_unrun(chapter, source):
    results = graded(chapter, hand_in(chapter, {"98.1": f"# EXERCISE 98.1\n{source}"}))
    assert results["98.1"].status == "refused"
    assert results["98.1"].earned == 0
    assert len(results["98.1"].message) > 20


# Attacks that get past the reader, by a name put together at run time. Each is an answer of its own; `double` is
# right where the point is that a right answer does not excuse it.
SYSTEM = "import random\nsystem = getattr(random, '_' + 'os')\nmodules = system.sys.modules\n"
GOOD, BAD = "def double(x):\n    return 2 * x\n", "def double(x):\n    return x\n"
ATTACKS = [
    (
        "redefined check",
        BAD + "check = lambda *_: print('  ✓ 3')",
        "refused",
        "redefines `check`",
    ),
    (
        "patched print",
        BAD + SYSTEM + "modules['builtins'].print = len",
        "refused",
        "changes `print` of Python",
    ),
    (
        "stripped asserts",
        GOOD + SYSTEM + "shell = modules['IPython'].get_ipython()\n"
        "shell.ast_transformers.append(modules['ast'].NodeTransformer())",
        "refused",
        "changes `ast_transformers` of IPython",
    ),
    (
        "a patch from inside the check",
        SYSTEM + "def double(x):\n    modules['builtins'].abs = len\n    return 2 * x",
        "refused",
        "changes `abs` of Python",
    ),
    (
        "a method that was not there",
        BAD + SYSTEM + "modules['course_lib.grading.judge'].Seen.__setattr__ = len",
        "refused",
        "adds `Seen.__setattr__`",
    ),
    (
        "the check's own report, through its frame",
        "def double(x):\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n"
        "        frame = getattr(getattr(error, '__trace' + 'back__'), 'tb_' + 'frame')\n"
        "    report = getattr(getattr(frame, 'f_' + 'back'), 'f_' + 'locals')['report']\n"
        "    report.equal = lambda fact, *_: report.ok(fact)\n    return x",
        "refused",
        "reads `tb_frame`",
    ),
    (
        "a frame, and the refusal caught",
        "from operator import attrgetter\ndef double(x):\n    try:\n"
        "        attrgetter('gi_' + 'frame')(i for i in ())\n    except Exception:\n        return 2 * x",
        "refused",
        "reads `gi_frame`",
    ),
    (
        "os._exit, with a process left behind",
        SYSTEM + "start = modules['subprocess'].Popen\n"
        "def double(x):\n    start(['sleep', '1000'], start_new_session=True)\n    system._exit(0)",
        "error",
        "the kernel ended in the check",
    ),
    (
        "an endless loop",
        "def double(x):\n    while True: pass",
        "timeout",
        f"the check took longer than {SECONDS} s, and was then in line 3 of your answer: `while True: pass`",
    ),
    (
        "100 threads that never end",
        GOOD + SYSTEM + "import time\nfor _ in range(100):\n"
        "    modules['threading'].Thread(target=time.sleep, args=(1e6,), daemon=False).start()",
        "refused",
        "leaves 100 threads running",
    ),
    (
        "all the memory there is",
        "def double(x):\n    kept = []\n    while True:\n        kept.append(b'x' * (1 << 26))",
        "error",
        "more memory than there is",
    ),
    (
        "100 MB printed",
        GOOD + "for _ in range(100):\n    print('x' * 1_000_000)",
        "error",
        "more than 1 MB printed",
    ),
    ("100 MB shown", BAD + "'x' * 100_000_000", "failed", "is 3, expected 6"),
    (
        "100 MB printed while checked",
        "def double(x):\n    print('x' * 100_000_000)",
        "failed",
        "answer printed more",
    ),
    ("an impossible array", "def double(x):\n    return [0] * 10**13", "failed", "MemoryError"),
    ("an early exit", GOOD + "raise SystemExit(0)", "error", "SystemExit"),
    ("an exit while checked", "def double(x):\n    raise SystemExit(0)", "failed", "SystemExit"),
    (
        "prints the facts, then fails",
        "def double(x):\n    print('  ✓ 3\\n  ✓ -1')\n    return x",
        "failed",
        "is 3, expected 6",
    ),
    (
        "equal to everything",
        "class Yes(int):\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
        "def double(x):\n    return Yes(0)",
        "failed",
        "expected 6",
    ),
    (
        "a file of the course, then the end",
        SYSTEM + f"path = {course_lib.__file__ + '.probe'!r}\n"
        "def double(x):\n    handle = system.open(path, system.O_CREAT | system.O_WRONLY)\n"
        "    system.write(handle, b'x')\n    system._exit(0)",
        *(
            ("failed", "PermissionError")
            if landlock.available()
            else ("refused", "changes files of the course")
        ),
    ),
    (
        "a child of its own session, with an environment of its own",
        GOOD + SYSTEM + f"modules['subprocess'].Popen(['sh', '-c', 'sleep {SLEEP} & sleep {SLEEP}'], "
        "env={'PATH': system.environ['PATH']}, start_new_session=True)",
        "passed",
        "",
    ),
    (
        "the check's frame, by sys",
        "import random\nsystem = getattr(random, '_' + 'os')\n"
        "def double(x):\n    return getattr(system.sys, '_get' + 'frame')(1) and 2 * x",
        "refused",
        "reads `sys._getframe`",
    ),
    (
        "names and settings left behind",
        GOOD + SYSTEM + "helper = 2\nsystem.environ['LEFT'] = '1'\nrandom.seed(0)",
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
        "another answer's setting",
        SYSTEM + "def double(x):\n    return 0 if 'LEFT' in system.environ else 2 * x",
        "passed",
        "",
    ),
    ("an honest answer", GOOD, "passed", ""),
]


def test_attacks_on_the_running_grader_earn_nothing_and_cost_nobody_else(tmp_path, temporary):
    """All in one notebook, since each that spoils the kernel costs a new one; the honest answer is the last."""
    folder = os.path.dirname(fixture_checks.__file__)
    setup = f"import sys\nsys.path.insert(0, {folder!r})\nfrom fixture_checks import check"
    solved = [new_code_cell(setup, execution_count=1)]
    handed_in = []
    facts = new_output("stream", name="stdout", text="  ✓ 3\n  ✓ -1\n")
    for number, (name, source, _, _) in enumerate(ATTACKS, 1):
        marked = f"# EXERCISE 97.{number}\ndef double(x):\n    # BEGIN SOLUTION\n    return x + x\n    # END SOLUTION"
        solved += [
            new_markdown_cell(f"### Exercise 97.{number} · {name.capitalize()} (1 point)"),
            new_code_cell(marked, execution_count=1),
            new_code_cell(
                f'check("97.{number}", double)',
                metadata={"tags": ["nbval-check-output"]},
                outputs=[facts],
                execution_count=1,
            ),
        ]
        handed_in += [new_code_cell(f"# EXERCISE 97.{number}\n{source}"), solved[-1]]
    nbformat.write(new_notebook(cells=solved), tmp_path / "97_attacks.ipynb")
    nbformat.write(new_notebook(cells=handed_in), tmp_path / "handed_in.ipynb")
    result = grade(
        tmp_path / "97_attacks.ipynb",
        tmp_path / "handed_in.ipynb",
        cell_timeout=SECONDS,
        memory_limit=1 << 30,
    )
    for (name, _, status, message), each in zip(ATTACKS, result.exercises, strict=True):
        assert (name, each.status) == (name, status), each.message
        assert message in each.message, name
    assert result.earned == sum(status == "passed" for _, _, status, _ in ATTACKS)
    assert left_over(temporary) == []
    assert not Path(course_lib.__file__ + ".probe").exists()
    assert not [
        process for process in psutil.process_iter(["cmdline"]) if SLEEP in (process.info["cmdline"] or [])
    ]


def test_without_landlock_files_are_put_back_and_the_next_answer_does_not_meet_them(
    chapter, tmp_path, monkeypatch, temporary
):
    """The first answer makes the check believe it, and ends the process; a second run would have read that."""
    package = tmp_path / "project" / "checks_of_98"
    package.mkdir(parents=True)
    source = Path(fixture_checks.__file__).read_text()
    (package / "__init__.py").write_text(source)
    monkeypatch.setattr(landlock, "available", lambda: False)
    monkeypatch.setattr(files, "PACKAGES", (package,))
    solved = read_notebook(chapter.path)
    setup = f"import sys\nsys.path.insert(0, {str(package.parent)!r})\nfrom checks_of_98 import check"
    chapter.find(solved, "setup").source = setup
    nbformat.write(solved, chapter.path)
    cheat = (
        "# EXERCISE 98.1\nimport random\nsystem = getattr(random, '_' + 'os')\n"
        f"def double(x):\n    path = {str(package / '__init__.py')!r}\n"
        "    handle = system.open(path, system.O_WRONLY | system.O_TRUNC)\n"
        "    system.write(handle, b'check = print')\n"
        f"    system.close(system.open({str(package / 'more.py')!r}, system.O_CREAT))\n"
        "    system._exit(0)"
    )
    results = graded(chapter, hand_in(chapter, {**RIGHT, "98.1": cheat, "98.2": WRONG["98.2"]}))
    assert [each.status for each in results.values()] == ["refused", "failed", "passed"]
    assert (
        "changes files of the course (checks_of_98/__init__.py, checks_of_98/more.py)"
        in results["98.1"].message
    )
    assert (package / "__init__.py").read_text() == source
    assert not (package / "more.py").exists()
    assert len(list((package.parent / ".backups").iterdir())) == 2
    assert left_over(temporary) == []


def test_the_limit_for_all_runs_is_kept(chapter):
    hanging = "# EXERCISE 98.1\ndef double(x):\n    while True:\n        pass"
    begin = time.monotonic()
    results = graded(chapter, hand_in(chapter, {**RIGHT, "98.1": hanging}), time_limit=4)
    assert time.monotonic() - begin < 10
    assert results["98.1"].status == "timeout"
    assert results["98.3"].status == "timeout"
    assert "not reached within the 4 s" in results["98.3"].message


def test_chapters_are_found_by_number_and_name(tmp_path):
    for name in ("04_collectives", "05_ddp"):
        (tmp_path / f"{name}.ipynb").touch()
    assert [chapter_path(text, tmp_path).stem for text in ("5", "05", "05_ddp")] == ["05_ddp"] * 3
    with pytest.raises(ValueError, match="no exercises for chapter '7'; chapters with exercises: 04, 05"):
        chapter_path("7", tmp_path)
