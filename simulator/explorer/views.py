"""What a notebook shows: a still picture, a live view in its place, and the same as a page of its own."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from simulator.explorer.bundle import fragment, standalone
from simulator.explorer.calculator import MemoryQuestion, known, names
from simulator.explorer.measured import Measured
from simulator.explorer.own import Own, lists_of, schedule_of
from simulator.explorer.question import OWN, Question
from simulator.inputs.checks import at_least, positive
from simulator.pipeline.engine import simulate
from simulator.pipeline.execution import Execution
from simulator.predict.memory import plan_memory

MOST_IN_A_STILL = 3000  # actions; with more of them, drawing the still picture takes longer than a second


class View(ABC):
    """A notebook shows it; ``save`` writes it as a page, ``iframe`` embeds that page."""

    @abstractmethod
    def page(self) -> tuple[str, dict[str, Any], str]:
        """What the page is made of: its script, what it starts with, and its title."""

    def html(self) -> str:
        """The page: one HTML file that needs nothing else, and computes in the browser."""
        return standalone(*self.page())

    def fragment(self) -> str:
        """The view as a part of a page that has a title."""
        main, given, _ = self.page()
        return fragment(main, given)

    @abstractmethod
    def widget(self) -> Any:
        """The live view alone, as an anywidget."""

    @abstractmethod
    def still(self) -> dict[str, str]:
        """What is seen where nothing can be live."""

    def save(self, path: str | Path) -> None:
        """Write the page; any browser opens it, without a network."""
        Path(path).write_text(self.html(), encoding="utf-8")

    def iframe(self, height: int = 900) -> str:
        """The page as an ``<iframe srcdoc>``, for a static page or a notebook without a kernel."""
        at_least(1, height=height)
        page = escape(self.html(), quote=True)
        title = "Explorer"
        return f'<iframe title="{title}" width="100%" height="{height}" style="border: 0" srcdoc="{page}"></iframe>'

    def _ipython_display_(self) -> None:
        """First the picture, for GitHub and for readers without a kernel; then the live view."""
        from IPython.display import display

        display(self.still(), raw=True)
        if "google.colab" in sys.modules:  # Colab shows no widget of others before it has been told to
            from google.colab import output  # pyright: ignore[reportMissingImports]

            output.enable_custom_widget_manager()
        display(self.widget())


class Explorer(View):
    """A pipeline schedule; ``own`` is one that a reader has written, ``challenge`` a task, ``measured`` a real step."""

    def __init__(
        self,
        question: Question,
        own: Own | None = None,
        challenge: dict[str, float] | None = None,
        measured: Measured | None = None,
    ) -> None:
        schedule_of(question, own)  # refuses what cannot be shown
        if challenge is not None:
            if set(challenge) != {"makespan", "bytes"}:
                raise ValueError(
                    f"a challenge must have a makespan and bytes, not {', '.join(challenge) or 'nothing'}"
                )
            positive(**challenge)
            if measured is not None:
                raise ValueError("a challenge must have no measured step: it would give the answer away")
        self.question, self.own, self.challenge, self.measured = question, own, challenge, measured

    def page(self) -> tuple[str, dict[str, Any], str]:
        """What the page is made of; a schedule of the reader's own stands in it as it is now."""
        own = lists_of(schedule_of(self.question, self.own)) if self.question.schedule == OWN else None
        return "main", self._given(own), "Pipeline explorer"

    def address(self) -> str:
        """What stands behind the # of the page's address when it shows just this, a challenge, too."""
        task = "" if self.challenge is None else "&" + urlencode({"challenge": json.dumps(self.challenge)})
        return self.question.address() + task

    def execution(self) -> Execution:
        """What is shown first, as the simulator's own timeline."""
        schedule = schedule_of(self.question, self.own)
        return simulate(schedule, **replace(self.question, chunks=schedule.chunks).times)

    def widget(self) -> Any:
        """The live view alone, as an anywidget."""
        from simulator.explorer.widget import new_widget, reply_to

        return new_widget("main", self._given(self.own is not None), partial(reply_to, own=self.own))

    def _given(self, own: dict[str, Any] | bool | None) -> dict[str, Any]:
        measured = None if self.measured is None else self.measured.as_dict()
        return {
            "question": self.question.as_dict(),
            "own": own,
            "challenge": self.challenge,
            "measured": measured,
            "defaults": Question().as_dict(),
        }

    def still(self) -> dict[str, str]:
        """A picture, or a sentence where there is too much to draw."""
        if self.challenge:  # the picture would give the answer away
            text = "A challenge: run this cell to see it."
            return {"text/plain": text, "text/html": f'<p class="explorer-still">{text}</p>'}
        execution = self.execution()
        if len(execution.schedule) > MOST_IN_A_STILL:
            text = f"{execution.schedule.name}: {execution.makespan:.4g} long, {execution.bubble():.1%} idle"
            return {"text/plain": text, "text/html": f'<p class="explorer-still">{escape(text)}</p>'}
        from simulator.plots import plot_timeline

        if self.measured is None:
            return _marked(plot_timeline(execution))
        return _marked(
            plot_timeline(self.measured.timeline(), over=[execution], titles=[execution.schedule.name])
        )


class MemoryExplorer(View):
    """What each rank holds under a plan."""

    def __init__(self, question: MemoryQuestion) -> None:
        self.question = question

    def page(self) -> tuple[str, dict[str, Any], str]:
        """What the page is made of."""
        return "calculator_main", self._given(), "Memory calculator"

    def address(self) -> str:
        """What stands behind the # of the page's address when it shows just this."""
        return self.question.address()

    def widget(self) -> Any:
        """The live view alone, as an anywidget."""
        from simulator.explorer.widget import new_widget, reply_about_memory

        return new_widget("calculator_main", self._given(), reply_about_memory)

    def still(self) -> dict[str, str]:
        """A bar for the ranks of every stage."""
        from simulator.plots import plot_memory

        asked = self.question
        held = plan_memory(asked.shape, asked.plan, asked.hardware)
        device = f"one {asked.gpu}"
        return _marked(plot_memory(held, bars=names(asked), capacity=asked.hardware.memory, device=device))

    def _given(self) -> dict[str, Any]:
        return {"question": self.question.as_dict(), "known": known(), "defaults": MemoryQuestion().as_dict()}


def _marked(picture: Any) -> dict[str, str]:
    """The picture, so that a live view of the same cell can take its place."""
    bundle = picture._repr_mimebundle_()
    return {**bundle, "text/html": f'<div class="explorer-still">{bundle["text/html"]}</div>'}
