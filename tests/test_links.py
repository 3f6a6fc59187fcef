"""Every link of the course leads somewhere: in the notebooks, the glossary, the README, and what listings link to."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    + [p for folder in ("notebooks", "exercises", "solutions") for p in ROOT.glob(f"{folder}/*.ipynb")]
)
LINK = re.compile(r"\]\(([^)\s]+)\)|<a\b[^>]*\bhref=\"([^\"]+)\"")


def words(path):
    """What is read on a page: its Markdown, and the HTML of its outputs."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        return
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "markdown":
            yield re.sub(r"```.*?```|`[^`\n]*`", "", "".join(cell["source"]), flags=re.DOTALL)
        for output in cell.get("outputs", []):
            html = "".join(output.get("data", {}).get("text/html", ""))
            yield " ".join(re.findall(r"<a\b[^>]*>", html))  # a listing may hold `x[i](y)`, which is no link


def anchors(path):
    """Where a link can point to inside a page of Markdown: its named places, and its headings."""
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    spelled = [re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in headings]
    return {*named, *spelled, *(each.lower() for each in spelled)}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere_inside_the_course(path):
    for match in LINK.finditer("\n".join(words(path))):
        target, _, anchor = (match[1] or match[2]).partition("#")
        if re.match(r"[a-z]+:", target):
            continue  # the web
        found = (path.parent / target).resolve() if target else path
        assert found.is_relative_to(ROOT), f"{target} is outside the course, where JupyterLab cannot open it"
        assert found.exists(), f"there is no {target}"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{target} has no place named {anchor}"


@pytest.mark.parametrize("path", sorted(ROOT.glob("exercises/*.ipynb")), ids=lambda path: path.stem)
def test_a_chapter_and_its_exercises_link_to_each_other(path):
    chapter = ROOT / "notebooks" / path.name.replace("_exercises_", "_", 1)
    assert f"../notebooks/{chapter.name}" in "\n".join(words(path))
    assert f"../exercises/{path.name}" in "\n".join(words(chapter))
