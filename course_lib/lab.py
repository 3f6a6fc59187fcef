"""``course lab``: JupyterLab on the whole course, with a chapter in front.

JupyterLab makes the folder of a notebook that it is started with its root, and nothing outside can then be opened.
So the course's folder is named as the root, and the chapter as the address that the browser opens.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from course_lib.notebooks.places import chapters_in

FIRST = "00"
SETTINGS = Path(__file__).parent / "jupyter"  # defaults that the course brings; the reader's own settings win


def lab_command(root: Path, arguments: Sequence[str] = (), chapter: str = FIRST) -> list[str]:
    """The command line of JupyterLab on ``root``; ``arguments`` are JupyterLab's own and win over the course's.

    Raises:
        ValueError: when there is no such chapter; names those there are.
    """
    notebook = chapter_notebook(root, chapter)
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{notebook.relative_to(root).as_posix()}",
    ]
    if os.name != "nt":  # not as a login shell, which would set PATH anew and lose `course`
        shell = os.environ.get("SHELL") or shutil.which("bash") or "sh"
        command.append(f"--ServerApp.terminado_settings=shell_command={[shell]}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # a container's user; JupyterLab refuses otherwise
    return [*command, *arguments]


def chapter_notebook(root: Path, chapter: str) -> Path:
    """The notebook of chapter ``"5"``, ``"05"`` or ``"05_ddp"``.

    Raises:
        ValueError: when there is none.
    """
    known = chapters_in(root / "notebooks")
    if not known:
        raise ValueError(f"{root} is not the course's folder: it has no notebooks/; name it with --root")
    for path in known:
        if chapter in (path.stem, path.stem[:2], path.stem[:2].removeprefix("0")):
            return path
    raise ValueError(f"there is no chapter {chapter!r}; there are {', '.join(p.stem[:2] for p in known)}")


def lab_environment(root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment that JupyterLab, its kernels and its terminals get.

    ``course`` is on the PATH of its terminals. The course's settings are read before the reader's own, which are
    neither changed nor hidden. Open tabs are remembered in the course's folder: those of another project, which
    JupyterLab would look for under this root, are not opened here.
    """
    changed = dict(environment)
    _put_first(changed, "PATH", Path(sys.executable).parent)
    _put_first(changed, "JUPYTER_CONFIG_PATH", SETTINGS)
    changed.setdefault(
        "JUPYTER_PREFER_ENV_PATH", "1"
    )  # this environment's kernel, not one in the home folder
    changed.setdefault("JUPYTERLAB_WORKSPACES_DIR", str(root / ".jupyter" / "workspaces"))
    return changed


def _put_first(environment: dict[str, str], name: str, folder: Path) -> None:
    rest = [entry for entry in environment.get(name, "").split(os.pathsep) if entry and entry != str(folder)]
    environment[name] = os.pathsep.join([str(folder), *rest])


def run_lab(root: Path, arguments: Sequence[str] = (), chapter: str = FIRST) -> int:
    """Become JupyterLab, so that signals and the exit code are its own; on Windows, wait for it."""
    command, environment = lab_command(root, arguments, chapter), lab_environment(root, os.environ)
    if os.name == "nt":
        return subprocess.run(command, env=environment).returncode
    sys.stdout.flush()
    os.execve(command[0], command, environment)
