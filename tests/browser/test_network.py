"""A network's tree in a real browser: every figure that the page shows is the ledgers', and mouse and keys fold it."""

import re

import pytest
import torch
from playwright.sync_api import expect
from torch import nn

from course_lib.models.bert import Bert, BertConfig
from course_lib.models.resnet import ResNet18
from course_lib.observe.networks.explore import explore_network

pytestmark = pytest.mark.timeout(600)  # the waits inside are shorter, and say what did not come
NUMBERS = re.compile(
    r"Parameters: ([\d,]+) bytes.*: ([\d,]+) bytes.*FLOPs: ([\d,]+) forward and ([\d,]+) backward"
)
CASES = {
    "resnet": (ResNet18, torch.zeros(1, 3, 64, 64), {"": 0, "layer4": 1}),
    "bert": (lambda: Bert(BertConfig.tiny(), pooler=True), torch.ones(1, 8, dtype=torch.long), {"": (0, 1)}),
}


@pytest.fixture
def open_tree(tab, tmp_path):
    """Call it with what ``explore_network`` takes: returns the tree and the page."""

    def opened(model, *inputs, **options):
        shown = explore_network(model, *inputs, **options)
        shown.save(tmp_path / "network.html")
        tab.set_viewport_size({"width": 760, "height": 700})
        tab.emulate_media(color_scheme="dark")
        tab.goto((tmp_path / "network.html").as_uri())
        tab.locator(".said").wait_for()
        return shown.tree, tab

    return opened


def rows_of(module):
    yield module
    for inner in module.inside:
        yield from rows_of(inner)


@pytest.mark.parametrize("case", CASES)
def test_every_figure_of_the_page_is_the_trees(open_tree, case):
    make, x, placement = CASES[case]
    tree, page = open_tree(make(), x, placement=placement)
    page.get_by_role("button", name="Open all").click()
    modules, rows = list(rows_of(tree)), page.locator(".row:visible")
    assert rows.count() == len(modules)
    labels = rows.evaluate_all("rows => rows.map((row) => row.ariaLabel)")
    for module, label in zip(modules, labels, strict=True):
        assert label.startswith(f"{module.name or 'The model'} ({module.kind}). ")
        found = NUMBERS.search(label)
        assert tuple(int(text.replace(",", "")) for text in found.groups()) == module.cost, label
    rows.nth(5).hover()
    assert page.locator(".said").inner_text() == labels[5]
    assert page.locator(".explorer").get_attribute("data-theme") == "dark"


def test_keys_move_and_fold(open_tree):
    _, page = open_tree(ResNet18(), CASES["resnet"][1])
    focused, said = page.locator(".row:focus"), page.locator(".said")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    for keys, name, expanded in [
        ("", "The model", "true"),
        ("ArrowDown ArrowDown", "bn1", None),
        ("End ArrowUp ArrowUp", "layer4", "false"),
        ("ArrowRight", "layer4", "true"),
        ("ArrowRight Enter", "layer4.0", "true"),
        ("ArrowDown", "layer4.0.conv1", None),
        ("ArrowLeft", "layer4.0", "true"),
        ("ArrowLeft ArrowLeft ArrowLeft", "layer4", "false"),
        ("Home", "The model", "true"),
        ("Tab Shift+Tab", "The model", "true"),  # the tree is one stop
    ]:
        for key in keys.split():
            page.keyboard.press(key)
        page.wait_for_function(
            "said => document.querySelector('.said').textContent.startsWith(said)", arg=f"{name} ("
        )
        if expanded:  # the browser says a moment later that a row was folded
            expect(focused, keys).to_have_attribute("aria-expanded", expanded)
        else:
            assert focused.get_attribute("aria-expanded") is None, (keys, name)
        assert said.inner_text() == focused.get_attribute("aria-label")
    assert page.locator(".row:visible").count() == 11


def test_a_thousand_modules_stay_usable(open_tree):
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(333)))
    tree, page = open_tree(nn.Sequential(blocks, nn.Linear(4, 2)), torch.zeros(1, 4))
    assert len(list(rows_of(tree))) == 1002
    shown, focused = page.locator(".row:visible"), page.locator(".row:focus")
    assert shown.count() == 3
    page.locator(".row").nth(1).focus()
    page.keyboard.press("ArrowRight")
    assert shown.count() == 336
    page.get_by_role("button", name="Open all").click()
    assert shown.count() == 1002
    page.locator(".row").nth(1).focus()
    for key in ("End", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
    assert focused.get_attribute("aria-label").startswith("0.332 (Sequential).")
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), (
        "the tree scrolls, not the page"
    )
    page.get_by_role("button", name="Fold all").click()
    assert shown.count() == 3


def test_without_a_script_the_tree_folds_too(browser):
    still = explore_network(ResNet18(), CASES["resnet"][1]).still()["text/html"]
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_content(still)
    shown = page.locator(".row:visible")
    assert shown.count() == 11
    page.locator("summary", has_text="layer1").click()
    assert shown.count() == 13
    assert NUMBERS.search(shown.nth(6).get_attribute("title"))
    context.close()
