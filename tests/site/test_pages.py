"""What the site shows is what the course holds: its notebooks, as they are committed, and what a user may take out."""

import inspect
import json
import re
from pathlib import Path

import pytest
from gather import chapters, first_bet, gather, installation, section
from linked_map import linked_map, page_of
from notebook_as_page import GAME, as_page, linked_sources
from reference import find, source_file, source_page, topics

from course_lib.chapters.course_map import CHAPTERS
from course_lib.notebooks.build import read_notebook
from course_lib.notebooks.execute import BET
from course_lib.notebooks.opening import LINKS, Addresses, with_opening

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("exercises/*.ipynb")])
README = (ROOT / "README.md").read_text(encoding="utf-8")


def notebook(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_what_is_folded_in_jupyterlab_is_folded_on_the_site():
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": "## Predict"},
        code({"jupyter": {"outputs_hidden": True}}),
        code({"jupyter": {"outputs_hidden": True, "source_hidden": True}, "tags": ["setup"]}),
        code({}),
    ]
    page = as_page({"cells": cells})
    assert [cell["metadata"].get("tags") for cell in page["cells"]] == [
        None,
        ["hide-output"],
        ["setup", "hide-input", "hide-output"],
        [],
    ]
    assert "tags" not in cells[1]["metadata"], "the notebook itself stays as it is"


def test_every_result_after_the_first_bet_is_folded():
    folded = 0
    for path in NOTEBOOKS:
        after = path.parent.name == "exercises"
        for cell in as_page(notebook(path))["cells"]:
            after |= cell["cell_type"] == "code" and bool(BET.search("".join(cell["source"])))
            if after and cell.get("outputs") and not GAME.search(str(cell["outputs"])):
                assert "hide-output" in cell["metadata"]["tags"], path.name
                folded += 1
    assert folded > 100


def test_a_listing_links_to_the_page_of_its_source():
    link = '<a href="../course_lib/data_parallel/ddp.py" style="x">DDP</a>'
    given = {"cells": [code({}, link)]}
    assert list(linked_sources(given)) == ["course_lib/data_parallel/ddp.py"]
    shown = as_page(given)["cells"][0]["outputs"][0]["data"]["text/html"]
    assert shown == link.replace("ddp.py", "ddp.html")


def test_notebooks_link_to_what_has_a_page_and_to_no_place_inside_a_notebook():
    """Sphinx refuses both, but ``make site`` is not part of the tests; headings are spelled otherwise there."""
    shown = {file for path in NOTEBOOKS for file in linked_sources(notebook(path))}
    shown |= {source_file(name.rpartition(".")[0]) for topic in topics() for name in topic["names"]}
    for path in NOTEBOOKS:
        for cell in notebook(path)["cells"]:
            words = "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
            for file in re.findall(r"\]\(\.\./([^)]+\.py)\)", words):
                assert file in shown, f"{path.name} links to {file}, of which the site has no page"
            assert not re.search(r"\]\([^):]*\.ipynb#", words), (
                f"{path.name} links to a place inside a notebook"
            )


def test_a_still_explorer_leads_to_the_live_one_of_the_same_plan():
    cell = code({}, '<div class="explorer-still"><img alt="a still"/></div>')
    cell["outputs"].append({"output_type": "display_data", "data": {"text/plain": "View()"}, "metadata": {}})

    def shown(source):
        cell["source"] = source
        (output,) = as_page({"cells": [cell]})["cells"][0]["outputs"]
        return output["data"]["text/html"]

    assert shown('explore_memory("gpt3-175b", "h100", dp=35)').startswith('<div class="explorer-still">')
    for source, link in {
        'explore_memory("gpt3-175b", "h100", dp=35)': "memory.html#model=gpt3-175b&amp;dp=35",
        "explore()": "explorer.html#schedule=1f1b",
        'explore("gpipe", ranks=8, measured=found[0])': "explorer.html#schedule=gpipe&amp;ranks=8",
    }.items():
        assert f'href="../{link}' in shown(source)
    assert "live view without the measured step" in shown('explore("gpipe", ranks=8, measured=found[0])')
    assert shown("explore_network(resnet, image)") == '<div class="explorer-still"><img alt="a still"/></div>'
    link = re.compile(r"\.\./(?:explorer|memory)\.html#(?:schedule|model)=")
    linked = {path.stem for path in NOTEBOOKS if link.search(str(as_page(notebook(path))))}
    assert linked == {"11_pipeline_parallel", "12_three_dimensions_in_depth"}


