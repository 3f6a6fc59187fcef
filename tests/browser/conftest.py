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
