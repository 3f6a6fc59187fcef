"""The folder ``site/`` is no package, because Python has a module ``site``: its files are imported by name."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("site", "tests/site", "tests/browser")]


@pytest.fixture(scope="session")
def site():
    """The folder of the built site, which ``make site-test`` names. Other runs of the suite build none."""
    if not os.environ.get("BUILT_SITE"):
        pytest.skip("tests of the built site: make site, then make site-test")
    folder = ROOT / os.environ["BUILT_SITE"]
    if not (folder / "index.html").exists():
        pytest.fail(f"there is no site in {folder}: make site builds it")
    return folder
