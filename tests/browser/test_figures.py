"""Every small figure in a real browser: its keys and sliders, what is read out, its text in every step, both themes."""

import json

import pytest
from pictures import text_problems
from playwright.sync_api import expect

from simulator import figures

pytestmark = pytest.mark.timeout(600)
MAKERS = {name: getattr(figures, name) for name in figures.__all__ if name.startswith("explore_")}
SVG = "document.querySelector('.stage svg')"
STEPS = """() => { // [its number, its picture, the picture's height] of each
  const stage = document.querySelector(".stage"), view = document.querySelector(".explorer"), found = new Map();
  const press = (key) => stage.dispatchEvent(new KeyboardEvent("keydown", { key }));
  const walks = [...document.querySelectorAll("button")].some((one) => one.textContent === "Play");
  if (walks) press("Home");
  while (!found.has(view.dataset.step)) {
    found.set(view.dataset.step, [stage.firstChild.outerHTML, stage.firstChild.viewBox.baseVal.height]);
    if (walks) press("ArrowRight");
  }
  return [...found].map(([step, found]) => [step, ...found]); }"""
COLOURS = """[...document.querySelectorAll('.stage svg *')]
    .flatMap(one => [one.getAttribute('fill'), one.getAttribute('stroke')]).filter(one => one !== null)"""


@pytest.fixture(scope="module")
def blank(browser):
    page = browser.new_page()
    yield page
    page.close()


@pytest.fixture
def opened(tab, tmp_path):
    """Call it with a figure's name: its saved page, which asks for nothing but itself."""

    def open_page(name, scheme="light"):
        MAKERS[name]().save(path := tmp_path / f"{name}.html")
        tab.set_viewport_size({"width": 672, "height": 800})
        tab.emulate_media(color_scheme=scheme)
        tab.goto(path.as_uri())
        tab.locator(".stage svg").wait_for()
        assert {*tab.asked} == {path.as_uri()}
        return tab

    return open_page


def said(page):
    return page.locator(".stage").get_attribute("aria-description")


@pytest.mark.parametrize("name", MAKERS)
def test_keys_and_sliders_change_what_is_said_and_drawn(opened, name):
    page = opened(name)
    stage = page.get_by_role("application")
    expect(stage).to_have_accessible_name(page.title() + ". " + stage.get_attribute("title"))
    walks = page.get_by_role("button", name="Play").count()
    before = said(page), page.evaluate(f"{SVG}.outerHTML")
    stage.press("ArrowRight")
    after = said(page), page.evaluate(f"{SVG}.outerHTML")
    assert after[0] != before[0]
    assert after[1] != before[1]
    expect(page.locator(".said")).to_have_text(after[0])
    stage.press("ArrowLeft")
    assert said(page) == before[0]
    if walks:
        stage.press("End")
        assert page.locator(".explorer").get_attribute("data-step") != "0"
        stage.press("Home")
        stage.press(" ")
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        expect(page.locator(".explorer")).to_have_attribute("data-step", "2")
        stage.press("Home")
        expect(page.get_by_role("button", name="Play")).to_be_visible()
    for field in page.locator(".controls input").all():
        now = page.locator(".explorer").get_attribute("data-values")
        values = json.loads(now)
        key = " " if field.get_attribute("type") == "checkbox" else "ArrowRight"
        field.press(key)
        if page.locator(".explorer").get_attribute("data-values") == now:  # it stood at its end
            field.press("ArrowLeft")
        changed = json.loads(page.locator(".explorer").get_attribute("data-values"))
        assert [one for one in values if values[one] != changed[one]] == [field.get_attribute("name")]


@pytest.mark.parametrize("name", MAKERS)
def test_text_can_be_read_in_every_step(opened, name, blank):
    page, problems = opened(name), {}
    for end in (None, "Home", "End"):
        if end:
            page.locator(".controls input[type=range]").first.press(end)
        for step, svg, height in page.evaluate(STEPS):
            problems[end, step] = text_problems(blank, svg, 640, height)
    assert {key: found for key, found in problems.items() if found} == {}
    assert page.evaluate("document.documentElement.scrollWidth") <= 672


@pytest.mark.parametrize("name", MAKERS)
def test_both_themes_have_their_colours(opened, name):
    light, dark = (set(opened(name, scheme).evaluate(COLOURS)) for scheme in ("light", "dark"))
    assert all(len(colour) == 7 or colour == "none" for colour in light | dark)
    assert {"#1f2328", "#57606a"} & light
    assert not {"#1f2328", "#57606a"} & dark
    assert {"#e6e6e6", "#a9b1ba"} & dark
