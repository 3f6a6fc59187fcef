"""One Chromium and one JupyterLab for the tests of a file; skipped where there is no Chromium."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from server import chromium, course_copy, jupyterlab


@pytest.fixture(scope="module")
def browser():
    try:
        block = chromium()
        found = block.__enter__()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    yield found
    block.__exit__(None, None, None)


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
