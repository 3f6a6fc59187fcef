"""Bets and guesses in JupyterLab: nothing is revealed before something is said, and the keyboard suffices."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from notebook_page import PANEL, open_page, run_all, use_theme, wait_for_kernel
from playwright.sync_api import expect

from course_lib.notebooks.build import METADATA

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
