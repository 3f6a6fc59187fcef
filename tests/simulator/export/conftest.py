"""The command line, run in this process."""

import json

import pytest
from click.testing import CliRunner

from simulator.cli import main


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
