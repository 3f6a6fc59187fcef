"""The page of plans: as far as no browser is needed, and in one, where Pyodide has been fetched."""

import json
import re
from contextlib import ExitStack
from html import escape

import pytest
from npm import KEPT
from play.browser.plans import OWN, Html, find
from play.build import PYODIDE, build
from play.files import modules_for, pack
from play_helper import run_without_packages
from served import served, watched
from server import chromium_or_skip

from simulator.export import export
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.planner.plan_text import plan_text
from simulator.planner.search import search_plans

ASKED = {"model": "gpt2-xl", "config": "", "gpu": "a100-80gb", "gpus": "8", "global_batch": "16"}
CONFIG = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 64,
    "n_head": 4,
    "n_positions": 128,
    "vocab_size": 512,
}
VENDORED = KEPT / f"pyodide-{PYODIDE}"
LONG = 240_000  # ms


def ask(**values):
    return find(json.dumps(ASKED | values))


def lines(html):
    return re.findall(r'<button[^>]* data-plan="([^"]*)"', html)


def test_the_plans_are_those_of_the_planner():
    found = search_plans(MODELS["gpt2-xl"], GPUS["a100-80gb"], 8, 16)
    assert lines(ask().table()._repr_html_()) == [plan_text(one.plan) for one in found.best]


def test_a_plan_is_shown_with_its_memory_and_what_runs_it():
    plans = ask()
    second = lines(plans.table()._repr_html_())[1]
    shown = plans.show(second)._repr_html_()
    assert f'<h2 data-plan="{second}">' in shown
    assert "<svg" in shown
    plan = next(one.plan for one in plans.found.best if plan_text(one.plan) == second)
    assert escape(export("deepspeed", plans.shape, plan).text) in shown
    assert "not among" not in shown
    assert "not among" in plans.show("dp=3")._repr_html_()


def test_a_pipeline_has_a_timeline():
    plans = ask(model="llama-3-70b", gpu="a100-80gb", gpus="32", global_batch="32")
    with_stages = next(line for line in lines(plans.table()._repr_html_()) if "pp=" in line)
    assert plans.show(with_stages)._repr_html_().count("<svg") == 2


def test_an_own_config():
    plans = ask(model=OWN, config=json.dumps(CONFIG), gpus="2")
    assert plans.shape.layers == 2
    assert lines(plans.table()._repr_html_())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gpus": "x"}, "Gpus must be a whole number from 1 to 100000, not x."),
        ({"gpus": ""}, "not nothing."),
        ({"model": "gpt5"}, "gpt5"),
        ({"model": OWN, "config": "{"}, "What you pasted is not JSON"),
        ({"model": "gpt3-175b", "gpus": "1", "global_batch": "1"}, "plans fits: the smallest needs"),
    ],
)
def test_what_cannot_be_searched_is_told_in_a_sentence(values, said):
    found = ask(**values)
    assert isinstance(found, Html)
    assert said in found._repr_html_()


def test_it_runs_without_any_package(tmp_path):
    pack(modules_for([]), tmp_path / "course.zip")
    source = f"from play.browser.plans import find\nfind({json.dumps(ASKED)!r}).show()"
    ran = run_without_packages(tmp_path / "course.zip", [[source]])
    assert ran["results"][0]["error"] == ""
    assert ran["results"][0]["html"] == ask().show()._repr_html_()
    assert not ran["from_outside"] + ran["packages"]


@pytest.mark.timeout(900)
@pytest.mark.skipif(not VENDORED.is_dir(), reason="Pyodide has not been fetched: run `python site/play` once")
def test_the_page_finds_plans_and_its_address_leads_back(tmp_path):
    build(tmp_path / "play", VENDORED)
    with ExitStack() as stack:
        browser = stack.enter_context(chromium_or_skip())
        address = stack.enter_context(served(tmp_path / "play"))
        page, wrong = stack.enter_context(watched(browser, viewport={"width": 1100, "height": 900}))
        page.set_default_timeout(LONG)
        page.goto(f"{address}/plans.html")
        page.select_option("[name=model]", OWN)
        page.fill("[name=config]", json.dumps(CONFIG))
        page.fill("[name=gpus]", "2")
        page.fill("[name=global_batch]", "4")
        page.get_by_role("button", name="Find the plans").click()
        page.locator("#plan h2").wait_for()
        expected = lines(
            ask(model=OWN, config=json.dumps(CONFIG), gpu="h100", gpus="2", global_batch="4")
            .table()
            ._repr_html_()
        )
        buttons = page.locator("#plans button")
        assert buttons.all_inner_texts() == expected
        buttons.nth(1).click()
        page.locator(f'#plan h2[data-plan="{expected[1]}"]').wait_for()
        page.wait_for_function("() => location.hash.includes('plan=')")
        sent = page.url
        page.goto("about:blank")
        page.goto(sent)
        page.locator(f'#plan h2[data-plan="{expected[1]}"]').wait_for()
        page.fill("[name=gpus]", "3")
        page.get_by_role("button", name="Find the plans").click()
        page.locator("#plans .error", has_text="no plan uses 3 devices").wait_for()
        assert not wrong
