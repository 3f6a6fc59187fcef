"""A live view: the page sends questions, Python answers, arrays travel as bytes.

The page draws at once what it can compute itself, and Python has the last word (``page/sources.js``).

anywidget is imported when a widget is made, and not before: the simulator itself needs nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.explorer.answer import answer
from simulator.explorer.bundle import style, widget_script
from simulator.explorer.calculator import MemoryQuestion, calculate
from simulator.explorer.own import Own
from simulator.explorer.question import Question

NOT_LIVE = "Run this cell in a notebook to move the sliders."
Reply = tuple[dict[str, Any], list[memoryview]]


def reply_to(message: dict[str, Any], own: Own | None = None) -> Reply:
    """The answer to a page's message: what it says, and the bytes of its arrays. A wrong question gets a sentence."""
    number = message.get("id")
    try:
        found = answer(Question.of(message["question"]), own)
    except ValueError as error:
        return {"id": number, "error": str(error)}, []
    arrays = [[name, values.typecode] for name, values in found.arrays.items()]
    buffers = [memoryview(values) for values in found.arrays.values()]
    return {"id": number, "head": found.head, "arrays": arrays}, buffers


def reply_about_memory(message: dict[str, Any]) -> Reply:
    """The same for the memory calculator, whose answers are small."""
    number = message.get("id")
    try:
        return {"id": number, "answer": calculate(MemoryQuestion.of(message["question"]))}, []
    except ValueError as error:
        return {"id": number, "error": str(error)}, []


def new_widget(
    main: str,
    given: dict[str, Any],
    reply: Callable[[dict[str, Any]], Reply] | None = None,
    not_live: str = NOT_LIVE,
) -> Any:
    """A live view.

    Args:
        main: the module whose ``render`` shows it.
        given: what it starts with.
        reply: answers its messages; None: it sends none.
        not_live: what a notebook without a kernel says below the still picture.

    Raises:
        ImportError: anywidget is not installed.
    """
    import anywidget
    import traitlets

    class View(anywidget.AnyWidget):
        _esm = widget_script(main)
        _css = style()
        given = traitlets.Dict().tag(sync=True)

        def __repr__(self) -> str:  # what a notebook shows where it is not live, below the still picture
            return not_live

    widget = View(given=given)
    if reply is not None:
        widget.on_msg(lambda _, message, __: widget.send(*reply(message)))
    return widget
