"""The kernel that runs a learner's answers."""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from course_lib.grading import landlock
from course_lib.grading.sandbox import run_notebook

TWICE = """
import pathlib, sys
from jupyter_client.asynchronous import AsyncKernelClient

begun, ready = [], AsyncKernelClient.wait_for_ready

async def first_fails(self, timeout=None):
    begun.append(self)
    if len(begun) == 1:
        raise RuntimeError("Kernel didn't respond in 60 seconds")
    await ready(self, timeout)

AsyncKernelClient.wait_for_ready = first_fails
from course_lib.grading.runner import run

run(pathlib.Path(sys.argv[1]), 1)
"""


def test_a_kernel_that_does_not_answer_is_started_once_more(tmp_path):
    cell = new_code_cell("print(6 * 7)", metadata={"course": {"timeout": 60}})
    nbformat.write(new_notebook(cells=[cell]), tmp_path / "one.ipynb")
    command = [sys.executable, "-c", TWICE, tmp_path / "one.ipynb"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    begin, end = map(json.loads, done.stdout.splitlines())
    assert (begin["event"], end["passed"], end["stdout"]) == ("begin", True, "42\n")


def run(source, **options):
    """The outcome of a notebook of one cell: whether it passed, and what it printed or raised."""
    seen = []
    cell = new_code_cell(source, metadata={"course": {"timeout": 60}})
    run_notebook(new_notebook(cells=[cell]), lambda event: seen.append(event), time_limit=250, **options)
    return next((e["passed"], e["stdout"] + e["evalue"]) for e in seen if e["event"] == "end")


WRITES = """
import os
for place in {places!r}:
    try:
        open(os.path.join(place, {name!r}), "w").close()
        print("written")
    except PermissionError:
        print("refused")
"""


@pytest.mark.skipif(not landlock.available(), reason="this system has no Landlock")
def test_an_answer_cannot_write_at_home_nor_in_the_environment(tmp_path, monkeypatch):
    """A .pth file in the environment once stayed, and ran in every later Python."""
    home, name = tmp_path / "home", f"of-a-test-{os.getpid()}.pth"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    places = [str(home), sysconfig.get_path("purelib"), sys.base_prefix, "."]
    try:
        _, said = run(WRITES.format(places=places, name=name), kept=[tmp_path / "course"])
    finally:
        left = [file for place in places[:3] if (file := Path(place, name)).exists()]
        for file in left:
            file.unlink()
    assert said.split() == ["refused"] * 3 + ["written"]
    assert left == []


def test_the_folder_of_a_grader_that_was_killed_goes_with_the_next_grading(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / f"grade-{gone.pid}-abc").mkdir()
    (tmp_path / f"grade-{gone.pid}-abc" / "graded.ipynb").touch()
    (tmp_path / f"grade-{os.getppid()}-abc").mkdir()  # that of one who grades at the same time
    assert run("print('graded')") == (True, "graded\n")
    assert [path.name for path in tmp_path.iterdir()] == [f"grade-{os.getppid()}-abc"]
