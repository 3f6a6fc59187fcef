"""One Chromium and one JupyterLab for the tests of a file; skipped where there is no Chromium."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from notebook_page import WAIT, close_all
from playwright.sync_api import expect
from server import chromium_or_skip, course_copy, jupyterlab

expect.set_options(timeout=WAIT)  # as long as all other waits in these files; playwright's own limit is 5 s


@pytest.fixture(scope="module")
def browser():
    with chromium_or_skip() as found:
        yield found


@pytest.fixture(scope="module")
def one_tab(browser):
    page = browser.new_page()
    page.set_default_timeout(WAIT)
    page.asked, page.failed = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("pageerror", lambda error: page.failed.append(str(error)))
    page.on("console", lambda message: page.failed.append(message.text) if message.type == "error" else None)
    yield page
    page.close()


@pytest.fixture
def tab(one_tab):
    """An empty page of 1100 by 1000 px, light: one for all tests of a file, since to make one takes longer than most.

    Nothing may be asked of a network, and nothing may go wrong in silence.
    """
    one_tab.goto("about:blank")
    one_tab.set_viewport_size({"width": 1100, "height": 1000})
    one_tab.emulate_media(color_scheme="light")
    one_tab.asked.clear()
    one_tab.failed.clear()
    yield one_tab
    assert one_tab.failed == []
    assert [url for url in one_tab.asked if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.fixture(scope="module")
def lab():
    with course_copy() as root, jupyterlab(root, commands=True) as running:
        yield running


@pytest.fixture(scope="module")
def window(browser, lab):
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    yield page
    page.close()


@pytest.fixture
def page(window, lab):
    """JupyterLab is loaded once for a file's tests, which takes longer than most of them; each finds nothing open."""
    yield window
    close_all(window)
    lab.end_kernels()
