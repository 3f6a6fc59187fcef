"""``python -m simulator timeline``: its JSON, its files, and what it refuses."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from simulator.cli import main


def run(*arguments: str):
    return CliRunner().invoke(main, ["timeline", *arguments])


def test_json_contract():
    result = run("--schedule", "interleaved-1f1b", "--ranks", "4", "--microbatches", "8", "--json")
    assert result.exit_code == 0
    values = json.loads(result.output)
    assert round(values.pop("bubble"), 4) == 0.1579
    assert (
        values.items()
        >= {
            "schedule": "interleaved-1f1b",
            "ranks": 4,
            "microbatches": 8,
            "chunks": 2,
            "makespan": 57,
            "start": [0, 1, 2, 3],
            "end": [57, 55, 53, 51],
            "busy": [48, 48, 48, 48],
            "peak_in_flight": [11, 9, 7, 5],
        }.items()
    )


def test_times_are_options():
    arguments = [
        "--forward",
        "2",
        "--backward-input",
        "3",
        "--backward-weight",
        "1",
        "--transfer",
        "0.5",
        "--json",
    ]
    values = json.loads(run("--schedule", "gpipe", "--ranks", "2", "--microbatches", "1", *arguments).output)
    assert values["makespan"] == 2 * (2 + 3 + 1) + 2 * 0.5


def test_picture_and_trace(tmp_path):
    picture, trace = tmp_path / "a.svg", tmp_path / "a.json"
    result = run(
        *("--schedule", "1f1b", "--ranks", "2", "--microbatches", "4"),
        "--svg",
        str(picture),
        "--trace",
        str(trace),
    )
    assert "rank 0 waits for B0 of rank 1" in result.output
    assert picture.read_text().startswith("<svg role=")
    assert len([e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]) == 16


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--schedule", "1f1b", "--ranks", "0", "--microbatches", "4"], "ranks must be a whole number"),
        (
            ["--schedule", "2f2b", "--ranks", "2", "--microbatches", "4"],
            "'2f2b' is not one of 'one-at-a-time', 'gpipe'",
        ),
        (
            ["--schedule", "1f1b", "--ranks", "2", "--microbatches", "4", "--forward", "-1"],
            "forward must be a number of at least 0, not -1",
        ),
        (
            ["--schedule", "1f1b", "--ranks", "2", "--microbatches", "4", "--transfer", "nan"],
            "transfer must be a number of at least 0, not nan",
        ),
        (
            ["--schedule", "1f1b", "--ranks", "2", "--microbatches", "4", "--backward-weight", "inf"],
            "backward weight must be a number of at least 0, not inf",
        ),
        (
            ["--schedule", "1f1b", "--ranks", "2", "--microbatches", "4", "--tp", "2"],
            "--tp would not be used",
        ),
        (
            ["--model", "gpt2", "--gpu", "h100", "--global-batch", "8", "--ranks", "2"],
            "--ranks would not be used: with a model the times are predicted, and the ranks are --pp",
        ),
        (
            ["--model", "gpt3-175b", "--gpu", "h100", "--global-batch", "8"],
            "this plan needs",
        ),
        (
            ["--schedule", "1f1b", "--ranks", "2", "--microbatches", "4", "--chunks", "2"],
            "1f1b has 1 chunk a rank",
        ),
        (
            ["--schedule", "1f1b", "--ranks", "10000", "--microbatches", "1000000"],
            "ranks x microbatches x chunks must be at most 500,000, not 10,000,000,000",
        ),
        (["--schedule", "1f1b", "--ranks", "2"], "Missing option '--microbatches'"),
    ],
)
def test_refuses_with_exit_code_2(arguments, sentence):
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.output


@pytest.mark.parametrize(
    "plan",
    [
        "--pp 4 --global-batch 16",
        "--pp 4 --global-batch 16 --chunks 2 --dp 2 --zero 1",
        "--pp 2 --global-batch 16 --schedule zb-v --tp 2",
        "--dp 4 --zero 3 --global-batch 16",
        "--global-batch 2 --offload optimizer",
    ],
)
def test_a_plan_over_time_takes_as_long_as_step_says(tmp_path, plan):
    """The trace holds predicted times: its end is the seconds of ``step``, but for the form of 1F1B's bubble."""
    trace = tmp_path / "step.json"
    line = f"--model gpt2 --gpu h100 {plan}".split()
    answer = json.loads(run(*line, "--trace", str(trace), "--json").output)
    cost = json.loads(CliRunner().invoke(main, ["step", *line, "--json"]).output)
    assert answer["step_seconds"] == cost["seconds"]
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    end = max(e["ts"] + e["dur"] for e in events) / 1e6
    assert end == pytest.approx(cost["seconds"], rel=0.05)
    assert {e["pid"] for e in events} == set(range(answer["ranks"]))
    assert {"F0", "optimizer"} <= {e["name"].split(" stage")[0] for e in events}
    assert answer["units"]["makespan"] == "seconds"


def test_runs_as_a_module_without_torch():
    code = "import runpy, sys; sys.argv = ['simulator', 'timeline', *sys.argv[1:]]\n"
    code += "try: runpy.run_module('simulator', run_name='__main__')\nexcept SystemExit: print('torch' in sys.modules)"
    arguments = ["--schedule", "zb-h2", "--ranks", "2", "--microbatches", "4", "--json"]
    output = subprocess.check_output([sys.executable, "-c", code, *arguments], text=True).splitlines()
    assert json.loads(output[0])["schedule"] == "zb-h2"
    assert output[1] == "False"
