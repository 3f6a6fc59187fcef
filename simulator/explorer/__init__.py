"""An interactive view of pipeline schedules: their timeline, their memory, and the reason for every bubble.

``explore()`` shows it in a notebook; ``explore().save("explorer.html")`` writes it as one file that needs no Python.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import Any

from simulator.explorer.answer import answer_for
from simulator.explorer.bundle import standalone
from simulator.explorer.question import Question
from simulator.inputs.checks import at_least
from simulator.pipeline.engine import simulate
from simulator.pipeline.execution import Execution
from simulator.pipeline.schedules import make_schedule

__all__ = ["Explorer", "Question", "answer_for", "explore"]

MOST_IN_A_STILL = 3000  # actions; with more of them, drawing the still picture takes longer than a second


class Explorer:
    """What ``explore`` returns. A notebook shows it; ``save`` writes it as a page, ``iframe`` embeds that page."""

    def __init__(self, question: Question) -> None:
        self.question = question

    def html(self) -> str:
        """The page: one HTML file that computes in the browser."""
        return standalone(self.question)

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
        q = self.question
        return simulate(make_schedule(q.schedule, q.ranks, q.microbatches, q.chunks), **q.times)

    def widget(self) -> Any:
        """The live view alone, as an anywidget."""
        from simulator.explorer.widget import new_widget

        if "google.colab" in sys.modules:  # Colab shows no widget of others before it has been told to
            from google.colab import output

            output.enable_custom_widget_manager()
        return new_widget(self.question)

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


def explore(schedule: str = "1f1b", ranks: int = 4, microbatches: int = 8, **values: Any) -> Explorer:
    """Show a pipeline schedule that can be changed: its timeline, its memory, and the reason for every bubble.

    >>> explore("zb-v", ranks=4, microbatches=8, transfer=0.1)  # doctest: +SKIP

    Args:
        schedule, ranks, microbatches: what is shown first.
        values: the other parts of a ``Question``: ``chunks``, ``forward``, ``transfer``, ``speeds``, ``saved`` …

    Raises:
        ValueError: a value is wrong, in one sentence.
    """
    return Explorer(
        Question.of({"schedule": schedule, "ranks": ranks, "microbatches": microbatches, **values})
    )
