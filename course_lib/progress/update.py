"""``course update``: the newest version of the course, with the learner's answers and cells carried into it.

Running a chapter changes its notebook, and git pulls nothing over a changed file. So each notebook that both the
learner and the new version have changed is copied into ``.backups`` and put back, then git pulls, and what the learner
wrote is put into the new notebook. Nothing is touched before everything is known to work.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import nbformat

from course_lib.notebooks.build import keep_learner, read_notebook, write_notebook
from course_lib.notebooks.places import back_up

FOLDERS = ("notebooks/", "exercises/", "solutions/")  # their notebooks change when they are run
NEW = "@{upstream}"


def update(root: Path) -> list[str]:
    """Bring the course's folder to the newest version of the branch that it follows; what happened, in sentences.

    A cell that the learner changed keeps the change, unless the new version has another cell there: then both stand
    in the notebook, the learner's below. The new answer cells of ``solutions/`` win, since they grade.

    Raises:
        ValueError: it cannot be done, in one sentence. Then every file is as before.
    """
    _check(root)
    if not (commits := int(_git(root, "rev-list", "--count", f"HEAD..{NEW}"))):
        return ["The course is up to date."]
    if own := int(_git(root, "rev-list", "--count", f"{NEW}..HEAD")):
        raise ValueError(f"this branch has commits of its own ({own}): run git pull --rebase in their place")
    touched = _names(root, "diff", "--name-only", "HEAD", NEW)
    added = _names(root, "diff", "--name-only", "--diff-filter=A", "HEAD", NEW)
    in_the_way = {name for name in added if (root / name).exists()}
    mine = sorted(touched & _names(root, "diff", "--name-only", "HEAD") | in_the_way)
    others = [name for name in mine if not (name.endswith(".ipynb") and name.startswith(FOLDERS))]
    if others:
        raise ValueError(
            f"both you and the new version have changed {', '.join(others)}: move yours out of the course's folder, "
            "run git checkout on what was the course's, and update again"
        )
    was = {name: (root / name).read_bytes() for name in mine if (root / name).is_file()}
    merged = {name: _merged(root, name) for name in was}
    copies = [back_up(root / name, root) for name in was]
    try:
        for name in mine:
            if name in added:
                (root / name).unlink()
            else:
                _git(root, "checkout", "--quiet", "HEAD", "--", name)
        _git(root, "merge", "--quiet", "--ff-only", NEW)
    except BaseException:  # also Ctrl-C: the learner's files are back before anything is said
        for name, content in was.items():
            (root / name).write_bytes(content)
        raise
    said = [f"The course is up to date now, with {commits} new commit{'s' * (commits > 1)}."]
    for name, (notebook, kept) in merged.items():
        if kept:
            said.append(f"{name}: {', '.join(kept)}.")
        if notebook is not None:
            write_notebook(notebook, root / name)
    if copies:
        folder = copies[0].parent.relative_to(root)
        said.append(
            f"As you had them, the {len(copies)} notebooks that have changed on both sides are in {folder}."
        )
        said.append("If one is open in JupyterLab, load it again: File, Reload Notebook from Disk.")
    if touched & {"pyproject.toml", "constraints.txt"}:
        said.append("The course needs other packages now: run make setup.")
    return said


def _check(root: Path) -> None:
    """Fetch what is new. Refuses what is no clone, follows nothing, is within a merge, or cannot reach its origin."""
    try:
        top = _git(root, "rev-parse", "--show-toplevel").strip()
    except ValueError:
        top = ""
    if not top or Path(top).resolve() != root:
        raise ValueError(
            f"{root} is no clone by git: get the new course beside it, and copy your exercises/ there"
        )
    try:
        _git(root, "rev-parse", NEW)
    except ValueError as error:
        raise ValueError(f"{error}: name what it follows with git branch --set-upstream-to") from None
    if _git(root, "ls-files", "--unmerged"):
        raise ValueError("a merge is unfinished here: end it, or take it back with git merge --abort")
    try:
        _git(root, "fetch", "--quiet")
    except ValueError as error:
        raise ValueError(f"nothing can be fetched, so nothing is changed: {error}") from None


def _merged(root: Path, name: str) -> tuple[nbformat.NotebookNode | None, list[str]]:
    """The new version of a notebook with the learner's cells, or None where it stays as it is; and what was kept."""
    new, base = _notebook_at(root, NEW, name), _notebook_at(root, "HEAD", name)
    if new is None:
        return None, ["the new version has no such notebook"]
    if name.startswith("solutions/"):
        return None, ["the course's own, without your changes"]
    try:
        old = read_notebook(root / name)
    except ValueError:
        return None, ["yours cannot be read, so this is the course's own"]
    kept = keep_learner(new, old, base)
    return (new, ["kept " + kept[0], *kept[1:]]) if kept else (None, [])


def _notebook_at(root: Path, commit: str, name: str) -> nbformat.NotebookNode | None:
    try:
        return nbformat.reads(_git(root, "show", f"{commit}:{name}"), as_version=4)
    except ValueError:  # it is not in that version
        return None


def _names(root: Path, command: str, *options: str) -> set[str]:
    return set(filter(None, _git(root, command, "-z", *options).split("\0")))


def _git(root: Path, *arguments: str) -> str:
    """What git prints. A ValueError says why it failed."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, encoding="utf-8")
    except FileNotFoundError:
        raise ValueError("there is no git on the PATH, and the course is updated with it") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"git {arguments[0]} ended with {done.returncode}"]
        raise ValueError(lines[0].removeprefix("fatal: ").removeprefix("error: ").rstrip(".:"))
    return done.stdout
