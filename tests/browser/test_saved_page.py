"""A saved view, as a page of its own: it computes, its address holds its state, and it can be used on a phone."""

import pytest
from drawn import wait_until_drawn
from playwright.sync_api import expect

from simulator.explorer import MemoryQuestion, explore, explore_memory
from simulator.explorer.calculator import calculate
from simulator.explorer.question import Question
from simulator.ledgers.timeline import Timeline
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule

pytestmark = pytest.mark.timeout(600)
PHONE = {"width": 390, "height": 844}
VIEWS = {
    "pipeline": explore("zb-h1", transfer=0.2),
    "memory": explore_memory("llama-3-70b", "h100", pp=4, zero=1),
}
PICTURE = {"pipeline": "canvas.timeline", "memory": ".bars"}


@pytest.fixture
def opened(tab, tmp_path):
    """Call it with a view: its page, in a window of that size, at that address."""

    def open_page(view, address="", **size):
        view.save(path := tmp_path / "view.html")
        tab.goto("about:blank")  # or another address on the same page would load nothing
        tab.set_viewport_size(size or {"width": 1100, "height": 900})
        tab.goto(path.as_uri() + address)
        tab.locator(".explorer").wait_for()
        return tab

    return open_page


def test_the_saved_calculator_computes_other_plans(opened):
    page = opened(VIEWS["memory"])
    page.get_by_label("ZeRO stage").select_option("3")
    page.get_by_label("model", exact=True).select_option("mixtral-8x7b")
    found = calculate(MemoryQuestion("mixtral-8x7b", "h100", pp=4, zero=3))
    expect(page.locator(".verdict")).to_have_text(found["verdict"])
    expect(page.locator(".of")).to_contain_text(found["about"])
    page.get_by_label("tensor-parallel ranks (tp)", exact=True).fill("3")
    expect(page.locator(".tp [role=alert]")).to_have_text("Tp must divide the 32 heads, not 3.")


def test_the_address_opens_what_it_was_taken_from(opened):
    asked = Question("zb-v", 3, 6, speeds=[1, 1, 0.5], forward=1.5)
    page = opened(VIEWS["pipeline"], "#" + explore(**asked.as_dict()).address())
    wait_until_drawn(page, asked)  # and not the transfer with which the page itself begins
    page.get_by_label("microbatches, slider").press("ArrowRight")
    changed = Question("zb-v", 3, 7, speeds=[1, 1, 0.5], forward=1.5)
    wait_until_drawn(page, changed)
    assert page.evaluate("location.hash") == "#" + changed.address()
    page.evaluate("location.hash = 'schedule=gpipe'")  # as a link on the same page does
    wait_until_drawn(page, Question("gpipe"))
    wait_until_drawn(opened(VIEWS["pipeline"], "#" + changed.address()), changed)
    memory = MemoryQuestion("gpt2", "v100", dp=2, sequence_parallel=True)
    page = opened(VIEWS["memory"], "#" + memory.address())
    expect(page.locator(".verdict")).to_have_text(calculate(memory)["verdict"])


def test_an_address_may_set_a_challenge_and_a_wrong_one_is_answered(opened):
    task = explore("1f1b", ranks=4, microbatches=12, challenge={"makespan": 38, "bytes": 4e9})
    page = opened(VIEWS["pipeline"], "#" + task.address())
    expect(page.locator(".challenge")).to_contain_text(
        "Reach a makespan of at most 38, with at most 4 GB on every rank"
    )
    assert page.locator("canvas.timeline").is_hidden()
    page.set_viewport_size(PHONE)
    assert (
        page.get_by_label("schedule").bounding_box()["y"] < 300
    )  # and not below the place of a picture unseen
    page = opened(VIEWS["pipeline"], "#schedule=2f2b")
    expect(page.locator(".schedule [role=alert]")).to_contain_text("Schedule must be one of one-at-a-time, ")
    page.get_by_label("schedule").select_option("1f1b")
    wait_until_drawn(page, Question())


@pytest.mark.parametrize("name", VIEWS)
def test_on_a_phone_the_picture_comes_first_and_stays_while_sliders_move(opened, name):
    page = opened(VIEWS[name], **PHONE)
    page.locator(".explorer[data-shown]").wait_for()
    picture = page.locator(PICTURE[name])

    def edges(locator):
        box = locator.bounding_box()
        return box["y"], box["y"] + box["height"]

    assert 0 <= edges(picture)[0] < edges(picture)[1] <= PHONE["height"] / 2
    assert edges(page.locator(".controls"))[0] > edges(picture)[1]
    for slider in page.locator("input[type=range]:visible").all():
        slider.evaluate("slider => slider.scrollIntoView({ block: 'center' })")
        (top, below), at = edges(picture), edges(slider)[0]
        assert 0 <= top < below < at < PHONE["height"], slider.get_attribute("aria-label")
        assert slider.evaluate(
            "s => s.contains(document.elementFromPoint(s.getBoundingClientRect().x + 9, "
            "s.getBoundingClientRect().y + 9))"
        )
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


@pytest.mark.parametrize("name", VIEWS)
def test_a_finger_can_set_each_value_of_a_slider(opened, name):
    page = opened(VIEWS[name])
    for width in (390, 700, 1100):
        page.set_viewport_size({"width": width, "height": 900})
        narrow = page.locator("input[type=range]").evaluate_all(
            """all => all.map(one => [one.ariaLabel, (one.offsetWidth - 16) * one.step / (one.max - one.min)])
            .filter(([, pixels]) => pixels < 3)"""
        )
        assert narrow == [], width


def test_what_is_switched_off_looks_so(opened):
    page = opened(explore(challenge={"makespan": 28, "bytes": 4e9}))
    look = "one => [getComputedStyle(one).opacity < 0.6, getComputedStyle(one).cursor]"
    assert page.get_by_label("ranks", exact=True).evaluate(look) == [True, "not-allowed"]
    assert page.get_by_label("schedule").evaluate(look)[0] is False
    page = opened(explore("1f1b", measured=simulate(make_schedule("1f1b", 4, 8), 1, 1, 1)))
    page.get_by_label("schedule").select_option("gpipe")
    button = page.get_by_role("button", name="Measured")
    expect(button).to_be_disabled()
    assert button.evaluate(look) == [True, "not-allowed"]


def test_measured_times_can_be_read_and_have_a_unit(opened):
    run = simulate(make_schedule("1f1b", 4, 8), 0.0045678, 0.0056789, 0.0056789, transfer=0.00012345)
    page = opened(explore("1f1b", ranks=4, microbatches=8, measured=Timeline(run.spans)))
    page.locator(".explorer[data-shown]").wait_for()
    assert page.get_by_label("F, forward", exact=True).input_value() == "0.004568"
    clipped = "all => all.filter(one => one.value && one.scrollWidth > one.clientWidth).map(one => one.name)"
    for width in (390, 1100):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.locator(".control input[type=text]").evaluate_all(clipped) == [], width
    expect(page.locator("legend", has_text="Time of one microbatch")).to_have_text(
        "Time of one microbatch on a rank, in s"
    )
    expect(page.locator("[data-number=makespan]")).to_have_text(f"{float(f'{run.makespan:.4g}'):g} s")
    expect(page.locator(".beside")).to_contain_text(" s. This is ")
