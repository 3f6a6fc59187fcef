"""The cell of chapter 00 in which a reader says which lane they want."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from types import EllipsisType
from typing import Any

from course_lib.chapters.course_map import LANES
from course_lib.notebooks.places import course_root
from course_lib.observe.show.commitment import Bet, remember
from course_lib.observe.show.game import as_mime, ask, live
from course_lib.progress.next_step import next_step
from course_lib.progress.points import choose_lane, lane_of


class Lane(Bet):
    """The question for a lane, which has no wrong answer."""

    def __str__(self) -> str:
        lines = [f"    {number}  {choice}" for number, choice in enumerate(self.choices, 1)]
        return "\n".join([f"{self.name} (a number in place of ...)", *lines])


class Next:
    """What to read next, with links; in a notebook it follows the buttons above it."""

    def __init__(self, asked: Bet, root: Path) -> None:
        self.asked, self.root = asked, root

    def __repr__(self) -> str:
        if self.asked.value is not None:
            choose_lane(self.asked.value, self.root)
        return "\n".join(next_step(self.root))

    def html(self) -> str:
        lines = "".join(f"<p>{escape(line)}</p>" for line in repr(self).splitlines())
        return re.sub(r"(notebooks|exercises)/\w+\.ipynb", _link, lines)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        view = live(html=self.html())
        if view is not None:
            self.asked.then.append(lambda: setattr(view, "html", self.html()))
        return {"text/plain": repr(self), "text/html": self.html(), **as_mime(view)}


def _link(found: re.Match[str]) -> str:
    """A link from chapter 00 to a notebook; JupyterLab opens it beside the others by its command."""
    path, folder = found[0], found[1]
    place = path.removeprefix("notebooks/") if folder == "notebooks" else f"../{path}"
    opens = f'data-commandlinker-command="docmanager:open" data-commandlinker-args=\'{{"path": "{path}"}}\''
    return f'<a href="{place}" {opens}>{path}</a>'


def my_lane(lane: int | str | EllipsisType = ..., root: Path | None = None) -> Next:
    """Ask for a lane of the map and say what to read next; ``course next`` follows the lane from now on.

    Args:
        lane: its number or its name, or ``...`` for a press of a button; what was chosen before stays.
        root: the course's folder, where it is not the one installed from.
    """
    root = root or course_root()
    chosen = lane_of(root) if lane is ... else lane
    asked = remember(Lane("my lane", choices=tuple(LANES)), ... if chosen is None else chosen)
    ask(asked)
    return Next(asked, root)
