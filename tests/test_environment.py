"""conda's environment and pyproject.toml ask for the same packages."""

import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_environment_yml_lists_what_pyproject_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert "graphviz" in conda, "conda users get the dot program"
    assert f"python{project['requires-python']}" in conda
    pip = next(entry["pip"] for entry in conda if isinstance(entry, dict))
    assert sorted(pip) == sorted([*wanted, "--editable=."])


def test_torch_has_an_upper_bound():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    torch = next(entry for entry in project["dependencies"] if entry.startswith("torch>"))
    assert "<" in torch, "an open requirement pulls gigabytes of whatever CUDA build is newest"
