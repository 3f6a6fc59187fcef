"""The frame of all small figures: what a reader may change, the live view, the saved page, and a still picture.

A figure is a script of ``page/`` that draws (``page/figure.js`` says what it must have), and a function of this package
that names its sliders. Everything is computed in the page. The stills are what the same scripts draw in node, kept as
files: ``python -m simulator.figures.stills`` writes them, for the default values and for every call in a notebook.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

from simulator.explorer.views import View
from simulator.inputs.checks import is_number, refuse
from simulator.plots.picture import Picture

STILLS = Path(__file__).with_name("still")


class Slider(NamedTuple):
    """What a reader may change: a value among ``choices``; ``[False, True]`` make a box to tick.

    Args:
        value: with which the figure begins. It is added to the choices, if it lies between two of them.
        unit: written behind the value; bytes (``"B"``, ``"B/s"``) get their MB and GB.
    """

    name: str
    value: Any
    choices: Sequence[Any]
    label: str
    unit: str = ""


class Figure(View):
    """A small picture that can be stepped through or changed by sliders.

    Args:
        script: the module of ``page/`` that draws it.
        shown: the step of the still picture.
        given: what the script computes with, beside the sliders' values.

    Raises:
        ValueError: a value is none of its slider's.
    """

    def __init__(
        self, script: str, title: str, sliders: Sequence[Slider], shown: int = 0, **given: Any
    ) -> None:
        self.script, self.title, self.shown, self.given = script, title, shown, given
        self.values = {slider.name: _checked(slider) for slider in sliders}
        self.sliders = [
            slider._replace(choices=sorted({*slider.choices, slider.value}))._asdict() for slider in sliders
        ]

    def page(self) -> tuple[str, dict[str, Any], str]:
        """What the page is made of: its script, what it starts with, and its title."""
        given = {"title": self.title, "sliders": self.sliders, "values": self.values, **self.given}
        return self.script, given, self.title

    def widget(self) -> Any:
        """The live view alone, as an anywidget."""
        from simulator.explorer.widget import new_widget

        return new_widget(self.script, self.page()[1])

    @property
    def still_name(self) -> str:
        """The file of its still picture: ``ring_ranks=4.svg``."""
        values = (f"{name}={float(value):g}" for name, value in self.values.items())
        return "_".join([self.script, *values]) + ".svg"

    def still(self) -> dict[str, str]:
        """The picture that is kept for these values; a sentence, where there is none."""
        path = STILLS / self.still_name
        if not path.exists():
            text = f"{self.title}: run this cell to see it."
            return {"text/plain": text, "text/html": f'<p class="explorer-still">{text}</p>'}
        found = re.fullmatch(r"<!-- (.*?) -->\n(.*)", path.read_text(encoding="utf-8"), re.DOTALL)
        assert found is not None, path
        bundle = Picture(found[2], unescape(found[1]))._repr_mimebundle_()
        return {**bundle, "text/html": f'<div class="explorer-still">{bundle["text/html"]}</div>'}


def _checked(slider: Slider) -> Any:
    """The value with which a slider begins."""
    value, choices = slider.value, slider.choices
    if isinstance(choices[0], bool):
        if not isinstance(value, bool):
            refuse(slider.name, "True or False", value)
    elif not (is_number(value) and min(choices) <= value <= max(choices)):
        refuse(slider.name, f"a number from {min(choices):g} to {max(choices):g}", value)
    elif all(isinstance(choice, int) for choice in choices) and value != int(value):
        refuse(slider.name, "a whole number", value)
    return value
