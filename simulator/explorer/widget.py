"""The explorer as a widget: the page sends a question, Python answers with the arrays as bytes.

anywidget is imported when a widget is made, and not before: the simulator itself needs nothing of it.
"""

from __future__ import annotations

from typing import Any

from simulator.explorer.answer import answer
from simulator.explorer.bundle import style, widget_script
from simulator.explorer.own import Own
from simulator.explorer.question import Question


def reply_to(message: dict[str, Any], own: Own | None = None) -> tuple[dict[str, Any], list[memoryview]]:
    """The answer to a page's message: what it says, and the bytes of its arrays. A wrong question gets a sentence."""
    number = message.get("id")
    try:
        found = answer(Question.of(message["question"]), own)
    except ValueError as error:
        return {"id": number, "error": str(error)}, []
    arrays = [[name, values.typecode] for name, values in found.arrays.items()]
    return {"id": number, "head": found.head, "arrays": arrays}, [
        memoryview(v) for v in found.arrays.values()
    ]


def new_widget(question: Question, own: Own | None = None) -> Any:
    """A live view of that question; ``own`` is the schedule that a reader has written.

    Raises:
        ImportError: anywidget is not installed.
    """
    import anywidget
    import traitlets

    class Explorer(anywidget.AnyWidget):
        _esm = widget_script()
        _css = style()
        question = traitlets.Dict().tag(sync=True)
        own = traitlets.Bool().tag(sync=True)

    widget = Explorer(question=question.as_dict(), own=own is not None)
    widget.on_msg(lambda _, message, __: widget.send(*reply_to(message, own)))
    return widget