def test_a_chapter_does_not_send_its_reader_to_the_page_that_they_read():
    published = Addresses("https://github.com/somebody/course")
    for path in NOTEBOOKS:
        opened = with_opening(read_notebook(path), path.relative_to(ROOT).as_posix(), published)
        (text,) = [cell["source"] for cell in as_page(opened, "Here.")["cells"] if cell["id"] == LINKS]
        assert published.site not in text, path.name
        assert re.search(r", or \[in Codespaces\]\([^)]+\)\. Here\.$", text), text


def test_until_the_course_has_an_address_its_pages_lead_nowhere_else():
    for path in NOTEBOOKS:
        opened = with_opening(read_notebook(path), path.relative_to(ROOT).as_posix(), None)
        assert LINKS not in [cell["id"] for cell in as_page(opened)["cells"]], path.name
        title, where, *_ = as_page(opened, "Here.")["cells"]
        assert title["source"].startswith("# "), path.name
        assert where["source"] == "Here.", "what runs on the site is said all the same"


def test_no_output_shows_a_picture_without_words_or_loads_anything():
    for path in NOTEBOOKS:
        for cell in notebook(path)["cells"]:
            for output in cell.get("outputs", []):
                data = output.get("data", {})
                html = re.sub(r"base64,[^\"]*", "", "".join(data.get("text/html", "")))
                images = re.findall(r"<img\b[^>]*>", html)
                assert all(re.search(r'alt="[^"]+"', image) for image in images), path.name
                assert not re.search(r"<svg(?![^>]*aria-label)", html), path.name
                assert not re.search(r"""src=["'](https?:)?//""", html), (
                    f"{path.name} loads from another server"
                )
                assert not {"image/png", "image/jpeg"} & set(data), f"{path.name}: a picture without words"


@pytest.mark.parametrize("topic", topics(), ids=lambda topic: topic["file"])
def test_the_reference_names_what_exists_and_is_explained(topic):
    assert topic["about"].endswith(".")
    for name in topic["names"]:
        found = find(name)
        assert inspect.getdoc(found), f"{name} has no docstring"
        module = name.rpartition(".")[0]
        assert (ROOT / source_file(module)).is_file()
        assert source_page(module) == source_file(module).replace(".py", ".html")


def test_a_name_stands_once_in_the_reference_and_a_wrong_one_is_refused():
    names = [name for topic in topics() for name in topic["names"]]
    assert len(names) == len(set(names))
    with pytest.raises(ValueError, match=r"simulator\.plan\.Plan, which cannot be imported"):
        find("simulator.plan.Plan")


def test_every_chapter_of_the_map_leads_to_its_page():
    written = [number for number, chapter in CHAPTERS.items() if chapter.minutes and number != "00"]
    links = re.findall(r'<a href="(notebooks/[^"]+)"', linked_map())
    assert set(links) == {page_of(number) for number in written}
    assert all((ROOT / link.replace(".html", ".ipynb")).exists() for link in links)
    path = ROOT / "notebooks" / "00_start_here.ipynb"
    html = json.dumps(as_page(notebook(path)))
    assert {page_of(number) for number in written} <= {
        f"notebooks/{link}" for link in re.findall(r'href=\\"(\w+\.html)', html)
    }


def test_the_first_page_takes_from_the_readme_and_chapter_00_what_stands_there():
    table = chapters(README)
    assert table.startswith("| number | chapter |")
    assert "[FlashAttention](notebooks/15_flash_attention.ipynb)" in table
    assert "git clone" in installation(README)
    assert "conda" in installation(README)
    with pytest.raises(ValueError, match="no section 'The chaptres': its sections are The chapters"):
        section(README, "The chaptres")
    path = ROOT / "notebooks" / "00_start_here.ipynb"
    assert len(re.findall("data-(?:ask|answer)=", first_bet(path.read_text(encoding="utf-8")))) == 2


def test_the_first_page_leads_to_everything():
    index = (ROOT / "site" / "pages" / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^(docs/\w+)$", index, re.MULTILINE))
    assert listed == {f"docs/{path.stem}" for path in ROOT.glob("docs/*.md")}
    assert re.search(r"^notebooks/\*$", index, re.MULTILINE)
    assert re.search(r"^exercises/\*$", index, re.MULTILINE)


def code(metadata, html=""):
    output = {"output_type": "execute_result", "data": {"text/html": html}, "metadata": {}}
    return {"cell_type": "code", "metadata": metadata, "source": "x", "outputs": [output]}


def test_pages_of_docs_link_to_what_the_site_has(tmp_path):
    gather(tmp_path)
    for page in (tmp_path / "docs").glob("*.md"):
        for target in re.findall(r"\]\((\.\./[^)#]+)", page.read_text()):
            assert (page.parent / target).resolve().is_file(), f"{page.name} links to {target}"
