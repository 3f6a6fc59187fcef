"""The built site, in files and in a browser: ``make site``, then ``make site-test``. Skipped elsewhere."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from notebook_as_page import as_page
from playwright.sync_api import expect
from served import served, watched
from server import chromium_or_skip

ROOT = Path(__file__).parents[2]
STATE = ("explorer.html", "memory.html")  # behind their # stands what they show, as name=value
RAW = ("_static/", "play/")  # not pages of Sphinx: the standalone explorer, and the page that runs Python


class Links(HTMLParser):
    """What a page links to and loads, the places in it, and its pictures."""

    def __init__(self, path):
        super().__init__()
        self.links, self.places, self.tags = [], set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append((tag, given))
        self.links += [given[name] for name in ("href", "src", "data") if given.get(name)]
        self.places |= {given[name] for name in ("id", "name") if given.get(name)}


@pytest.fixture(scope="module")
def pages(site):
    found = {path.relative_to(site).as_posix(): Links(path) for path in site.rglob("*.html")}
    assert len(found) > 80
    return found


def test_no_link_is_broken(site, pages):
    broken = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            target = (target / "index.html" if target.is_dir() else target).resolve()
            if not target.is_file():
                broken.append(f"{name}: there is no {link}")
            elif parts.fragment and target.suffix == ".html" and not name.startswith(RAW):
                if target.name in STATE and "=" in parts.fragment:
                    continue
                there = pages[target.relative_to(site.resolve()).as_posix()]
                if unquote(parts.fragment) not in there.places:
                    broken.append(f"{name}: {link} has no such place")
    assert not broken, "\n".join(broken[:40])


def test_every_picture_can_be_read_aloud(pages):
    silent = []
    for name, page in pages.items():
        for tag, given in page.tags:
            if tag == "img" and not given.get("alt"):
                silent.append(f"{name}: <img> without words")
            if tag == "iframe" and not given.get("title"):
                silent.append(f"{name}: <iframe> without a title")
            if tag == "svg" and given.get("role") in ("img", "group") and not given.get("aria-label"):
                silent.append(f"{name}: <svg> without words")
    assert not silent, "\n".join(silent[:40])


def test_no_page_names_another_server_for_what_it_loads(pages):
    loaded = {"script": "src", "img": "src", "iframe": "src", "link": "href"}
    foreign = [
        f"{name}: {given[loaded[tag]]}"
        for name, page in pages.items()
        for tag, given in page.tags
        if tag in loaded and re.match(r"(https?:)?//", given.get(loaded[tag]) or "")
        if given.get("rel") != "canonical"
    ]
    assert not foreign, "\n".join(foreign[:40])


@pytest.fixture(scope="module")
def address(site):
    with served(site) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with chromium_or_skip() as found:
        yield found


@pytest.mark.timeout(600)
def test_every_page_loads_from_its_own_server_alone(browser, address, pages):
    names = [name for name in pages if not name.startswith((*RAW, "course_lib/", "simulator/"))]
    with watched(browser) as (page, wrong):
        for name in names:
            page.goto(f"{address}/{name}", wait_until="load")
            page.evaluate("window.MathJax?.startup?.promise")
    assert not wrong, "\n".join(wrong[:40])


def test_the_first_page_says_in_one_screen_what_the_course_is(browser, address):
    with watched(browser, viewport={"width": 1100, "height": 700}) as (page, wrong):
        page.goto(address)
        for seen in ("h1", ".moving svg", ".moving figcaption", "a[href='notebooks/00_start_here.html']"):
            box = page.locator(f"article {seen}").first.bounding_box()
            assert box["y"] >= 0, seen
            assert box["y"] + box["height"] <= 700, f"{seen} ends at {box['y'] + box['height']:.0f} px"
        assert page.locator(".course-map a").count() >= 20
        page.locator(".course-map").get_by_role("link", name="05 data parallelism").click()
        assert page.url.endswith("notebooks/05_ddp.html")
    assert not wrong


@pytest.mark.parametrize("name", ["index", "explorer", "notebooks/11_pipeline_parallel", "play/index"])
def test_a_page_can_be_read_without_seeing_it(browser, address, name):
    """Every control and every picture of the text has a name, and no level of the headings is left out."""
    with watched(browser, viewport={"width": 1100, "height": 900}) as (page, _):
        page.goto(f"{address}/{name}.html")
        if page.locator(".all-results button").count():
            page.locator(".all-results button").click()
        text = page.locator("main, [role=main]").first
        lines = [line.strip() for line in text.aria_snapshot().splitlines()]
        kind = re.compile(r"- '?(?:img|link|button|textbox|slider|checkbox|combobox|application)(.*)$")
        found = [match for line in lines if (match := kind.match(line))]
        assert len(found) >= 3
        assert [match.string for match in found if not re.match(r' "[^"]', match[1])] == []
        assert page.locator("iframe:not([title])").count() == 0  # a snapshot does not say their titles
        levels = page.evaluate(
            """() => [...document.querySelectorAll(":is(header, main, [role=main]) :is(h1, h2, h3, h4, h5)")]
            .filter(one => one.checkVisibility()).map(one => Number(one.tagName[1]))"""
        )
        assert levels.count(1) == 1
        assert levels[0] == 1
        assert all(below <= above + 1 for above, below in pairwise(levels)), levels


def test_the_picture_moves_stops_and_stands_still_for_who_wants_it(browser, address):
    def swept(page):
        return page.evaluate("getComputedStyle(document.querySelector('.moving .done')).transform")

    with watched(browser) as (page, _):
        page.goto(address)
        first = swept(page)
        page.wait_for_function(
            "before => getComputedStyle(document.querySelector('.moving .done')).transform !== before",
            arg=first,
        )
        page.locator(".pause input").check()
        stopped = swept(page)
        page.evaluate("new Promise(done => setTimeout(done, 300))")
        assert swept(page) == stopped
    with watched(browser, reduced_motion="reduce") as (page, _):
        page.goto(address)
        assert swept(page) == "none"
        assert not page.locator(".moving .pause").is_visible()


def test_results_are_hidden_until_they_are_asked_for(browser, address):
    with watched(browser) as (page, wrong):
        page.goto(f"{address}/notebooks/05_ddp.html")
        folds = page.locator("div.cell details.hide")
        chapter = json.loads((ROOT / "notebooks" / "05_ddp.ipynb").read_text(encoding="utf-8"))
        tags = [set(cell["metadata"].get("tags", ())) for cell in as_page(chapter)["cells"]]
        assert folds.count() == sum(len({"hide-input", "hide-output"} & each) for each in tags) > 0
        assert not page.locator("div.cell details.hide[open]").count()
        fold = folds.filter(has_text="1.26 times one GPU").first
        result = fold.get_by_text("1.26 times one GPU").first
        assert not result.is_visible()
        fold.locator("summary").click()
        assert result.is_visible()
        page.get_by_role("button", name="Show all results").click()
        assert page.locator("div.cell details.hide[open]").count() == folds.count()
    assert not wrong


def test_an_answer_and_the_words_that_tell_it_wait_for_the_bet(browser, address):
    with watched(browser) as (page, wrong):
        page.goto(f"{address}/notebooks/04_collectives.html")
        words, picture = (
            page.get_by_text("So NCCL makes eight rings"),
            page.get_by_alt_text("one ring: 2 GB through one network card"),
        )
        assert not words.is_visible()
        assert not picture.is_visible()
        page.get_by_role("button", name="400 ms", exact=True).click()
        expect(words).to_be_visible()
        expect(picture).to_be_visible()
        page.goto(address)
        page.get_by_role("button", name="400", exact=True).click()
        expect(page.get_by_text("A slice is then 7.0 GB")).to_be_visible()
    assert not wrong


def test_formulas_are_set(browser, address):
    with watched(browser) as (page, wrong):
        page.goto(f"{address}/notebooks/15_flash_attention.html")
        page.wait_for_selector("mjx-container svg", state="attached")  # the first may wait for a bet
        page.evaluate("window.MathJax.startup.promise")
        assert page.locator("mjx-container").count() >= 4
        assert not page.locator(".math.notranslate", has_text=re.compile(r"\\\(|\\\[")).count()
    assert not wrong


def test_the_search_finds_a_term(browser, address):
    with watched(browser) as (page, wrong):
        page.goto(address)
        page.locator("input[name=q]").first.fill("bubble")
        page.keyboard.press("Enter")
        page.wait_for_selector("#search-results li a")
        found = page.locator("#search-results li a").all_text_contents()
        assert any("Pipeline parallelism" in title for title in found), found
    assert not wrong


def test_the_explorer_follows_a_slider_and_the_readers_theme(browser, address):
    with watched(browser, viewport={"width": 1100, "height": 900}) as (page, wrong):
        page.goto(f"{address}/explorer.html")
        numbers = page.locator(".explorer .numbers")
        expect(numbers).to_contain_text("29.4 makespan")
        page.get_by_label("microbatches, slider").press("ArrowRight")
        expect(numbers).not_to_contain_text("29.4 makespan")
        for theme in ("dark", "light"):
            page.evaluate("theme => (document.body.dataset.theme = theme)", theme)
            page.locator(f".explorer[data-theme={theme}]").wait_for()
    assert not wrong


def test_the_link_at_a_still_picture_opens_what_the_chapter_speaks_of(browser, address):
    for name, count in {
        "11_pipeline_parallel": 1,
        "12_three_dimensions_in_depth": 1,
    }.items():
        with watched(browser, viewport={"width": 1100, "height": 900}) as (page, wrong):
            page.goto(f"{address}/notebooks/{name}.html")
            links = page.get_by_role("link", name="live view", include_hidden=True)
            found = links.evaluate_all("all => all.map(one => one.href)")
            assert len(found) == count
            for link in found:
                page.goto(link)
                page.locator(".explorer[data-shown]").wait_for()
                shown = json.loads(page.locator(".explorer").get_attribute("data-shown"))
                asked = {
                    name: text for name, text in parse_qsl(urlsplit(link).fragment) if name != "challenge"
                }
                assert {name: str(shown[name]).lower() for name in asked} == asked
                assert page.locator(".controls :is(select, input):enabled").count() >= 3
            if name.startswith("11"):
                assert "schedule=1f1b" in found[0]
        assert not wrong


@pytest.mark.parametrize(("name", "picture"), [("explorer", "canvas.timeline"), ("memory", ".bars")])
def test_on_a_phone_the_picture_is_seen_at_once_and_stays(browser, address, name, picture):
    with watched(browser, viewport={"width": 390, "height": 844}) as (page, wrong):
        page.goto(f"{address}/{name}.html")
        page.locator(".explorer[data-shown]").wait_for()
        box = page.locator(picture).bounding_box()
        assert box["y"] + box["height"] < 844
        slider = page.locator("input[type=range]").last
        slider.evaluate("slider => slider.scrollIntoView({ block: 'center' })")
        box, at = page.locator(picture).bounding_box(), slider.bounding_box()["y"]
        assert 48 <= box["y"] < box["y"] + box["height"] < at
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert not wrong
