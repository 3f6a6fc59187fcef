"""A chapter's bets on the site, in a headless Chromium: a script plays what the notebook's outputs hold."""

import re
from html import unescape
from pathlib import Path

import pytest
from notebook_as_page import as_page
from playwright.sync_api import expect
from server import chromium_or_skip

from course_lib.observe.show import game
from course_lib.observe.show.commitment import Bet, Guess
from course_lib.observe.show.predict import reveal
from course_lib.observe.show.tables import table

SCRIPT = (Path(game.__file__).with_name("game.js")).read_text(encoding="utf-8")
GUESS = {"name": "sent by each rank", "unit": "B", "asked": "MB"}
FORMULA = {"p": 4, "gradients": (44.72e6, "B")}
WAY_BACK = {"you forgot the way back": 33.54e6, "you sent nothing": 0}
CHOICES = ("faster", "slower <b>")


def outputs():
    guess, which = Guess(**GUESS), Bet("both laptops", CHOICES)
    yield game.as_html(guess)
    yield reveal(guess, 67.08e6, "2 (p - 1)/p × gradients", mistakes=WAY_BACK, **FORMULA).html()
    yield game.as_html(which)
    shown = table(["", "ms"], [["cable", 108]])
    yield reveal(which, "slower <b>", shown, mistakes={"faster": "You kept both busy."}).html()
    yield reveal(Guess("asked on another page", unit="B"), 4).html()


@pytest.fixture(scope="module")
def browser():
    with chromium_or_skip() as found:
        yield found


@pytest.fixture
def page(browser):
    cells = [
        {
            "cell_type": "code",
            "metadata": {"jupyter": {"outputs_hidden": True}},
            "source": "",
            "outputs": [{"data": {}}, {"data": {"text/html": html}}],
        }
        for html in outputs()
    ]
    shown = as_page({"cells": cells})["cells"]
    assert all("hide-output" not in cell["metadata"]["tags"] for cell in shown)
    page = browser.new_page()
    page.set_content("".join(f"<div>{cell['outputs'][0]['data']['text/html']}</div>" for cell in shown))
    yield page
    page.close()


def test_without_a_script_the_answer_is_in_a_closed_fold(page):
    answer = page.get_by_text("67.1 MB")
    expect(answer).not_to_be_visible()
    page.get_by_text("The answer opens after your guess.").first.click()
    expect(answer).to_be_visible()


def test_the_page_plays_a_guess_and_a_bet(page):
    page.add_script_tag(content=f"{SCRIPT}\nplay();", type="module")
    field = page.get_by_role("spinbutton", name="sent by each rank, in MB")
    page.get_by_text("The answer opens after your bet.").wait_for()
    assert "67.1" not in page.locator("body").text_content()
    assert "108" not in page.locator("body").text_content()
    field.press("Enter")  # nothing is said
    assert "67.1" not in page.locator("body").text_content()
    field.fill("34")
    field.press("Enter")
    said = "You said 34 MB: too low, by a factor of 2. Perhaps you forgot the way back."
    expect(page.get_by_text(said)).to_be_visible()
    expect(page.get_by_text("= 2 × (4 - 1)/4 × 44.7 MB")).to_be_visible()
    axis = page.get_by_role("img", name="from 0 B to 134.2 MB; you: 34 MB, predicted: 67.1 MB")
    expect(axis).to_be_visible()
    field.fill("670")
    field.press("Enter")
    expect(page.get_by_role("img", name="you: 670 MB →, predicted: 67.1 MB")).to_be_visible()
    assert "108" not in page.locator("body").text_content(), "the bet has not been made"
    choice = page.get_by_role("button", name="faster")
    choice.press("Enter")
    expect(choice).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_text("You said “faster”. You kept both busy.")).to_be_visible()
    expect(page.get_by_role("cell", name="108")).to_be_visible()
    page.get_by_role("button", name="slower <b>").click()
    expect(page.get_by_text("Right.")).to_be_visible()
    expect(page.locator("details")).to_have_count(1)  # what the page does not ask stays as it was


@pytest.mark.parametrize(
    ("asked", "right", "guesses"),
    [
        (GUESS, 67.08e6, (0, 10, 33, 33.5, 50, 66, 67, 67.1, 75, 134, 536, 900, 12.3456)),
        ({"name": "lost", "unit": "%", "asked": "%"}, 0.897, (1, 50, 89.7, 99.95)),
        ({"name": "GPUs", "unit": "GPUs", "asked": "GPUs"}, 35, (8, 34, 35, 36, 7000)),
    ],
)
def test_the_script_says_what_python_says(page, asked, right, guesses):
    guess = Guess(**asked)
    answer = reveal(guess, right, mistakes=WAY_BACK if guess.unit == "B" else None)
    said = page.evaluate(
        """async ([source, html, guesses, unit]) => {
        const game = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
        const place = Object.assign(document.createElement("div"), { innerHTML: html }).firstChild;
        const facts = game.decoded(place.dataset.answer);
        return guesses.map((guess) => game.verdict(facts, guess, unit)); }""",
        [SCRIPT, answer.html(), list(guesses), guess.asked],
    )
    for number, html in zip(guesses, said, strict=True):
        guess.value = guess.read(number)
        mine, _, drawn = html.partition("<div")
        assert unescape(mine).split(": ", 1)[1] == answer.said().split(": ", 1)[1], number
        where = re.compile(r"left:([\d.]+)%")
        assert where.findall(drawn) == where.findall(answer.html()), number
