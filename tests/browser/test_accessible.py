"""What someone who cannot see the explorer is told: names, headings, announcements, and where the keyboard is."""

import re
from itertools import pairwise

import pytest
from playwright.sync_api import expect

from simulator.explorer import explore, explore_memory

pytestmark = pytest.mark.timeout(600)
CONTROL = re.compile(r"- '?(?:slider|textbox|combobox|button|application|img|checkbox)(?P<name>.*)$")
HEADINGS = """() => [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")]
    .filter(one => one.checkVisibility()).map(one => [Number(one.tagName[1]), one.textContent])"""


@pytest.fixture(scope="module")
def tabs(browser):
    pages = [browser.new_page(viewport={"width": 1100, "height": 1000}) for _ in range(2)]
    yield pages
    for page in pages:
        page.close()


def opened(page, view, path):
    """A view's saved page as it opens."""
    view.save(path)
    page.goto(path.as_uri())
    page.locator(".explorer[data-shown]").wait_for()
    return page


@pytest.fixture
def pipeline(tabs, tmp_path):
    return opened(tabs[0], explore("zb-h1", ranks=4, microbatches=8), tmp_path / "explorer.html")


@pytest.fixture
def memory(tabs, tmp_path):
    return opened(tabs[1], explore_memory("gpt3-175b", "h100", dp=64, zero=3), tmp_path / "memory.html")


def without_a_name(page):
    controls = [CONTROL.match(line.strip()) for line in page.locator("body").aria_snapshot().splitlines()]
    found = [control for control in controls if control]
    assert len(found) > 10
    return [control.string for control in found if not re.match(r' "[^"]', control["name"])]


def test_every_control_has_a_name(pipeline, memory):
    pipeline.get_by_role("button", name="All schedules").click()
    assert without_a_name(pipeline) == []
    assert without_a_name(memory) == []
    pipeline.get_by_role("button", name="All schedules").click()


def test_headings_are_nested(pipeline, memory):
    for page in (pipeline, memory):
        levels = [level for level, _ in page.evaluate(HEADINGS)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(below <= above + 1 for above, below in pairwise(levels)), levels
    pipeline.get_by_role("button", name="Keep to compare").click()
    titles = pipeline.evaluate(HEADINGS)
    assert [level for level, _ in titles] == [1, 2, 3, 3, 2, 3, 3], titles
    assert titles[1][1] == "Now: zb-h1, 4 ranks, 8 microbatches"
    pipeline.get_by_role("button", name="Drop the kept one").click()


def test_a_change_is_announced_as_a_whole(pipeline):
    numbers = pipeline.locator(".numbers")
    expect(numbers).to_have_attribute("aria-live", "polite")
    expect(numbers).to_have_attribute("aria-atomic", "true")
    pipeline.get_by_label("microbatches, slider").press("ArrowRight")
    expect(numbers).to_contain_text("30 makespan (whole step)")
    pipeline.get_by_label("microbatches, slider").press("ArrowLeft")
    expect(numbers).to_contain_text("27 makespan (whole step)")


def test_the_play_head_is_not_announced_with_every_frame(pipeline):
    said = pipeline.locator(".said")
    expect(said).to_have_attribute("aria-live", "polite")
    pipeline.get_by_role("button", name="Play").click()
    expect(said).to_have_attribute("aria-live", "off")
    expect(said).to_contain_text("rank 0 holds")
    pipeline.get_by_role("button", name="Pause").click()
    expect(said).to_have_attribute("aria-live", "polite")
    expect(said).to_contain_text("rank 0 holds")
    pipeline.locator("canvas.timeline").press("Escape")


def test_the_keyboard_stays_where_it_was(pipeline, memory):
    opens = pipeline.get_by_role("button", name="All schedules")
    expect(opens).to_have_attribute("aria-expanded", "false")
    opens.press("Enter")
    expect(opens).to_have_attribute("aria-expanded", "true")
    expect(pipeline.get_by_label("Memory cap")).to_be_focused()
    schedule = pipeline.locator(".overview").get_by_role("button", name="zb-v")
    schedule.press("Enter")
    expect(schedule).to_have_attribute("aria-current", "true")  # the table has been made again
    expect(schedule).to_be_focused()

    memory.locator(".part summary", has_text="activations").press("Enter")
    memory.locator(".changes").get_by_role("button", name=re.compile("^tp")).press("Enter")
    expect(memory.get_by_label("tensor-parallel ranks (tp)", exact=True)).to_be_focused()
    expect(memory.locator(".verdict")).to_contain_text("It fits")
    expect(memory.locator(".part[open] summary")).to_contain_text("activations")  # what was opened stays open


def test_bars_are_named_after_what_they_show(memory):
    bars = memory.locator(".bar .name")
    memory.get_by_label("pipeline ranks (pp)", exact=True).fill("1")
    expect(bars).to_have_text(["each rank"])
    memory.get_by_label("pipeline ranks (pp)", exact=True).fill("4")
    expect(bars).to_have_text([f"stage {k}" for k in range(4)])
    expect(memory.locator(".of")).to_contain_text("A rank of stage 0 holds")
    memory.get_by_label("schedule").select_option("zb-v")
    expect(bars).to_have_text([f"stages {k}, {7 - k}" for k in range(4)])
