"""Bets, guesses and explorers in JupyterLab: nothing is revealed before something is said, the keyboard suffices, and
Python computes what the page shows."""

import re
from dataclasses import replace
from functools import partial

import nbformat
import pytest
from drawn import wait_until_drawn, wrong_boxes
from nbformat.v4 import new_code_cell, new_notebook
from notebook_page import PANEL, command, open_page, run_all, use_theme, wait_for_kernel
from playwright.sync_api import expect

from course_lib.notebooks.build import METADATA
from simulator.explorer.calculator import MemoryQuestion, calculate
from simulator.explorer.question import Question

pytestmark = pytest.mark.timeout(600)
CELLS = (
    "from course_lib.observe.show.compare import Row, compare\n"
    "from course_lib.observe.show.predict import bet, predict, reveal\n"
    "from course_lib.observe.show.tables import table",
    'guess = predict("sent by each rank", ..., unit="MB", low=0, high=100)',
    'reveal(guess, 67.08e6, "2 (p - 1)/p × gradients", mistakes={"you forgot the way back": 33.54e6},\n'
    '       p=4, gradients=(44.72e6, "B"))',
    'which = bet("one layer, both laptops", ["faster", "slower", "as fast"])',
    'reveal(which, "slower", table(["", "ms"], [["cable", 108]]), mistakes={"faster": "You kept both busy."})',
    'compare(Row("sent", guess, 67.08e6, 67e6, unit="B"))',
)

COLOURS = """box => [box, ...box.querySelectorAll("button, input")].map(one => getComputedStyle(one).color)"""


@pytest.fixture
def outputs(page, lab):
    """The outputs of a notebook in front, all of whose cells have been run."""
    notebook = new_notebook(cells=[new_code_cell(source) for source in CELLS], metadata=METADATA)
    nbformat.write(notebook, lab.root / "notebooks" / "95_game.ipynb")
    open_page(page, lab, "notebooks/95_game.ipynb")
    wait_for_kernel(page)
    run_all(page)
    cells = page.locator(f"{PANEL} .jp-CodeCell")
    return [cells.nth(k).locator(".jp-OutputArea-output") for k in range(len(CELLS))]


