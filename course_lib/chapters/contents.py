"""The table of everything the course contains: docs/contents.md, written from docs/contents.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from course_lib.notebooks.places import course_root

ROOT = course_root()
SOURCE, PAGE = ROOT / "docs" / "contents.toml", ROOT / "docs" / "contents.md"
BEGINNING = """# What the course contains

Each line names a thing, the chapter that teaches it, the file that does it, and a test that holds it. \
A notebook under *done* has it in its cells, which are run and compared. What is only told says why. \
`python -m course_lib.chapters.contents` makes this page from `contents.toml`.
"""


class Item(NamedTuple):
    """One line: ``taught`` is None for what only the code does, ``code`` and ``test`` for what is only told."""

    what: str
    taught: Path | None
    code: Path | None
    test: Path | None


def contents() -> dict[str, list[Item]]:
    """The items of every part, by its title."""
    parts = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["part"]
    return {part["title"]: [_item(*row) for row in part["rows"]] for part in parts}


def _item(what: str, taught: str, code: str, test: str) -> Item:
    return Item(what, _place(taught), _place(code, "course_lib"), _place(test, "tests"))


def _place(name: str, folder: str = "") -> Path | None:
    """Of a file, in ``folder`` or else in the project, or of the notebook with this number."""
    if not name or not name[:2].isdigit():
        inside = ROOT / folder / name
        return (inside if inside.exists() else ROOT / name) if name else None
    found = sorted((ROOT / "notebooks").glob(f"{name[:2]}_*.ipynb"))
    deep = name.endswith("d")
    return next((path for path in found if path.stem.endswith("_in_depth") == deep), ROOT / name)


def page() -> str:
    """The page as Markdown."""
    return "\n".join([BEGINNING, *_lines()]) + "\n"


def _lines() -> Iterator[str]:
    for title, items in contents().items():
        yield from (f"## {title}", "", "| what | taught | done | tested |", "| --- | --- | --- | --- |")
        for item in items:
            cells = (_link(path) if path else "" for path in item[1:])
            yield f"| {item.what} | {' | '.join(cells)} |"
        yield ""


def _link(path: Path) -> str:
    name = path.stem.split("_")[0] if path.suffix == ".ipynb" else path.name
    if path.stem.endswith("_in_depth"):
        name += " in depth"
    return f"[{name}](../{path.relative_to(ROOT).as_posix()})"


if __name__ == "__main__":
    PAGE.write_text(page().rstrip() + "\n", encoding="utf-8")
