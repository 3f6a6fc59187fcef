"""The page in a real browser: each cell shows what Python shows, and nothing is asked of another server.

Skipped where Pyodide has not been fetched: ``python site/play`` fetches it.
"""

from contextlib import ExitStack
from dataclasses import replace

import pytest
from npm import KEPT
from play.build import PYODIDE, build
from play_helper import cells, chapters, run_without_packages
from playwright.sync_api import expect
from served import served, watched
from server import chromium_or_skip

from simulator.explorer.calculator import MemoryQuestion, calculate
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule

VENDORED = KEPT / f"pyodide-{PYODIDE}"
LONG = 240_000  # ms; loading takes three seconds on an idle machine
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not VENDORED.is_dir(), reason="Pyodide has not been fetched: run `python site/play` once"
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("play") / "play"
    build(path, VENDORED)
    return path


@pytest.fixture(scope="module")
def opened(folder):
    """The page, with Python loaded; ``wrong`` lists foreign requests, missing files and errors since it was opened."""
    with ExitStack() as stack:
        browser = stack.enter_context(chromium_or_skip())
        address = stack.enter_context(served(folder))
        page, wrong = stack.enter_context(watched(browser, viewport={"width": 1100, "height": 900}))
        page.set_default_timeout(LONG)
        expect.set_options(timeout=LONG)
        stack.callback(expect.set_options, timeout=5_000)
        page.wrong, page.asked = wrong, []
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(f"{address}/index.html")
        page.locator("#chapter-00").scroll_into_view_if_needed()
        expect(page.locator("#python")).to_contain_text("Python is ready")
        yield page


def run(cell, source, keys="Control+Enter"):
    """Write into a cell and run it; returns when it has ended."""
    cell.locator("textarea").fill(source)
    cell.locator("textarea").press(keys)
    expect(cell.locator(".run")).to_have_text("Run")


def test_every_cell_shows_what_python_shows(opened, folder):
    page = opened
    expected = run_without_packages(
        folder / "course.zip", [[cell.source for cell in part.cells] for part in chapters()]
    )["results"]
    for part in chapters():
        page.locator(f"#chapter-{part.number} .reset-all").click()  # another test may have changed a cell
        page.locator(f"#chapter-{part.number} .run-all").click()
        expect(page.locator(f"#chapter-{part.number} .cell").last.locator(".state")).to_contain_text(
            "has run"
        )
    shown = page.evaluate("""() => [...document.querySelectorAll(".cell")].map((cell) => ({
        id: cell.dataset.cell,
        source: cell.querySelector("textarea").value,
        printed: cell.querySelector(".output > pre")?.textContent ?? "",
        html: cell.querySelector(".output > .value")?.innerHTML ?? "",
        error: cell.querySelector(".output > .error")?.textContent ?? "",
    }))""")
    tidy = """(html) => {
        const place = document.createElement("template");  // in it an iframe does not load
        place.innerHTML = html;
        for (const frame of place.content.querySelectorAll("iframe")) frame.removeAttribute("style");
        return place.innerHTML;
    }"""
    for (_, cell), found, right in zip(cells(), shown, expected, strict=True):
        assert (found["id"], found["source"]) == (cell.id, cell.source)
        assert found["error"] == "", found
        assert found["printed"] == right["printed"], cell.id
        assert page.evaluate(tidy, found["html"]) == page.evaluate(tidy, right["html"]), cell.id


def test_a_changed_cell(opened):
    """Numbers, keys, variables that stay, one sentence for a mistake, Reset, Stop."""
    page = opened
    first, second = (page.locator("#chapter-11 .cell").nth(i) for i in (1, 2))
    mine = 'step = simulate(make_schedule("zb-v", 16, 64), 1, 1, 1, transfer=0.25)\nprint(step.makespan, step.bubble())'
    run(
        first,
        "from simulator.pipeline.engine import simulate\n"
        "from simulator.pipeline.schedules import make_schedule\n" + mine,
        "Shift+Enter",
    )
    step = simulate(make_schedule("zb-v", 16, 64), 1, 1, 1, transfer=0.25)
    expect(first.locator(".output > pre")).to_have_text(f"{step.makespan} {step.bubble()}\n")
    expect(second.locator("textarea")).to_be_focused()

    run(second, "round(step.makespan)")
    expect(second.locator(".value")).to_have_text(f"{round(step.makespan)}")
    run(second, "step\nmake_schedule('zb-x', 4, 8)")
    expect(second.locator(".output > .error")).to_have_count(1)
    said = second.locator(".output > .error").inner_text()
    assert said.startswith("Line 2: ")
    assert "zb-x" in said
    assert "\n" not in said
    assert "Traceback" not in second.inner_text()
    run(second, "import matplotlib")
    expect(second.locator(".error")).to_contain_text(
        "matplotlib is not on this page, which has only the simulator"
    )

    run(second, "from simulator.explorer import explore\nexplore('zb-v', 4, 8)")
    makespan = second.frame_locator("iframe").locator("[data-number='makespan']")
    expect(makespan).to_contain_text(f"{simulate(make_schedule('zb-v', 4, 8), 0.5, 0.5, 0.5).makespan:g}")

    second.locator(".reset").click()
    expect(second.locator("textarea")).to_have_value(chapters()[2].cells[2].source)
    expect(second.locator(".reset")).to_be_disabled()
    expect(second.locator(".output")).to_be_hidden()

    second.locator("textarea").fill("print('begun')\nwhile True:\n    pass")
    second.locator(".run").click()
    expect(second.locator(".output > pre")).to_have_text("begun\n")
    second.locator(".run").click()  # it is called Stop now
    expect(second.locator(".state")).to_contain_text("was stopped")
    run(second, "1 + 1")
    expect(second.locator(".value")).to_have_text("2")
    run(second, "step")
    expect(second.locator(".error")).to_contain_text("the name 'step' is not defined")


def test_a_cells_memory_calculator_computes_other_plans(opened):
    first = opened.locator("#chapter-00 .cell").nth(1)
    run(
        first,
        "from simulator.explorer import explore_memory\nexplore_memory('llama-3-8b', 'h100', dp=8, zero=0)",
    )
    frame, question = first.frame_locator("iframe"), MemoryQuestion("llama-3-8b", "h100", dp=8, zero=0)
    expect(frame.locator(".verdict")).to_have_text(calculate(question)["verdict"])
    frame.get_by_label("ZeRO stage").select_option("2")
    expect(frame.locator(".verdict")).to_have_text(calculate(replace(question, zero=2))["verdict"])
    assert opened.wrong == []


def test_opened_as_a_file_it_says_what_to_do(opened, folder):
    assert opened.locator("#from-a-file").is_hidden()
    page = opened.context.browser.new_page()
    page.goto((folder / "index.html").as_uri())
    expect(page.locator("#from-a-file")).to_contain_text("A browser runs this page only from a server")
    expect(page.locator("#from-a-file")).to_be_visible()
    page.close()


def test_nothing_came_from_elsewhere_and_nothing_failed(opened):
    assert opened.wrong == []
    assert any(url.endswith("pyodide.asm.wasm") for url in opened.asked)
