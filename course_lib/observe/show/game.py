"""The game where it is live: fields and buttons by anywidget, and the same in HTML for pages without a kernel."""

from __future__ import annotations

import base64
import json
import sys
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from course_lib.observe.show.commitment import Bet, Guess

VIEW = "application/vnd.jupyter.widget-view+json"


def ask(asked: Any) -> Any:
    """Show the guess or bet that is asked, and return it: a field or buttons in a notebook, text elsewhere."""
    if not _kernel():
        print(asked)
        return asked
    said = (
        asked.value if isinstance(asked, Bet) or asked.value is None else round(asked.value / asked.factor, 9)
    )
    view = live(given=_given(asked), said=said)
    from IPython.display import display

    if view is not None:
        view.observe(lambda change: asked.commit(change.new), "said")
    display({"text/plain": str(asked), "text/html": as_html(asked), **as_mime(view)}, raw=True)
    return asked


def as_html(asked: Guess | Bet) -> str:
    """What is asked, for a page without a kernel: words, and what a script needs to ask it."""
    lines = "".join(f"<p>{escape(line)}</p>" for line in str(asked).splitlines())
    return f'<div data-ask="{encoded(_given(asked))}">{lines}</div>'


def live(**state: Any) -> Any:
    """A live view; None where no kernel runs, or anywidget is not installed."""
    if not _kernel():
        return None
    try:
        view = _view()
    except ImportError:
        return None
    if "google.colab" in sys.modules:  # Colab shows no widget of others before it has been told to
        from google.colab import output  # pyright: ignore[reportMissingImports]

        output.enable_custom_widget_manager()
    return view(**state)


def as_mime(view: Any) -> dict[str, Any]:
    """What an output needs, beside its HTML, to show a live view."""
    return {} if view is None else {VIEW: {"version_major": 2, "version_minor": 0, "model_id": view.model_id}}


def encoded(facts: dict[str, Any]) -> str:
    """Facts for a page's script, which nobody reads by accident; no last digits, in which machines differ."""
    facts = json.loads(json.dumps(facts), parse_float=lambda digits: float(f"{float(digits):.6g}"))
    return base64.b64encode(json.dumps(facts, separators=(",", ":")).encode()).decode()


def _given(asked: Guess | Bet) -> dict[str, Any]:
    if isinstance(asked, Bet):
        return {"name": asked.name, "choices": list(asked.choices)}
    return {"name": asked.name, "unit": asked.asked, "low": asked.low, "high": asked.high}


def _kernel() -> bool:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


@cache
def _view() -> Any:
    import anywidget
    import traitlets

    class Game(anywidget.AnyWidget):
        _esm = Path(__file__).with_name("game.js").read_text(encoding="utf-8")
        _css = Path(__file__).with_name("game.css").read_text(encoding="utf-8")
        given = traitlets.Dict().tag(sync=True)  # what is asked; empty where an answer is shown
        said = traitlets.Any(None, allow_none=True).tag(sync=True)
        html = traitlets.Unicode().tag(sync=True)

    return Game
