"""The reference: a page for each topic of ``api.toml``, and a page for each file of source that the site links to."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TOPICS = Path(__file__).with_name("api.toml")


def topics() -> list[dict[str, Any]]:
    """The pages of the reference, as ``api.toml`` lists them."""
    return tomllib.loads(TOPICS.read_text(encoding="utf-8"))["page"]


def find(name: str) -> Any:
    """What has this full name: ``simulator.plots.memory_bars.plot_memory``.

    Raises:
        ValueError: there is no such module, or it has no such name.
    """
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"api.toml names {name}, which cannot be imported: {error}") from error


def topic_page(topic: dict[str, Any]) -> str:
    """The Markdown of a topic: Sphinx fills in signatures and docstrings."""
    entries = [_entry(name) for name in topic["names"]]
    return f"# {topic['title']}\n\n{topic['about']}\n\n```{{eval-rst}}\n" + "\n".join(entries) + "```\n"


def _entry(name: str) -> str:
    if isinstance(find(name), type):
        return f".. autoclass:: {name}\n   :members:\n"
    return f".. autofunction:: {name}\n"


def overview(found: list[dict[str, Any]]) -> str:
    """The first page of the reference: every topic with its sentence and its names."""
    lines = [
        "# Reference",
        "",
        (Path(__file__).parent / "pages" / "reference.txt").read_text(encoding="utf-8"),
    ]
    for topic in found:
        names = ", ".join(f"{{py:obj}}`~{name}`" for name in topic["names"])
        lines += [f"## [{topic['title']}]({topic['file']}.md)", "", topic["about"], "", names, ""]
    files = "\n".join(topic["file"] for topic in found)
    return "\n".join([*lines, "```{toctree}", ":hidden:", "", files, "```", ""])


def source_page(module: str) -> str:
    """Where the site shows the source of a module, from the site's root: ``course_lib/data_parallel/ddp.html``."""
    return f"{source_file(module).removesuffix('.py')}.html"


def source_file(module: str) -> str:
    """The file of a module, from the course's folder."""
    path = ROOT / module.replace(".", "/")
    found = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return found.relative_to(ROOT).as_posix()


def listing(file: str) -> str:
    """The Markdown of a page that shows one file of source, which lies beside it."""
    return (
        f"---\norphan: true\n---\n\n# {file}\n\n"
        f"```{{literalinclude}} {Path(file).name}\n:language: python\n:linenos:\n```\n"
    )
