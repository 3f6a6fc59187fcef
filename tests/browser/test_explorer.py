"""The explorer in a real browser: what is drawn after a slider has moved is what the engine says, pixel by pixel."""

from dataclasses import replace
from itertools import pairwise

import pytest
from drawn import drawn_bytes, wait_until_drawn, wrong_boxes
from playwright.sync_api import expect

from simulator.explorer import Explorer, explore
from simulator.explorer.question import Question
from simulator.inputs.placement import SCHEDULES
from simulator.predict.memory_over_time import replay

pytestmark = pytest.mark.timeout(600)  # many a wait inside is shorter, and says what did not come
FIRST = Question("1f1b", 4, 8, transfer=0.25)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    Explorer(FIRST).save(path)
    return path


@pytest.fixture
def opened(tab, file):
    """The standalone page."""
    tab.goto(file.as_uri())
    wait_until_drawn(tab, FIRST)
    return tab


def number(view, name):
    return view.locator(f"[data-number='{name}']").inner_text()


def test_every_box_is_where_python_says(opened):
    canvas = wait_until_drawn(opened, FIRST)
    assert wrong_boxes(canvas, FIRST) == []
    slider = opened.get_by_label("microbatches, slider")
    slider.focus()
    for m in (9, 10):
        slider.press("ArrowRight")
        question = replace(FIRST, microbatches=m)
        assert wrong_boxes(wait_until_drawn(opened, question), question) == []
    opened.get_by_label("schedule").select_option("zb-h1")
    opened.get_by_label("W, backward for the weights", exact=True).fill("0.5")
    opened.get_by_label("speeds of the ranks").fill("1, 1, 0.5, 1")
    question = replace(question, schedule="zb-h1", backward_weight=0.5, speeds=[1, 1, 0.5, 1])
    assert wrong_boxes(wait_until_drawn(opened, question), question) == []
    execution = Explorer(question).execution()
    assert number(opened, "makespan") == f"{execution.makespan:.4g}"
    assert number(opened, "bubble") == f"{100 * execution.bubble():.1f} %"


def test_the_bytes_are_those_of_the_replay(opened):
    opened.get_by_label("schedule").select_option("zb-h1")
    opened.get_by_label("part of it that W needs", exact=True).fill("0.5")
    question = replace(FIRST, schedule="zb-h1", kept=0.5)
    wait_until_drawn(opened, question)
    opened.wait_for_function(
        "() => document.querySelector('canvas.bytes').ariaLabel.includes('holds the most')"
    )
    execution = Explorer(question).execution()
    histories = replay(execution, question.saved, question.saved * question.kept)
    most = max(history.peak.bytes for history in histories)
    for rank in (0, 2):
        changes = [*histories[rank].times, execution.end]
        times = [(a + b) / 2 for a, b in pairwise(changes) if b - a > 0.4]  # far from a step's edge
        assert len(times) > 8
        found = drawn_bytes(opened.locator("canvas.bytes"), rank, times)
        wanted = [histories[rank].at(time).total / most for time in times]
        assert found == pytest.approx(wanted, abs=0.06)  # two pixels of a row


def test_a_wrong_value_is_answered_in_its_place(opened):
    field = opened.get_by_label("ranks", exact=True)
    field.fill("four")
    alert = opened.locator(".control.ranks [role=alert]")
    alert.get_by_text("Ranks must be a whole number of at least 1, not 'four'.").wait_for()
    assert field.get_attribute("aria-invalid") == "true"
    field.fill("3")
    question = replace(FIRST, ranks=3)
    assert wrong_boxes(wait_until_drawn(opened, question), question) == []
    assert alert.inner_text() == ""
    opened.get_by_label("speeds of the ranks").fill("1, 2")
    opened.locator(".control.speeds [role=alert]").get_by_text("Speeds must be 3 positive numbers").wait_for()
    assert opened.locator(".error:not(:empty)").count() == 1


def test_the_keyboard_reaches_everything(opened):
    reached = set()
    for _ in range(60):
        opened.keyboard.press("Tab")
        reached.add(
            opened.evaluate("() => document.activeElement.className || document.activeElement.tagName")
        )
    assert {"timeline", "play", "SUMMARY", "SELECT"} <= reached
    canvas, said = opened.locator("canvas.timeline"), opened.locator(".said")
    canvas.focus()
    for key, sentence in [
        ("ArrowRight", "F0 on rank 0: forward of microbatch 0"),
        ("ArrowRight", "F1 on rank 0"),
        ("ArrowDown", "rank 1 waits for F0 of rank 0"),
        ("ArrowRight", "F0 on rank 1"),
        ("End", "rank 1 has finished"),
        ("Home", "rank 1 waits for F0 of rank 0. Its message arrives at 1.25, and then F0 starts."),
    ]:
        canvas.press(key)
        said.get_by_text(sentence).wait_for()
    canvas.press("+")
    opened.wait_for_function("() => Number(document.querySelector('canvas.timeline').dataset.to) < 20")
    canvas.press("0")
    wait_until_drawn(opened, FIRST)
    canvas.press("c")
    opened.locator("button[aria-pressed=true]").get_by_text("Critical path").wait_for()
    canvas.press("Escape")
    canvas.press(" ")
    opened.get_by_role("button", name="Pause").wait_for()
    said.get_by_text("rank 0 holds").wait_for()
    canvas.press(" ")
    opened.get_by_role("button", name="Play").wait_for()


