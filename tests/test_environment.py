"""constraints.txt pins what pyproject.toml asks for, and installs use it; Binder and Codespaces get the CPU build.

And what ``make lab`` says while it installs.
"""

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PINNED = ("-c", "constraints.txt")
CPU = ("--torch-backend", "cpu")  # of uv, which knows the address of each build


def test_conda_installs_the_course_in_the_tested_versions():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert "graphviz" in conda, "conda users get the dot program"
    pip = next(entry["pip"] for entry in conda if isinstance(entry, dict))
    assert pip == ["--editable=.", "--constraint=constraints.txt"]


def test_every_requirement_has_a_tested_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    wanted = [Requirement(r) for r in project["dependencies"] + project["optional-dependencies"]["dev"]]
    for each in wanted:
        if each.name != "triton":  # comes with the build of PyTorch
            assert each.specifier.contains(pinned[canonicalize_name(each.name)]), each


def torch_requirement():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return next(entry for entry in project["dependencies"] if entry.startswith("torch>"))


def test_torch_has_an_upper_bound():
    assert "<" in torch_requirement(), "an open requirement pulls gigabytes of whatever CUDA build is newest"


def test_binder_installs_the_cpu_build():
    lines = [shlex.split(line) for line in (ROOT / "binder/postBuild").read_text().splitlines()]
    (install,) = [line for line in lines if line[:3] == ["uv", "pip", "install"]]
    assert CPU in pairwise(install)


def installs(**environment):
    """What ``make setup`` would run on a machine without the environment; nothing is run."""
    told = subprocess.run(
        ["make", "--dry-run", "--always-make", "setup"],
        cwd=ROOT,
        env={**os.environ, "TORCH_BUILD": "", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return [shlex.split(line) for line in told.stdout.splitlines() if " install " in line]


def test_make_installs_with_pip_or_the_build_that_is_named_with_uv():
    (plain,) = installs()
    assert plain[-1] == ".[dev]"
    assert PINNED in pairwise(plain)
    assert "--torch-backend" not in plain
    uv, course = installs(TORCH_BUILD="cpu")
    assert uv[-1] == "uv"
    assert course[-1] == ".[dev]"
    assert PINNED in pairwise(course)
    assert CPU in pairwise(course)


def test_codespaces_installs_the_cpu_build():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert container["containerEnv"] == {"TORCH_BUILD": "cpu"}


PYTHON = """\
#!/bin/sh
case "$2" in
    venv) mkdir -p .venv/bin && cp "$0" .venv/bin/python && cp "$0" .venv/bin/course;;
    pip) echo "$@";;
esac
"""


@pytest.mark.parametrize(("terminal", "ci"), [(True, ""), (True, "true"), (False, ""), (False, "true")])
def test_make_lab_says_what_it_does_and_is_quiet_in_ci(tmp_path, terminal, ci):
    """With a Python that only says what it was asked for."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (python := tmp_path / "python").write_text(PYTHON)
    python.chmod(0o755)
    ours, theirs = pty.openpty() if terminal else os.pipe()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    subprocess.run(
        ["make", "lab", f"PYTHON={python}", "TORCH_BUILD="],
        cwd=tmp_path,
        env={**environment, "CI": ci},
        stdout=theirs,
        stderr=theirs,
        check=True,
    )
    os.write(theirs, b"end")
    said = b""
    while not said.endswith(b"end"):
        said += os.read(ours, 4096)
    os.close(ours)
    os.close(theirs)
    *lines, _ = said.decode().splitlines()
    (pip,) = [line for line in lines if line.startswith("-m pip install")]
    assert (" -q" in pip) == (not terminal or bool(ci)), "pip shows its bars at a terminal alone"
    steps = [re.fullmatch(r"\[ *\d+ s\] (.+)", line)[1] for line in lines if line != pip]
    begin = ["Making", "Installing", "Installed", "Starting"]
    assert [step.split()[0] for step in steps] == ([] if ci else begin)
