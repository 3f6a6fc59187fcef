"""An interactive view of pipeline schedules: their timeline, their memory, and the reason for every bubble.

``explore()`` shows it in a notebook; ``explore().save("explorer.html")`` writes it as one file that needs no Python.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from simulator.explorer.bundle import standalone
from simulator.explorer.own import Own, schedule_of
from simulator.explorer.question import OWN, Question
from simulator.inputs.checks import at_least
from simulator.pipeline.actions import Schedule
from simulator.pipeline.engine import simulate
from simulator.pipeline.execution import Execution

__all__ = ["Explorer", "Question", "explore"]

MOST_IN_A_STILL = 3000  # actions; with more of them, drawing the still picture takes longer than a second


class Explorer:
    """What ``explore`` returns. A notebook shows it; ``save`` writes it as a page, ``iframe`` embeds that page."""

    def __init__(self, question: Question, own: Own | None = None) -> None:
        schedule_of(question, own)  # refuses what cannot be shown
        self.question, self.own = question, own

    def html(self) -> str:
        """The page: one HTML file that computes in the browser."""
        own = schedule_of(self.question, self.own) if self.question.schedule == OWN else None
        return standalone(self.question, own)

    def save(self, path: str | Path) -> None:
        """Write the page; any browser opens it, without a network."""
        Path(path).write_text(self.html(), encoding="utf-8")

    def iframe(self, height: int = 900) -> str:
        """The page as an ``<iframe srcdoc>``, for a static page or a notebook without a kernel."""
        at_least(1, height=height)
        page = escape(self.html(), quote=True)
        title = "Pipeline explorer"
        return f'<iframe title="{title}" width="100%" height="{height}" style="border: 0" srcdoc="{page}"></iframe>'

    def execution(self) -> Execution:
        """What is shown first, as the simulator's own timeline."""
        schedule = schedule_of(self.question, self.own)
        return simulate(schedule, **replace(self.question, chunks=schedule.chunks).times)

    def widget(self) -> Any:
        """The live view alone, as an anywidget."""
        from simulator.explorer.widget import new_widget

        if "google.colab" in sys.modules:  # Colab shows no widget of others before it has been told to
            from google.colab import output

            output.enable_custom_widget_manager()
        return new_widget(self.question, self.own)

    def still(self) -> dict[str, str]:
        """A picture, or a sentence where there is too much to draw: what is seen where nothing can be live."""
        execution = self.execution()
        if len(execution.schedule) > MOST_IN_A_STILL:
            text = f"{execution.schedule.name}: {execution.makespan:.4g} long, {execution.bubble():.1%} idle"
            return {"text/plain": text, "text/html": f'<p class="explorer-still">{escape(text)}</p>'}
        from simulator.plots import plot_timeline

        picture = plot_timeline(execution)._repr_mimebundle_()
        return {**picture, "text/html": f'<div class="explorer-still">{picture["text/html"]}</div>'}

    def _ipython_display_(self) -> None:
        """First the picture, for GitHub and for readers without a kernel; then the live view."""
        from IPython.display import display

        display(self.still(), raw=True)
        display(self.widget())


def explore(schedule: str | Own = "1f1b", ranks: int = 4, microbatches: int = 8, **values: Any) -> Explorer:
    """Show a pipeline schedule that can be changed: its timeline, its memory, and the reason for every bubble.

    >>> explore("zb-v", ranks=4, microbatches=8, transfer=0.1)  # doctest: +SKIP

    >>> def all_forwards_first(ranks, microbatches):
    ...     order = [f"F{i}" for i in range(microbatches)] + [f"B{i}" for i in range(microbatches)]
    ...     return [order for rank in range(ranks)]
    >>> explore(all_forwards_first, ranks=4, microbatches=8).execution().makespan
    33.0

    Args:
        schedule, ranks, microbatches: what is shown first. In place of a schedule's name a function may stand, which
            returns for every rank what it does, in order (``simulator.explorer.own.schedule_of``). It is called
            again whenever a slider changes the ranks or the microbatches. A ``Schedule`` may stand there, too.
        values: the other parts of a ``Question``: ``chunks``, ``forward``, ``transfer``, ``speeds``, ``saved`` …

    Raises:
        ValueError: a value is wrong, or the schedule is no whole training step, in one sentence.
    """
    own = None if isinstance(schedule, str) else schedule
    if isinstance(own, Schedule):
        ranks, microbatches = own.ranks, own.microbatches
    given = {"schedule": OWN if own else schedule, "ranks": ranks, "microbatches": microbatches}
    return Explorer(Question.of(given | values), own)