def test_pointing_at_a_gap_says_why_it_exists(opened):
    canvas, execution = opened.locator("canvas.timeline"), Explorer(FIRST).execution()
    frame, box = canvas.evaluate("canvas => ({...canvas.dataset})"), canvas.bounding_box()
    gap = max((g for g in execution.idle_gaps() if "waits" in g.cause), key=lambda g: g.end - g.start)
    left, right, row, to = (float(frame[name]) for name in ("left", "right", "row", "to"))
    middle = left + (gap.start + gap.end) / 2 * (right - left) / to
    opened.mouse.move(box["x"] + middle, box["y"] + (gap.rank + 0.5) * row)
    opened.locator(".said").get_by_text(gap.cause).wait_for()


def test_tables_say_the_same(opened):
    opened.get_by_text("As tables").press("Enter")
    table = opened.locator(".tables table").first
    table.wait_for()
    rows = table.locator("tbody tr").all_inner_texts()
    execution = Explorer(FIRST).execution()
    assert len(rows) == 4
    for rank, row in enumerate(rows):
        assert f"{execution.busy(rank):.4g}" in row.split("\t")
    opened.get_by_label("rank whose actions are listed").select_option("2")
    opened.locator("caption", has_text="Rank 2").wait_for()
    longest = max((g for g in execution.idle_gaps() if g.rank == 2), key=lambda g: g.end - g.start)
    assert longest.cause in opened.locator(".tables table").nth(1).inner_text()


def test_two_schedules_are_compared_in_numbers_and_to_one_scale(opened):
    opened.get_by_role("button", name="Keep to compare").click()
    opened.get_by_label("schedule").select_option("zb-h1")
    one, zero = Explorer(FIRST).execution(), Explorer(replace(FIRST, schedule="zb-h1")).execution()
    shorter = (
        f"The step is {one.makespan - zero.makespan:.4g} ({1 - zero.makespan / one.makespan:.1%}) shorter"
    )
    said = opened.locator(".compared")
    said.get_by_text(shorter.replace("%", " %")).wait_for()
    opened.wait_for_function(
        "end => [...document.querySelectorAll('canvas.timeline')].every(c => Math.abs(c.dataset.to - end) < 1e-9)",
        arg=one.end,
    )
    opened.get_by_role("button", name="All schedules").press("Enter")
    row = opened.locator(".overview tr", has_text="zb-v").locator("td").first
    row.wait_for()
    assert row.inner_text() == f"{Explorer(replace(FIRST, schedule='zb-v')).execution().makespan:.4g}"
    opened.get_by_role("button", name="Drop the kept one").click()
    assert opened.locator("canvas.timeline:visible").count() == 1


@pytest.mark.parametrize(("cap", "named"), [("4", True), ("7,5", True), ("0.5", False)])
def test_the_smallest_bubble_under_a_memory_cap(opened, cap, named):
    opened.get_by_role("button", name="All schedules").click()
    field, said = opened.get_by_label("Memory cap"), opened.locator("p.best")
    expect(field).to_be_focused()
    field.fill(cap)
    found = {}
    for schedule in SCHEDULES:
        question = replace(FIRST, schedule=schedule)
        execution = Explorer(question).execution()
        saved = question.saved / question.chunks_a_rank
        peak = max(history.peak.bytes for history in replay(execution, saved, saved * question.kept))
        if peak <= 1e9 * float(cap.replace(",", ".")):
            found[schedule] = execution.bubble()
    assert bool(found) == named
    if not named:
        expect(said).to_contain_text("Every schedule keeps more than 500 MB on some rank. With recomputation")
        opened.get_by_label("recomputation").select_option("full")
        expect(said).to_have_text("Every schedule keeps more than 500 MB on some rank.")
        return
    best = min(found, key=found.get)
    expect(said).to_contain_text(f"{best} has the smallest bubble: {100 * found[best]:.1f} %")
    expect(opened.locator("tr.best th")).to_have_text(best)
    expect(opened.locator(".overview td", has_text="too much")).to_have_count(len(SCHEDULES) - len(found))
    field.fill("four")
    expect(said).to_have_text("The memory cap must be a number of GB above 0, not 'four'.")
    expect(field).to_have_attribute("aria-invalid", "true")


