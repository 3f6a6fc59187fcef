"""Help: complete, at most 80 columns, quick; and a reader who has read enough hears nothing of it."""

import subprocess
import sys
import time
from dataclasses import fields

import pytest

from simulator.cli import COMMANDS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_80_columns(run, command):
    result = run(f"{command} --help")
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    names = ["--json"] if command else COMMANDS
    assert all(name in result.output for name in names)


@pytest.mark.parametrize("command", ["memory", "step", "timeline"])
def test_every_field_has_an_option_with_a_text_beside_it(run, command):
    """Texts begin in one column: behind their option, or on the line below it."""
    lines = run(f"{command} --help").output.splitlines()
    for field in [*fields(ModelShape), *fields(Plan)]:
        name = "--" + field.name.replace("_", "-")
        (at,) = [i for i, line in enumerate(lines) if line.lstrip().startswith(name + " ")]
        beside = lines[at] if len(lines[at]) > 30 and lines[at][28:30] == "  " else lines[at + 1]
        assert beside[30:31].strip(), lines[at : at + 2]


def test_help_is_quick_because_no_command_is_imported():
    code = "import sys, simulator.cli as c\ntry: c.main(['--help'])\nexcept SystemExit: pass\n"
    code += (
        "print([m for m in sys.modules if m.startswith('simulator.') and not m.startswith('simulator.cli')])"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert output.splitlines()[-1] == "[]"


def test_a_closed_pipe_is_quiet():
    """``| head -1``: the reader closes the pipe while the command still has much to write."""
    line = ["timeline", "--schedule", "1f1b", "--ranks", "40", "--microbatches", "60"]
    process = subprocess.Popen(
        [sys.executable, "-m", "simulator", *line], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    _, errors = process.communicate()
    assert errors == b""


def test_a_large_timeline_is_summed_up_in_linear_time(read):
    """Eight times the ranks: 8 times the processor's time, and up to 64 when every rank looked at all spans."""

    def seconds(ranks):
        start = time.process_time()
        read(f"timeline --schedule 1f1b --ranks {ranks} --microbatches 50")
        return time.process_time() - start

    few, many = (min(seconds(ranks) for _ in range(3)) for ranks in (100, 800))
    assert many < 24 * few
