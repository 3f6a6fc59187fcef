"""The glossary: every link from a notebook finds its term, and every term is complete and in its place."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^### (.+)$", GLOSSARY, re.MULTILINE)
# JupyterLab keeps the letters of a heading in its anchor, GitHub makes them small: so terms are written small.
ANCHORS = {term.replace(" ", "-") for term in TERMS}


def test_terms_stand_in_order_and_their_anchors_work_everywhere():
    assert sorted(set(TERMS)) == TERMS
    assert [term for term in TERMS if not re.fullmatch(r"[a-z0-9_ -]+", term)] == []


def test_every_term_has_its_chapter_its_chinese_and_one_sentence():
    entries = re.split(r"^### ", GLOSSARY, flags=re.MULTILINE)[1:]
    for entry in entries:
        term, about, sentence = [part for part in entry.strip().split("\n") if part]
        chinese, chapter, path = re.fullmatch(r"(.+) · chapter \[(\d\d)\]\(\.\./(.+)\)", about).groups()
        assert re.search(r"[\u4e00-\u9fff]|Attention|Adam", chinese), term
        assert Path(path).name.startswith(chapter), term
        assert (ROOT / path).exists(), term
        assert sentence.endswith("."), term


def test_every_term_is_in_the_index():
    index = GLOSSARY.split("## From a to z")[0]
    assert set(re.findall(r"\]\(#([^)]+)\)", index)) == ANCHORS


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("*s/[0-9][0-9]_*.ipynb")), ids=lambda p: f"{p.parent.name}/{p.name}"
)
def test_links_to_the_glossary_find_their_term(path):
    text = "".join("".join(c["source"]) for c in json.loads(path.read_text(encoding="utf-8"))["cells"])
    links = re.findall(r"\]\(([^)]*glossary\.md[^)]*)\)", text)
    wrong = [link for link in links if not re.fullmatch(r"\.\./docs/glossary\.md(#.+)?", link)]
    missing = [link for link in links if "#" in link and link.split("#")[1] not in ANCHORS]
    assert not wrong
    assert not missing
