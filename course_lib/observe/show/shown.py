"""What shows itself in a notebook as HTML, and everywhere else as plain text."""

from __future__ import annotations

from typing import Any


class Shown:
    """Something with two faces: HTML in a notebook, plain text everywhere else."""

    def __init__(self, text: str, html: str) -> None:
        self.text, self.html = text, html

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self.text, "text/html": self.html}


def headed(sentence: str, *things: Any) -> Shown:
    """The sentence, and below it things that have both faces: pictures, tables."""
    faces = [thing._repr_mimebundle_() for thing in things]
    text = "\n".join([sentence, *(face["text/plain"] for face in faces)])
    return Shown(text, f"<p>{sentence}</p>{''.join(face['text/html'] for face in faces)}")
