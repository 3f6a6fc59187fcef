"""Types: one process, beside other tests."""

import subprocess
import sys
from pathlib import Path


def test_the_types_that_pyproject_names_hold():
    found = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable],
        cwd=Path(__file__).parents[1],
        capture_output=True,
    )
    assert found.returncode == 0, found.stdout.decode()
