"""conda's environment and pyproject.toml ask for the same packages; where there is no GPU, torch comes without CUDA."""

import json
import shlex
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"  # as pytorch.org/get-started says


def test_environment_yml_lists_what_pyproject_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert "graphviz" in conda, "conda users get the dot program"
    assert f"python{project['requires-python']}" in conda
    pip = next(entry["pip"] for entry in conda if isinstance(entry, dict))
    assert sorted(pip) == sorted([*wanted, "--editable=.", f"--extra-index-url {CPU_BUILDS}"])


def torch_requirement():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return next(entry for entry in project["dependencies"] if entry.startswith("torch>"))


def test_torch_has_an_upper_bound():
    assert "<" in torch_requirement(), "an open requirement pulls gigabytes of whatever CUDA build is newest"


def test_pip_prefers_a_cpu_build_to_the_same_version_from_pypi():
    """So an extra index is enough: PyPI's file 2.13.0 and the index's 2.13.0+cpu both fit, and the second is newer."""
    assert Requirement(torch_requirement()).specifier.contains("2.13.0+cpu")
    assert Version("2.13.0+cpu") > Version("2.13.0")


def test_binder_installs_the_cpu_build():
    lines = (ROOT / "binder/postBuild").read_text().splitlines()
    (install,) = [shlex.split(line) for line in lines if line.startswith("pip install")]
    assert install[install.index("--extra-index-url") + 1] == CPU_BUILDS


def test_codespaces_installs_the_cpu_build():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert container["containerEnv"] == {"PIP_EXTRA_INDEX_URL": CPU_BUILDS}
