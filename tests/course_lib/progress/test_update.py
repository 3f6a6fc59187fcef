"""``course update`` with a real remote: upstream and the learner have both changed the same notebooks."""

import os
import shutil
import subprocess
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_lib.cli import main
from course_lib.notebooks.build import build, read_notebook, write_notebook

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
CHAPTER, EXERCISE, SOLUTION = (
    "notebooks/98_fixture.ipynb",
    "exercises/98_exercises_fixture.ipynb",
    "solutions/98_fixture.ipynb",
)


def git(folder, *arguments):
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def course(chapter, tmp_path, monkeypatch):
    """The authors' folder, the server that they push to, and the learner's clone of it."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    authors, server, learner = (tmp_path / name for name in ("authors", "server.git", "learner"))
    for folder in ("notebooks", "solutions"):
        (authors / folder).mkdir(parents=True)
    cells = [
        new_markdown_cell("# 98", id="title"),
        new_code_cell("guess = predict(...)", id="guess"),
        new_code_cell("slow = 1", id="slow"),
        new_code_cell("last = 1", id="last"),
    ]
    write_notebook(new_notebook(cells=cells), authors / CHAPTER)
    shutil.copy(chapter.path, authors / SOLUTION)
    build(authors / SOLUTION, authors / "exercises")
    (authors / "README.md").write_text("one\n")
    (authors / ".gitignore").write_text(".backups/\n")
    git(tmp_path, "init", "--quiet", str(authors))
    git(tmp_path, "init", "--quiet", "--bare", str(server))
    git(authors, "remote", "add", "origin", str(server))
    publish(authors)
    git(tmp_path, "clone", "--quiet", str(server), str(learner))
    return SimpleNamespace(authors=authors, server=server, learner=learner, find=chapter.find)


def publish(authors):
    git(authors, "add", "--all")
    git(authors, "commit", "--quiet", "--message", "a version")
    git(authors, "push", "--quiet", "--set-upstream", "origin", "HEAD")


def change(path, find, **sources):
    """Give the cells of those names other sources."""
    notebook = read_notebook(path)
    for name, source in sources.items():
        find(notebook, name.replace("_", "-")).source = source
    write_notebook(notebook, path)


def the_learner_works(course):
    """Runs the chapter, guesses, changes a cell, adds one; answers 98.1 and 98.2; tries something in the solution."""
    path = course.learner / CHAPTER
    change(path, course.find, guess="guess = predict(3)", slow="slow = 2")
    mine = read_notebook(path)
    for number, cell in enumerate(mine.cells[1:], 1):
        cell.execution_count, cell.outputs = number, [new_output("stream", text="ran\n")]
    mine.cells.insert(2, new_code_cell("my_own = 1", id="mine"))
    write_notebook(mine, path)
    answers = {"answer_1": "# EXERCISE 98.1\nmine = 1", "answer_2": "# EXERCISE 98.2\nmine = 2"}
    change(course.learner / EXERCISE, course.find, **answers)
    change(course.learner / SOLUTION, course.find, setup="tried = 1")


def a_new_version(course):
    change(course.authors / CHAPTER, course.find, title="# 98, clearer", slow="slow = 3")
    solution = read_notebook(course.authors / SOLUTION)
    course.find(solution, "task-1").source += " Quickly."
    answer = course.find(solution, "answer-2")
    answer.source = answer.source.replace("def running_sums(values)", "def running_sums(values, start=0)")
    write_notebook(solution, course.authors / SOLUTION)
    build(course.authors / SOLUTION, course.authors / "exercises")
    (course.authors / "notebooks" / "99_new.ipynb").write_bytes((course.authors / CHAPTER).read_bytes())
    publish(course.authors)


def update(course, code=0):
    result = CliRunner().invoke(main, ["update", "--root", str(course.learner)])
    assert result.exit_code == code, result.output
    return result.output


def sources(path):
    return [cell.source for cell in read_notebook(path).cells]


def test_a_new_version_brings_its_text_and_keeps_what_the_learner_wrote(course):
    the_learner_works(course)
    a_new_version(course)
    before = {name: (course.learner / name).read_bytes() for name in (CHAPTER, EXERCISE, SOLUTION)}
    with pytest.raises(AssertionError, match="would be overwritten"):
        git(course.learner, "pull", "--quiet", "--ff-only")
    said = update(course)
    assert sources(course.learner / CHAPTER) == [
        "# 98, clearer",
        "guess = predict(3)",
        "my_own = 1",
        "slow = 3",
        "slow = 2",
        "last = 1",
    ]
    now = read_notebook(course.learner / EXERCISE)
    assert course.find(now, "task-1").source.endswith("Quickly.")
    assert course.find(now, "answer-1").source.endswith("mine = 1")
    assert course.find(now, "answer-2").source.endswith("mine = 2")
    assert "start=0" in (course.learner / SOLUTION).read_text()
    assert "tried = 1" not in (course.learner / SOLUTION).read_text()
    assert (course.learner / "notebooks" / "99_new.ipynb").exists()
    assert said.splitlines()[1:4] == [
        f"{EXERCISE}: kept answer 98.1, answer 98.2 (the course has changed this cell: read its task again).",
        f"{CHAPTER}: kept a cell that you had changed, a cell of your own, "
        "your version of a changed cell, below the new one.",
        f"{SOLUTION}: the course's own, without your changes.",
    ]
    kept = {path.read_bytes() for path in (course.learner / ".backups").iterdir()}
    assert kept == set(before.values())
    assert update(course) == "The course is up to date.\n"


def test_what_the_new_version_leaves_alone_stays_as_the_learner_has_it(course):
    the_learner_works(course)
    (course.learner / "my_notes.txt").write_text("mine")
    before = {
        name: (course.learner / name).read_bytes() for name in (CHAPTER, EXERCISE, SOLUTION, "my_notes.txt")
    }
    (course.authors / "README.md").write_text("two\n")
    publish(course.authors)
    update(course)
    assert (course.learner / "README.md").read_text() == "two\n"
    assert {name: (course.learner / name).read_bytes() for name in before} == before
    assert not (course.learner / ".backups").exists()


def offline(course):
    course.server.rename(course.server.with_name("gone.git"))


def own_commit(course):
    git(course.learner, "commit", "--quiet", "--all", "--message", "my answers")


def own_readme(course):
    (course.learner / "README.md").write_text("mine\n")
    (course.authors / "README.md").write_text("two\n")
    publish(course.authors)


def own_file_in_the_way(course):
    (course.learner / "more.py").write_text("mine\n")
    (course.authors / "more.py").write_text("theirs\n")
    publish(course.authors)


def no_clone(course):
    shutil.rmtree(course.learner / ".git")


def no_upstream(course):
    git(course.learner, "checkout", "--quiet", "-b", "mine")


def no_place_for_the_pull(course):
    (course.learner / ".git" / "index.lock").write_text("")


@pytest.mark.parametrize(
    ("make_so", "sentence"),
    [
        (offline, "nothing can be fetched, so nothing is changed: "),
        (own_commit, "this branch has commits of its own (1): run git pull --rebase in their place"),
        (own_readme, "both you and the new version have changed README.md: "),
        (own_file_in_the_way, "both you and the new version have changed more.py: "),
        (no_clone, " is no clone by git: "),
        (no_upstream, "no upstream configured for branch 'mine': name what it follows with "),
        (no_place_for_the_pull, "index.lock': File exists"),
    ],
)
def test_what_cannot_be_updated_is_said_in_a_sentence_and_nothing_changes(course, make_so, sentence):
    the_learner_works(course)
    a_new_version(course)
    make_so(course)
    files = [path for path in course.learner.rglob("*") if path.is_file() and ".git" not in path.parts]
    before = {path: path.read_bytes() for path in files}
    said = update(course, code=2)
    assert sentence in said
    assert said.count("\n") == 1
    assert {path: path.read_bytes() for path in files} == before


def test_a_notebook_that_cannot_be_read_is_kept_beside_the_new_one(course):
    a_new_version(course)
    (course.learner / CHAPTER).write_text("<<<<<<< mine")
    assert f"{CHAPTER}: yours cannot be read, so this is the course's own." in update(course)
    assert sources(course.learner / CHAPTER)[0] == "# 98, clearer"
    (kept,) = (course.learner / ".backups").iterdir()
    assert kept.read_text() == "<<<<<<< mine"
