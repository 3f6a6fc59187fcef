"""Buttons in an exercise notebook: a hint below a check that failed, and at the end the chapter's grade.

They press what stands in the terminal as well: ``course hint 05.2``, ``course grade 05``, ``course progress`` and
``course next``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from course_lib.notebooks.places import course_root
from course_lib.observe.show.game import as_mime, live


def desk(chapter: str) -> None:
    """Show the buttons that grade chapter ``"05"``, show the points of all, and say what is next."""
    graded = {f"grade chapter {chapter}": ("grade", chapter)}
    _buttons("Saved? Then", graded | {"my points": ("progress",), "what is next?": ("next",)})


def offer_hint(exercise: str) -> None:
    """Below the cell that runs now, a button for the next hint to exercise ``"05.2"``; for a program nothing."""
    from IPython import get_ipython

    shell: Any = get_ipython()
    kernel = getattr(shell, "kernel", None)
    if kernel is None or not kernel.get_parent().get("content", {}).get("allow_stdin"):
        return

    def show(_: Any) -> None:
        shell.events.unregister("post_run_cell", show)
        _buttons("", {f"a hint for {exercise}": ("hint", exercise)})

    shell.events.register("post_run_cell", show)


def _buttons(name: str, commands: Mapping[str, tuple[str, ...]]) -> None:
    """A button for each command of ``course``, and below them what it says; their words where no button can be."""
    buttons = live(given={"name": name, "choices": list(commands), "note": ""}, said=None)
    if buttons is None:
        print("\n".join(f"course {' '.join(command)}" for command in commands.values()))
        return
    from IPython.display import display

    answer = live(html="")

    def press(change: Any) -> None:
        if change.new in commands:
            answer.html = f"<p>{escape(change.new)} …</p>"
            answer.html = f"<pre style='word-break: normal'>{escape(course(*commands[change.new]))}</pre>"
            buttons.said = None  # so that it can be pressed again

    buttons.observe(press, "said")
    for view, text in ((buttons, " · ".join(commands)), (answer, "")):
        display({"text/plain": text, **as_mime(view)}, raw=True)


def course(*arguments: str) -> str:
    """What ``course hint 05.2`` says in a terminal of 68 columns."""
    here = Path.cwd().parent  # a kernel runs in the folder of its notebook
    root = here if (here / "solutions").is_dir() else course_root()
    command = [sys.executable, "-m", "course_lib.cli", *arguments, "--root", str(root)]
    plain = {"COLUMNS": "68", "NO_COLOR": "1", "FORCE_COLOR": ""}  # kernels ask for colours
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **plain})
    return (run.stdout if run.returncode < 2 else run.stderr).strip()
