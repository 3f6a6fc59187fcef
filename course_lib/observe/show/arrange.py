"""Several pictures in one output: beside each other, or folded away behind their titles."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from course_lib.observe.show.shown import Shown
from simulator.plots.picture import Picture


def beside(pictures: Mapping[str, Picture | Shown]) -> Shown:
    """Pictures at their full size, each under its title, side by side where there is room, else wrapped.

    Raises:
        ValueError: no picture is given.
    """
    style = "display:inline-block; vertical-align:top; max-width:100%; margin:0 16px 12px 0"
    html = "".join(
        f'<div style="{style}"><div><strong>{escape(title)}</strong></div>{_html(picture)}</div>'
        for title, picture in _titled(pictures).items()
    )
    return Shown(_text(pictures), html)


def folded(pictures: Mapping[str, Picture | Shown], opened: int = 1) -> Shown:
    """Pictures under one another, each folded behind its title, which a click opens.

    Args:
        opened: how many of the first are open already.

    Raises:
        ValueError: no picture is given.
    """
    html = "".join(
        f"<details{' open' if i < opened else ''}><summary>{escape(title)}</summary>{_html(picture)}</details>"
        for i, (title, picture) in enumerate(_titled(pictures).items())
    )
    return Shown(_text(pictures), html)


def _titled(pictures: Mapping[str, Picture | Shown]) -> Mapping[str, Picture | Shown]:
    if not pictures:
        raise ValueError("there is nothing to show: give at least one picture under its title")
    return pictures


def _html(picture: Picture | Shown) -> str:
    return picture._repr_mimebundle_()["text/html"]


def _text(pictures: Mapping[str, Picture | Shown]) -> str:
    return "\n".join(f"{title}: {picture!r}" for title, picture in pictures.items())