def test_run_all_reveals_nothing_and_the_keyboard_plays(page, outputs):
    _, guess, answer, which, bet_answer, _ = outputs
    expect(answer).to_have_text("The answer opens after your guess.")
    expect(bet_answer).to_have_text("The answer opens after your bet.")

    slider = guess.get_by_role("slider", name="sent by each rank, slider")
    slider.focus()
    page.keyboard.press("ArrowRight")
    field = guess.get_by_role("spinbutton", name="sent by each rank, in MB")
    expect(field).to_have_value("51")
    field.click()
    page.keyboard.press("Control+A")
    page.keyboard.type("34")
    expect(slider).to_have_value("34")
    page.keyboard.press("Enter")
    expect(guess.get_by_role("status")).to_have_text("You say 34 MB")
    expect(answer).to_contain_text("sent by each rank: 67.1 MB")
    expect(answer).to_contain_text(
        "You said 34 MB: too low, by a factor of 2. Perhaps you forgot the way back."
    )
    expect(answer.get_by_role("img", name="you: 34 MB, predicted: 67.1 MB")).to_be_visible()
    expect(bet_answer).to_have_text("The answer opens after your bet.")

    page.keyboard.press("Tab")  # from the field to the button Guess
    expect(guess.get_by_role("button", name="Guess")).to_be_focused()
    choice = which.get_by_role("button", name="faster")
    choice.focus()
    page.keyboard.press("Enter")
    expect(choice).to_have_attribute("aria-pressed", "true")
    expect(bet_answer).to_contain_text("You said “faster”. You kept both busy.")
    expect(bet_answer.locator("table")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(which.get_by_role("button", name="slower")).to_have_attribute("aria-pressed", "true")
    expect(bet_answer).to_contain_text("Right.")


def test_words_are_seen_in_both_themes_and_cells_that_are_run_again_keep_what_was_said(page, outputs):
    _, guess, answer, which, _, compared = outputs
    for dark in (True, False):
        use_theme(page, dark)
        for colour in guess.locator(".course-game").evaluate(COLOURS):
            light = sum(map(int, colour[colour.index("(") + 1 :].split(")")[0].split(",")[:3])) / 3
            assert light > 170 if dark else light < 85, f"{'dark' if dark else 'light'}: {colour}"
    which.get_by_role("button", name="slower").click()
    guess.get_by_role("spinbutton").fill("67.1")
    guess.get_by_role("button", name="Guess").click()
    expect(answer).to_contain_text("You said 67.1 MB: right.")
    run_all(page)
    expect(guess.get_by_role("spinbutton")).to_have_value("67.1")
    expect(which.get_by_role("button", name="slower")).to_have_attribute("aria-pressed", "true")
    expect(answer).to_contain_text("You said 67.1 MB: right.")
    measured = "you: 67.1 MB, predicted: 67.1 MB, measured: 67 MB"
    expect(compared.get_by_role("img", name=measured)).to_be_visible()


def length_of_a_part(calculator, name):
    """How much of its track a part of the first bar takes, in percent."""
    style = calculator.locator(f".piece.{name}").first.get_attribute("style")
    return float(re.search(r"width: ([\d.]+)%", style)[1])


def test_in_jupyterlab_python_computes_and_runs_the_readers_own_schedule(page, lab):
    source = """from simulator.explorer import explore

def mine(ranks, microbatches):
    order = [f"F{i}" for i in range(microbatches)] + [f"B{i}" for i in range(min(microbatches, 9))]
    return [order] * ranks

explore(mine, ranks=4, microbatches=8, transfer=0.25)"""
    memory = (
        "from simulator.explorer import explore_memory\nexplore_memory('llama-3-8b', 'h100', dp=8, zero=0)"
    )
    notebook = new_notebook(cells=[new_code_cell(source), new_code_cell(memory)], metadata=METADATA)
    nbformat.write(notebook, lab.root / "notebooks" / "95_explorer.ipynb")
    open_page(page, lab, "notebooks/95_explorer.ipynb")
    wait_for_kernel(page)
    command(page, "notebook:run-all-cells")
    first = Question("1f1b", 4, 8, transfer=0.25)
    question = replace(first, schedule="gpipe")  # what the reader's function amounts to, up to 9 microbatches
    assert wrong_boxes(wait_until_drawn(page, question, "your own"), question) == []
    expect(page.locator(f"{PANEL} .explorer-still:visible")).to_have_count(0, timeout=60_000)
    pipeline, calculator = (page.locator(f"{PANEL} .explorer").nth(k) for k in (0, 1))
    ids = page.locator(f"{PANEL} .explorer [id]").evaluate_all("found => found.map(one => one.id)")
    assert len(ids) > 40
    assert len(set(ids)) == len(ids)  # a label finds the field of its own view
    slider = pipeline.get_by_label("microbatches, slider")
    slider.press("ArrowRight")
    question = replace(question, microbatches=9)
    assert wrong_boxes(wait_until_drawn(page, question, "your own"), question) == []
    slider.press("ArrowRight")
    pipeline.locator(".microbatches [role=alert]").get_by_text("Rank 0 never does B9 of stage 0.").wait_for()
    pipeline.get_by_label("schedule").select_option("1f1b")
    question = replace(first, microbatches=10)
    assert wrong_boxes(wait_until_drawn(page, question), question) == []
    confirmed = pipeline.locator(".drawing")  # the page drew it, and Python computed the same
    expect(confirmed).to_have_attribute(
        "data-confirmed", re.compile('"1f1b","ranks":4,"microbatches":10,'), timeout=60_000
    )
    pipeline.locator("canvas.timeline").press("ArrowRight")  # and JupyterLab leaves the keys to the view
    pipeline.locator(".said").get_by_text("F0 on rank 0").wait_for()
    verdict = calculator.locator(".verdict")
    verdict.get_by_text("It does not fit: the fullest rank needs").wait_for()
    length = partial(length_of_a_part, calculator)
    states, once = length("optimizer_states"), length("activations")
    slider = calculator.get_by_label("sequences in a microbatch, slider")
    slider.press("ArrowRight")
    found = calculate(MemoryQuestion("llama-3-8b", "h100", dp=8, zero=0, micro_batch=2))
    verdict.get_by_text(found["verdict"]).wait_for()
    assert length("optimizer_states") == states  # a bar that grows takes nothing from its other parts
    assert length("activations") == pytest.approx(2 * once, rel=1e-3)
    slider.press("ArrowLeft")
    found = calculate(MemoryQuestion("llama-3-8b", "h100", dp=8, zero=0))
    verdict.get_by_text(found["verdict"]).wait_for()
    calculator.get_by_role("button", name="zero 2").click()
    found = calculate(MemoryQuestion("llama-3-8b", "h100", dp=8, zero=2))
    verdict.get_by_text(found["verdict"]).wait_for()
    assert length("activations") == once  # what keeps its bytes keeps its length
    calculator.locator(".part summary", has_text="optimizer states").click()
    (words, _), *_ = found["ranks"][0]["optimizer_states"]["terms"]
    calculator.locator(".part li", has_text=words).wait_for()
    calculator.get_by_label("tensor-parallel ranks (tp)", exact=True).fill("3")
    calculator.locator(".tp [role=alert]").get_by_text("Tp must divide the 32 heads, not 3.").wait_for()
    command(page, "docmanager:save")
    saved = nbformat.read(lab.root / "notebooks" / "95_explorer.ipynb", as_version=4).cells[0].outputs
    assert "explorer-still" in saved[0]["data"]["text/html"]
    assert "your own" in saved[0]["data"]["text/plain"]
