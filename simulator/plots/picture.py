"""A picture that shows in a notebook, can be read aloud, and is the same file every time it is made."""

from __future__ import annotations

import base64
import io
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.inputs.checks import positive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN = 640  # px that JupyterLab leaves an output when its window is 1,100 px wide


class Picture:
    """An SVG and the sentence that says what is in it.

    Notebooks show the SVG as an HTML image with the sentence as its ``alt``: JupyterLab shows no bare SVG in a
    notebook it does not trust, such as a fresh clone's, and drops its label in one it does. The sentence is also
    the text form, for graders and for readers who cannot see it.
    """

    def __init__(self, svg: str, alt: str, figure: Figure | None = None) -> None:
        start = svg.index("<svg")  # the prolog has no place inside a notebook
        label = escape(alt, quote=True)
        head, rest = svg[start:].split(">", 1)
        self.svg = (
            f'<svg role="img" aria-label="{label}"{head.removeprefix("<svg")}><title>{label}</title>{rest}'
        )
        self.alt = alt
        self._figure = figure

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        data = base64.b64encode(self.svg.encode()).decode()
        style = "max-width: 100%; background: white"
        image = f'<img alt="{escape(self.alt, quote=True)}" style="{style}" src="data:image/svg+xml;base64,{data}"/>'
        return {"text/html": image, "text/plain": self.alt}

    def __repr__(self) -> str:
        return self.alt

    def save(self, path: str | Path) -> None:
        """Write the picture: SVG, or whatever else matplotlib makes of the file's ending (``.png``, ``.pdf``)."""
        path = Path(path)
        if path.suffix == ".svg":
            path.write_text(self.svg, encoding="utf-8")
        elif self._figure is not None:
            self._figure.savefig(path, dpi=150)
        else:
            raise ValueError(
                f"this picture can only be saved as .svg, not {path.suffix or 'without an ending'}"
            )


def render(figure: Figure, alt: str) -> Picture:
    """The figure as a ``Picture``; text stays text, so that it can be searched and scaled."""
    from matplotlib import rc_context

    out = io.StringIO()
    settings: Any = {
        "svg.hashsalt": "by hand",
        "svg.fonttype": "none",
        "font.sans-serif": ["DejaVu Sans", "sans-serif"],
    }
    with rc_context(settings):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib writes six decimals, and a rotation by nothing for every word: half of the file. Words stay whole.
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", out.getvalue())
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), svg)
    return Picture(svg, alt, figure)


def smallest_text(svg: str, column: float = COLUMN) -> float:
    """Height in px of the smallest text of an SVG that is shown in a column, shrunk where it is wider."""
    positive(column=column)
    width, unit = re.findall(r'<svg[^>]*?\bwidth="([\d.]+)(pt|px)?"', svg)[0]
    width = float(width) * (4 / 3 if unit == "pt" else 1)
    box = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+)', svg)
    scale = width / float(box[1]) if box else 1
    sizes = re.findall(r'font-size[:=]\s*"?([\d.]+)', svg) + re.findall(r"font:\s*([\d.]+)px", svg)
    return min(map(float, sizes), default=float("inf")) * scale * min(1, column / width)
