"""A copy of the course, a JupyterLab that serves it and a headless Chromium that looks at it, for as long as a block.

However the block ends, also when the process in which it runs is killed, the processes are ended (``keeper.py``;
Chromium ends with playwright's own) and the folders with everything that they wrote are deleted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from keeper import KEEP_THE_REST
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[2]
SHOWN = (
    "README.md",
    "CONTRIBUTING.md",
    "notebooks",
    "exercises",
    "solutions",
    "course_lib",
    "simulator",
    "docs",
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
COPY = "course-browser-"  # how the folder of a copy begins
KEEPER = Path(__file__).with_name("keeper.py")
STARTS_WITHIN = 120  # seconds; JupyterLab takes two or three on an idle machine


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: ``url`` as it would be opened by the reader's browser, ``root`` as in its file browser."""

    root: Path
    address: str  # http://127.0.0.1:8888
    token: str
    opens: str  # the path that it opens: /lab/tree/notebooks/00_start_here.ipynb

    def url(self, path: str = "") -> str:
        """The address of a file of the course, or of what JupyterLab itself opens."""
        return f"{self.address}{f'/lab/tree/{path}' if path else self.opens}?token={self.token}"

    def start_kernel(self) -> None:
        self._ask("POST", "/api/kernels")

    def end_kernels(self) -> None:
        """End all kernels: they go on when the page that started them is closed."""
        for kernel in self._ask("GET", "/api/kernels"):
            self._ask("DELETE", f"/api/kernels/{kernel['id']}")

    def _ask(self, method: str, path: str) -> Any:
        request = urllib.request.Request(
            self.address + path, method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read() or "null")


@contextmanager
def course_copy() -> Iterator[Path]:
    """A folder with the course's files, which may be changed."""
    with tempfile.TemporaryDirectory(prefix=COPY, ignore_cleanup_errors=True) as folder:
        root = Path(folder) / "course"
        root.mkdir()
        for name in SHOWN:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
                shutil.copytree(ROOT / name, root / name, ignore=ignored)
            elif (ROOT / name).exists():
                shutil.copy(ROOT / name, root / name)
        yield root


@contextmanager
def jupyterlab(root: Path, *arguments: str, commands: bool = False) -> Iterator[Lab]:
    """``course lab`` on ``root``, on a free port, with nothing of this machine's user in it.

    With ``commands`` JupyterLab's own commands can be called from the page, and every cell is in the page, too,
    also when it is far outside the window.
    """
    own = Path(tempfile.mkdtemp(prefix="course-jupyter-"))
    places = {
        "JUPYTER_RUNTIME_DIR": own / "runtime",
        "JUPYTER_CONFIG_DIR": own / "config",
        "JUPYTERLAB_SETTINGS_DIR": own / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": own / "workspaces",
        "IPYTHONDIR": own / "ipython",
        "TMPDIR": own / "tmp",
    }
    places["TMPDIR"].mkdir()
    if commands:
        arguments = (*arguments, "--LabApp.expose_app_in_browser=True")
        folder = places["JUPYTERLAB_SETTINGS_DIR"] / "@jupyterlab" / "notebook-extension"
        folder.mkdir(parents=True)
        (folder / "tracker.jupyterlab-settings").write_text('{"windowingMode": "none"}')
    command = [sys.executable, "-m", "course_lib", "lab", "--root", str(root), *arguments]
    command += ["--no-browser", "--ip=127.0.0.1", "--port=0"]
    to_delete = [own, *([root.parent] if root.parent.name.startswith(COPY) else [])]
    log = own / "log"
    # Nothing of pytest's: the course behaves differently under it.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    with log.open("wb") as words:
        keeper = subprocess.Popen(
            [sys.executable, KEEPER, *to_delete, "--", *command],
            cwd=tempfile.gettempdir(),
            env={**environment, **{name: str(place) for name, place in places.items()}},
            stdin=subprocess.PIPE,
            stdout=words,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the starter alone
        )
    try:
        yield _started(keeper, places["JUPYTER_RUNTIME_DIR"], root, log)
    finally:
        keeper.communicate(KEEP_THE_REST)


def _started(keeper: subprocess.Popen, runtime: Path, root: Path, log: Path) -> Lab:
    """Wait until the server answers; it writes down where it listens."""
    deadline = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < deadline and keeper.poll() is None:
        with suppress(StopIteration, OSError, ValueError):  # not written yet, half written, not listening yet
            server = json.loads(next(runtime.glob("jpserver-*.json")).read_text())
            address, token = f"http://127.0.0.1:{server['port']}", server["token"]
            with urllib.request.urlopen(f"{address}/api/status?token={token}", timeout=5):
                break
        time.sleep(0.05)
    else:
        raise RuntimeError(f"JupyterLab did not start:\n{log.read_text(errors='replace')}")
    line = next(line for line in log.read_text().splitlines() if f":{server['port']}/" in line)
    opens = line.split(f":{server['port']}", 1)[1].partition("?")[0]
    return Lab(root, address, token, opens)


def find_chromium() -> str | None:
    """The program to drive: the system's Chromium or Chrome, or the one that playwright has downloaded."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser.

    Raises:
        FileNotFoundError: when there is none on this machine.
    """
    program = find_chromium()
    if program is None:
        raise FileNotFoundError(
            f"there is no Chromium: none of {', '.join(NAMES)} is on the PATH, and playwright has none of its own. "
            "Install one with `apt-get install chromium` or `python -m playwright install chromium`."
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def chromium_or_skip() -> Iterator[Browser]:
    """For fixtures: a headless browser; where none is installed, the tests that ask for it are skipped and say why."""
    with ExitStack() as stack:
        try:
            browser = stack.enter_context(chromium())
        except FileNotFoundError as error:
            pytest.skip(str(error))
        yield browser
