"""Install the course in Google Colab, from the copy of the repository in which this file lies.

The first cell of every notebook runs it there, as a program: nothing of the course can be imported yet. Colab keeps
its own Jupyter, because its pages work with those versions only. PyTorch stays as it is when the course is tested
with its version. Otherwise pip replaces it; torchvision and torchaudio belong to the old one, so they are removed.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
COLABS_OWN = {"ipykernel", "jupyterlab"}
BOUND_TO_TORCH = ["torchvision", "torchaudio"]


def needed(root: Path = ROOT) -> list[str]:
    """What the course asks for, without what Colab brings in a version of its own."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [each for each in project["dependencies"] if Requirement(each).name not in COLABS_OWN]


def replaced_torch(requirements: list[str], installed: Callable[[str], str] = version) -> str | None:
    """The version of PyTorch that is there and must be replaced; None where it fits, or where there is none."""
    torch = next(each for each in map(Requirement, requirements) if each.name == "torch")
    try:
        found = installed("torch")
    except PackageNotFoundError:
        return None
    return None if torch.specifier.contains(found, prereleases=True) else found


def main() -> None:
    """Install, and say what takes long."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    requirements = needed()
    if old := replaced_torch(requirements):
        torch = next(each for each in requirements if Requirement(each).name == "torch")
        print(f"PyTorch {old} is replaced: the course needs {torch}. This takes longest.", flush=True)
        subprocess.check_call([*pip, "uninstall", "--yes", *BOUND_TO_TORCH])
    subprocess.check_call([*pip, "install", *requirements])
    subprocess.check_call([*pip, "install", "--no-deps", "--editable", str(ROOT)])


if __name__ == "__main__":
    main()
