"""Every chapter keeps to the pattern of CONTRIBUTING.md, "A chapter in ten lines", as far as a program can tell."""

import base64
import json
import re
import statistics
from pathlib import Path

import pytest

from course_lib.notebooks.execute import BET, UNTOLD
from course_lib.notebooks.places import chapters_in
from simulator.plots.picture import smallest_text

ROOT = Path(__file__).parents[1]
SECTIONS = ["The answer", "In practice", "Go further"]  # what comes before is the story's own
BUDGET = {"words": 3000, "lines of listings": 80, "tables": 8, "asides": 8, "rows that say exactly 1": 3}


def text(cell) -> str:
    return "".join(cell["source"])


def is_folded(cell, what) -> bool:
    return bool(cell["metadata"].get("jupyter", {}).get(what))


def pictures(cell):
    for output in cell.get("outputs", []):
        html = "".join(output.get("data", {}).get("text/html", ""))
        for data in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", html):
            yield base64.b64decode(data).decode()


def sections(cells, code):
    titles = re.findall(r"^## (.+)$", prose_of(cells), re.MULTILINE)
    first = ["The answer", "Go further"]
    last = first if text(cells[0]).startswith("# 00") else SECTIONS
    if titles[-len(last) :] != last:
        yield f"its last sections are {', '.join(titles[-len(last) :])}, not {', '.join(last)}"


def prose_of(cells):
    return "\n".join(text(c) for c in cells if c["cell_type"] == "markdown")


def shown(code, kind):
    for cell in code:
        for output in cell.get("outputs", []):
            yield "".join(output.get("data", {}).get(kind, ""))


def listed_lines(code):
    listings = [t for t in shown(code, "text/plain") if re.match(r"# (course_lib|simulator)\.", t)]
    return sum(bool(line.strip()) for t in listings for line in t.splitlines())


def budget(cells, code):
    prose = prose_of([c for c in cells if "colab.research" not in text(c)])
    bare = re.sub(r"\]\([^)]*\)|\$[^$]*\$|`[^`]*`", "x", prose)
    amounts = {
        "words": len(prose.split()),
        "lines of listings": listed_lines(code),
        "tables": sum("<table" in html for html in shown(code, "text/html")),
        "asides": sum(len(aside.split()) >= 5 for aside in re.findall(r"\(([^()]*)\)", bare)),
        "rows that say exactly 1": sum(t.count("exactly 1") for t in shown(code, "text/plain")),
    }
    over = [f"{amounts[k]} {k} (at most {most})" for k, most in BUDGET.items() if amounts[k] > most]
    if over:
        yield f"over its budget: {', '.join(over)}"


def minutes(cells, code):
    """The minutes that it states come from what there is to read, to look at, to write and to bet on. The factors are
    fitted to the latest watches of strangers: within a fifth in 16 of 20 chapters."""
    seen = sum(bool(list(pictures(c))) or "<table" in "".join(shown([c], "text/html")) for c in code)
    bets = sum(len(BET.findall(text(c))) for c in code)
    read = [text(c) for c in code if not is_folded(c, "source_hidden")]
    lines = listed_lines(code) + sum(bool(line.strip()) for source in read for line in source.splitlines())
    computed = len(prose_of(cells).split()) / 85 + lines / 10 + seen / 2 + 2.5 * bets
    stated = re.search(r"[Aa]bout (\d+) minutes", prose_of(cells))
    if not stated or abs(int(stated[1]) - computed) > 0.2 * computed:
        yield f"it says {stated and stated[1]} minutes, its amounts say {computed:.0f}"


def first_picture(cells, code):
    lines = 0
    for cell in code:
        if not is_folded(cell, "source_hidden"):
            lines += sum(bool(line.strip()) for line in text(cell).splitlines())
        if any(pictures(cell)):
            break
    if lines > 12:
        yield f"{lines} lines of code stand before and with the first picture, at most 12: tag imports `setup`"


def folds(cells, code):
    after = False
    for cell in cells:
        after |= cell["cell_type"] == "code" and bool(BET.search(text(cell)))
        if after and cell.get("outputs") and not is_folded(cell, "outputs_hidden"):
            yield f"an output after the first bet is not folded: {text(cell).splitlines()[0]!r} (make notebooks)"
    for cell in code:
        if "setup" in cell["metadata"].get("tags", ()) and not is_folded(cell, "source_hidden"):
            yield "a cell tagged `setup` is not folded (make notebooks does it)"


# The types that JupyterLab 4 looks for in the first output of a folded cell, in this order (getOutputPlaceholderText).
TYPES = ["text/html", "image/svg+xml", "application/pdf", "text/markdown", "text/plain"]


def in_place_of_outputs(cell) -> str:
    """What JupyterLab shows where outputs are folded: the first line of the first output."""
    first = next(iter(cell.get("outputs", [])), {})
    data = first.get("data", {"text/plain": first.get("text", "")})
    lines = "".join(next((data[kind] for kind in TYPES if kind in data), "")).split("\n")
    return next(filter(None, lines), "")


