"""Every chapter ends with the same footer, which follows the map."""

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_lib.chapters.course_map import CHAPTERS
from course_lib.chapters.footer import FOOTER, footer, with_footer
from course_lib.notebooks.build import read_notebook
from course_lib.notebooks.places import chapters_in

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("path", chapters_in(ROOT / "notebooks"), ids=lambda path: path.stem)
def test_a_chapters_footer_is_what_the_map_gives(path):
    notebook = read_notebook(path)
    assert with_footer(notebook, f"notebooks/{path.name}") == notebook


def test_a_footer_leads_back_on_to_the_exercises_and_along_each_lane():
    text = footer("17")
    assert text.startswith(
        "---\n← [16 paged attention](16_paged_attention.ipynb) | [exercises](../exercises/17_exercises_"
    )
    assert "[18 prompt tuning](18_prompt_tuning.ipynb) → | [map](00_start_here.ipynb)" in text
    assert (
        "one GPU and not enough memory: [03](03_where_memory_goes.ipynb) · [08](08_recomputation.ipynb)"
        in text
    )
    assert text.endswith("· **17** · [18](18_prompt_tuning.ipynb)")
    assert footer("00") == "---\n[03 where memory goes](03_where_memory_goes.ipynb) →"
    assert "14_" not in footer("13"), "it is not written yet"


def test_a_footer_takes_the_place_of_the_one_that_is_there_and_stands_last():
    notebook = new_notebook(cells=[new_markdown_cell("# 05"), new_code_cell("1")])
    name = f"notebooks/05_{CHAPTERS['05'].name}.ipynb"
    once = with_footer(notebook, name)
    assert [cell.id for cell in once.cells[:-1]] == [cell.id for cell in notebook.cells]
    assert once.cells[-1].id == FOOTER
    once.cells.append(new_code_cell("2"))  # an author writes on
    twice = with_footer(once, name)
    assert [cell.source for cell in twice.cells] == ["# 05", "1", "2", footer("05")]
    assert with_footer(twice, name) == twice


@pytest.mark.parametrize(
    "name", ["notebooks/07_fsdp_in_depth.ipynb", "solutions/07_fsdp.ipynb", "notebooks/97_try.ipynb"]
)
def test_what_is_no_chapter_gets_none(name):
    notebook = new_notebook(cells=[new_markdown_cell("# 97")])
    assert with_footer(notebook, name) is notebook
