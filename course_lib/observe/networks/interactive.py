"""A network as a drawing that unfolds and moves under the mouse: torchvista's, in a frame of its own."""

from __future__ import annotations

import tempfile
import warnings
from html import escape
from pathlib import Path

from torch import nn

from course_lib.observe.show.shown import Shown

HEIGHT = 500  # pixels


def interactive(model: nn.Module, inputs: tuple, depth: int) -> Shown:
    """Draw ``model`` with torchvista, modules below ``depth`` folded: a click opens them.

    torchvista runs the model and changes it, so give it a copy in evaluation mode. The page it makes is complete:
    it loads nothing from the network.

    Raises:
        ValueError: torchvista is not installed.
    """
    try:
        from IPython.utils.capture import capture_output
        from torchvista import trace_model
    except ImportError:
        raise ValueError("the interactive drawing needs torchvista: pip install torchvista") from None
    name = type(model).__name__
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), capture_output():
        warnings.simplefilter("ignore")
        page = Path(folder) / "graph.html"
        trace_model(
            model, inputs, collapse_modules_after_depth=depth, show_module_attr_names=True,
            height=HEIGHT - 20, export_format="html", export_path=page,
        )  # fmt: skip
        html = page.read_text(encoding="utf-8")
    text = f"Interactive drawing of {name}: run this cell in JupyterLab, then click a box to open it."
    frame = (
        f'<iframe title="{escape(text)}" srcdoc="{escape(html)}" sandbox="allow-scripts" '
        f'style="width:100%; height:{HEIGHT}px; border:1px solid #8a8a8a; background:#ffffff"></iframe>'
    )
    return Shown(text, frame)