def untold(cells, code):
    for cell in code:
        if is_folded(cell, "outputs_hidden") and (told := in_place_of_outputs(cell)):
            yield f"in place of a folded output JupyterLab shows {told!r} (make notebooks puts an empty one before it)"
        folded = is_folded(cell, "source_hidden") and text(cell).startswith(f"{UNTOLD}\n")
        if re.search(r"^reveal\(", text(cell), re.MULTILINE) and not folded:
            yield "the source of a reveal tells the answer: fold it (make notebooks does it)"


def short_cells(cells, code):
    lines = [
        sum(bool(line.strip()) for line in text(c).splitlines())
        for c in code
        if not is_folded(c, "source_hidden")
    ]
    if statistics.median(lines) > 10:
        yield f"half of its cells have more than {statistics.median(lines):g} lines, at most 10"


def sentences_with_reasons(cells, code, most=0.12):
    words = re.sub(r"`[^`]*`|\$[^$]*\$|\(http[^)]*\)|\|.*\|", "x", prose_of(cells))
    sentences = [s.split() for s in re.split(r"(?<=[.?!:])\s+", words) if re.search("[a-z]", s)]
    short = sum(len(s) <= 5 for s in sentences) / len(sentences)
    if short > most:
        yield f"{short:.0%} of its sentences have five words or fewer, at most {most:.0%}: join claims to their reasons"


def readable_pictures(cells, code):
    small = [size for cell in code for svg in pictures(cell) if (size := smallest_text(svg)) < 10.9]
    if small:
        yield f"{len(small)} pictures have text under 11 px in a window of 1,100 px (smallest {min(small):.1f})"


def linked_papers(cells, code):
    bare = re.findall(r"arXiv:\d{4}\.\d{4,5}(?!\d|\]\(https://arxiv\.org)", prose_of(cells))
    if bare:
        yield f"papers without a link: {', '.join(bare)}"


def defined_words(cells, code):
    if "../docs/glossary.md#" not in prose_of(cells):
        yield "no term links to the glossary"


def kernel(cells, code, metadata):
    if metadata.get("kernelspec", {}).get("name") != "python3" or "name" not in metadata.get(
        "language_info", {}
    ):
        yield "its metadata lacks the kernel: JupyterLab would ask for one"


RULES = (
    sections,
    budget,
    minutes,
    first_picture,
    folds,
    untold,
    short_cells,
    sentences_with_reasons,
    readable_pictures,
    linked_papers,
    defined_words,
)


def departures(path: Path) -> list[str]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = notebook["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    return [
        *kernel(cells, code, notebook["metadata"]),
        *(found for rule in RULES for found in rule(cells, code)),
    ]


CHAPTERS = chapters_in(ROOT / "notebooks")


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_keeps_to_the_pattern(path):
    found = departures(path)
    assert not found, f"{path.name}:\n  " + "\n  ".join(found)


EXERCISES = sorted((ROOT / "exercises").glob("*.ipynb"))


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_an_exercise_shows_no_result_before_there_is_an_answer(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert [cell["id"] for cell in cells if cell.get("outputs")] == []


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_tasks_join_claims_to_their_reasons(path):
    """Tasks are lists of demands, so more of their sentences may be short."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert not list(sentences_with_reasons(cells, [], most=0.2))


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_a_task_is_understood_in_one_reading(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    tasks = [text(c) for c in cells if re.match(r"#+ Exercise", text(c))]
    words = [len(re.sub(r"<details>.*?</details>", "", task, flags=re.DOTALL).split()) for task in tasks]
    assert max(words) <= 150, (
        f"a task has {max(words)} words outside its small print (<details>), at most 150"
    )


def test_every_rule_can_fail(tmp_path):
    cells = [
        {
            "cell_type": "markdown",
            "source": "## Predict\n\n"
            + "(five words stand here now) " * 9
            + "Short. See arXiv:1910.02054. So it is.",
            "metadata": {},
        },
        {
            "cell_type": "code",
            "source": "bet(2)\n" * 14,
            "metadata": {"tags": ["setup"]},
            "outputs": [
                {"data": {"text/html": picture_of('<svg width="1280" viewBox="0 0 1280 9" font-size="12">')}}
            ],
        },
        {
            "cell_type": "code",
            "source": "reveal(guess, 8)\n" * 12,
            "metadata": {"jupyter": {"outputs_hidden": True}},
            "outputs": [{"name": "stdout", "text": ["\n", "answer: 8\n"]}],
        },
    ]
    path = tmp_path / "97_try.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}}))
    found = departures(path)
    assert len(found) == len(RULES) + 3, found  # `folds` and `untold` find two
    assert any("shows 'answer: 8'" in each for each in found)


def picture_of(svg: str) -> str:
    return f'<img src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"/>'
