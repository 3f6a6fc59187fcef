"""``course lab``: which JupyterLab it starts, on which folder, with which environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.lab import SETTINGS, chapter_notebook, lab_command, lab_environment
from course_lib.notebooks.places import course_root

ROOT = Path(__file__).parents[2]


def test_the_whole_course_is_the_root_and_a_chapter_is_opened():
    assert course_root() == ROOT
    command = lab_command(ROOT, ["--no-browser", "--port=8899"])
    assert f"--ServerApp.root_dir={ROOT}" in command
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in command
    assert command[-2:] == ["--no-browser", "--port=8899"]
    assert "--LabApp.default_url=/lab/tree/notebooks/05_ddp.ipynb" in lab_command(ROOT, chapter="5")


def test_an_unknown_chapter_or_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match="there is no chapter '77'; there are 00, 01"):
        chapter_notebook(ROOT, "77")
    with pytest.raises(ValueError, match=r"is not the course's folder.*--root"):
        chapter_notebook(tmp_path, "00")


def test_the_environment_has_course_on_its_path_and_the_readers_settings_stay():
    course = str(Path(sys.executable).parent)
    before = {"PATH": f"/usr/bin{os.pathsep}{course}", "JUPYTER_CONFIG_PATH": "/mine", "HOME": "/home/me"}
    after = lab_environment(ROOT, before)
    assert after["PATH"].split(os.pathsep) == [course, "/usr/bin"]
    assert after["JUPYTER_CONFIG_PATH"].split(os.pathsep) == [str(SETTINGS), "/mine"]
    assert after["HOME"] == "/home/me"
    assert "JUPYTER_CONFIG_DIR" not in after
    assert lab_environment(ROOT, after) == after


def test_binder_reads_the_same_settings():
    show = [sys.executable, "-c", "import os; print(os.environ['JUPYTER_CONFIG_PATH'])"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [ROOT / "binder" / "start", *show]
    said = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert said.stdout.strip() == str(SETTINGS)
    config = json.loads((SETTINGS / "jupyter_server_config.json").read_text())
    assert (ROOT / config["LabApp"]["default_url"].removeprefix("/lab/tree/")).exists()
