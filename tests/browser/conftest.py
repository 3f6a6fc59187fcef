"""One Chromium and one JupyterLab for the tests of a file; skipped where there is no Chromium."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from notebook_page import WAIT
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


@pytest.fixture
def page(browser, lab):
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    yield page
    page.close()
    lab.end_kernels()