def test_a_challenge_shows_nothing_before_the_guess(tab, tmp_path):
    path, page = tmp_path / "challenge.html", tab
    explore("1f1b", ranks=4, microbatches=8, challenge={"makespan": 28, "bytes": 4.5e9}).save(path)
    page.goto(path.as_uri())
    canvas, said = page.locator("canvas.timeline").first, page.locator(".challenge-said")
    keep, compared = page.locator("button.keep"), page.locator(".compared")
    page.locator(".explorer[data-shown]").wait_for()
    assert canvas.is_hidden()
    assert page.get_by_label("F, forward", exact=True).is_disabled()
    for schedule, guess, sentence in [
        (
            "1f1b",
            "33",
            "The makespan is 33; you were right. Not reached yet: the makespan must be at most 28.",
        ),
        ("zb-h2", "30", "more than 4.5 GB"),
        ("zb-h1", "20", "The makespan is 27; your 20 is too low by 25.9 %. Reached: "),
    ]:
        page.get_by_label("schedule").select_option(schedule)
        wait_for = f'() => document.querySelector(".explorer").dataset.shown.includes("{schedule}")'
        page.wait_for_function(wait_for)
        assert page.locator("canvas:visible").count() == 0
        assert keep.is_hidden()  # what is kept would be compared with the drawing that is covered
        assert compared.is_hidden()
        page.get_by_label("Your guess of the makespan").fill(guess)
        page.get_by_role("button", name="Reveal").click()
        said.get_by_text(sentence).wait_for()
        assert canvas.is_visible()
        if schedule == "1f1b":
            keep.click()
        assert compared.is_visible()
    page.get_by_label("Your guess of the makespan").fill("soon")
    page.get_by_role("button", name="Reveal").click()
    said.get_by_text("Your guess must be a number more than 0, not 'soon'.").wait_for()


def test_dark_and_narrow_and_inside_of_another_page(tab):
    page = tab
    page.set_viewport_size({"width": 700, "height": 900})
    page.emulate_media(color_scheme="dark")
    page.set_content(f"<body style='background: #111'>{explore(transfer=0.25).iframe()}</body>")
    frame = page.locator("iframe").element_handle().content_frame()
    canvas = wait_until_drawn(frame, FIRST)
    assert frame.locator(".explorer").get_attribute("data-theme") == "dark"
    assert all("#f0f0f0" in wrong for wrong in wrong_boxes(canvas, FIRST)), (
        "only idle time has another colour"
    )
    assert frame.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth"), "nothing is cut"


def test_what_is_drawn_off_screen_takes_the_theme_of_the_page_that_it_comes_into(tab):
    """JupyterLab draws an output in an element that is in no page yet, and takes away what is scrolled out of sight."""
    page = tab
    page.set_content("<style>body { background: #111 } body.day { background: #fff }</style>")
    live = Explorer(FIRST).widget()
    page.add_style_tag(content=live._css)
    drawn_again = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    page.evaluate(
        """async ([code, given]) => {
        const { default: widget } = await import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
        window.place = document.createElement("div");
        widget.render({ model: { get: () => given, on() {}, off() {}, send() {} }, el: place });
        document.body.append(await new Promise((done) => requestAnimationFrame(() => done(place)))); }""",
        [live._esm, live.given],
    )
    view = page.locator(".explorer")
    expect(view).to_have_attribute("data-theme", "dark")
    page.evaluate(drawn_again)
    assert wrong_boxes(wait_until_drawn(page, FIRST), FIRST), "idle time has another colour"
    page.evaluate("() => { place.remove(); document.body.className = 'day'; }")
    page.evaluate(drawn_again)
    page.evaluate("() => document.body.append(place)")
    expect(view).to_have_attribute("data-theme", "light")
    page.evaluate(drawn_again)
    assert wrong_boxes(page.locator("canvas.timeline"), FIRST) == []


MARKED = """([name, rank, part, time, away]) => {
  const canvas = document.querySelector(`canvas.${name}`), { left, right, row, from, to } = canvas.dataset;
  const scale = canvas.width / canvas.getBoundingClientRect().width, pen = canvas.getContext("2d");
  const x = Number(left) + (time - from) * (right - left) / (to - from);
  const y = (rank + part) * row - (part === 1 ? 2.5 : 0);
  const far = ([r, g, b]) => Math.hypot(r - 0xb3, g, b - 0x5e); // from the accent's colour
  return [-2, -1, 0, 1, 2, 3].some(k =>
    far(pen.getImageData(Math.round((x + k) * scale), Math.round(y * scale), 1, 1).data) < away);
}"""


def test_a_microbatch_in_focus_is_marked_in_timeline_and_memory(opened):
    """Its actions on every rank have a frame, and in the memory a bar says how long each rank keeps it."""
    execution = Explorer(FIRST).execution()
    opened.locator("canvas.timeline").press("ArrowRight")
    opened.locator(".said").get_by_text("F0 on rank 0").wait_for()
    for rank, actions in enumerate(execution.schedule.actions):
        own = [k for k, action in enumerate(actions) if action.microbatch == 0]
        start, end = execution.starts[rank][own[0]], execution.ends[rank][own[-1]]
        opened.wait_for_function(MARKED, arg=["timeline", rank, 0.5, start, 130])  # a thin line, blurred
        for share in (0.1, 0.5, 0.9):
            opened.wait_for_function(MARKED, arg=["bytes", rank, 1, start + share * (end - start), 30])
