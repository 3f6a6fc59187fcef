"""The command line, run in this process; and the page's script, run in node without a page."""

import json
import shutil
import subprocess

import pytest
from click.testing import CliRunner

from simulator.cli import main
from simulator.explorer.bundle import script


@pytest.fixture
def run():
    """``run("memory --model gpt2")`` -> click's result, with exit code and output."""
    return lambda line: CliRunner().invoke(main, line.split())


@pytest.fixture
def read(run):
    """The same with ``--json``, which must succeed, as an object."""

    def parse(line):
        result = run(line + " --json")
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    return parse


@pytest.fixture(scope="session")
def run_in_node():
    """Call it with a program and what it calls ``questions``: what the program prints."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node to run the page's script in: `apt-get install nodejs`")

    def run(program, questions, main="main"):
        whole = f"{script(main)}\nconst questions = {json.dumps(questions)};\n{program}"
        done = subprocess.run(
            [node, "--input-type=module", "-"], input=whole, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
