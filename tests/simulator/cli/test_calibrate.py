"""``python -m simulator calibrate``: the file it writes serves as ``--gpu``; what is missing is said in a sentence."""

import json
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

import simulator.cli
from simulator.inputs.hardware_file import read_hardware
from simulator.inputs.known_devices import GPUS

COMMAND = import_module("simulator.cli.calibrate")
SCHEMA = json.loads((Path(simulator.cli.__file__).parent / "answers.schema.json").read_text(encoding="utf-8"))
ROWS = [
    ("launch", 1, 0, 2e-6),
    ("matmul", 1, 1e6, 1e-4),
    ("matmul", 1, 1e9, 1e-2),
    ("memory", 1, 1e5, 1e-5),
    ("memory", 1, 1e8, 1e-2),
    ("attention", 1, 1.6e9, 0.1),
    ("attention backward", 1, 4e9, 0.2),
    ("loss", 1, 4e6, 0.05),
    ("all-reduce", 2, 1e4, 1e-4),
    ("all-reduce", 2, 1e8, 1e-1),
    ("overlap", 2, 0.5, 0.1),
]
QUIET = {"others": 0.05, "cores": 2, "threads": 2, "spread": 0.04}


@pytest.fixture
def measured(monkeypatch, request):
    """The process that measures prints made-up figures."""
    rows = [dict(zip(("what", "ranks", "size", "seconds"), row, strict=True)) for row in ROWS]
    rows[5] |= {"heads": 12, "queries": 1024, "keys": 1024, "width": 64}
    device = {"kind": "cpu", "name": "made up", "memory": 16e9, "units": 2, "count": 2}
    found = {
        "device": device,
        "precision": "fp32",
        "itemsize": 4,
        "torch": "2",
        "measured": rows,
        "quiet": QUIET,
    }
    text = json.dumps(found | request.param if hasattr(request, "param") else found)
    monkeypatch.setattr(COMMAND, "MEASURE", [sys.executable, "-c", f"print({text!r})"])


@pytest.mark.usefixtures("measured")
def test_the_file_serves_as_a_gpu(run, read, tmp_path):
    file = tmp_path / "mine.toml"
    output = run(f"calibrate --out {file}").output
    assert "products up to 0.1 TFLOP/s" in output
    assert "busy" not in output + file.read_text()
    assert f"--gpu {file} --precision fp32" in output
    answer = read(f"step --model gpt2 --gpu {file} --precision fp32 --global-batch 1")
    assert answer["hardware"]["name"] == "mine"
    assert answer["seconds"] > 1
    refused = run(f"calibrate --out {file}")
    assert refused.exit_code == 2
    assert "is there already: give another --out, or --overwrite" in refused.output
    answer = read(f"calibrate --out {file} --overwrite")
    jsonschema.validate(answer, SCHEMA)
    assert [row["what"] for row in answer["measured"]] == [row[0] for row in ROWS]


@pytest.mark.parametrize("measured", [{"quiet": QUIET | {"others": 1.2, "spread": 0.5}}], indirect=True)
def test_a_busy_machine_is_said_in_a_sentence_and_in_the_file(run, tmp_path, measured):
    file = tmp_path / "mine.toml"
    sentence = "this machine was busy: other programs kept 1.2 of its 2 processors at work"
    result = run(f"calibrate --out {file}")
    assert result.exit_code == 0
    assert result.stderr.startswith(f"Warning: {sentence}")
    assert result.stderr.count("\n") == 1
    assert sentence in tomllib.loads(file.read_text())["about"]
    answer = json.loads(run(f"calibrate --out {file} --overwrite --json").stdout)
    jsonschema.validate(answer, SCHEMA)
    assert answer["quiet"]["warning"].startswith(sentence)


def test_without_torch_a_sentence_says_what_is_missing(run, tmp_path, monkeypatch):
    monkeypatch.setattr(COMMAND, "find_spec", lambda name: None if name == "torch" else object())
    result = run(f"calibrate --out {tmp_path / 'mine.toml'}")
    assert result.exit_code == 2
    assert (
        "torch is not installed: install the course (pip install -e .), or write a hardware file"
        in result.output
    )


def test_a_measurement_that_fails_writes_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr(COMMAND, "MEASURE", [sys.executable, "-c", "raise SystemExit(3)"])
    result = run(f"calibrate --out {tmp_path / 'mine.toml'}")
    assert result.exit_code == 2
    assert "ended with exit code 3" in result.output
    assert not list(tmp_path.iterdir())
    assert "ends in .toml, not mine.json" in run("calibrate --out mine.json").output


def test_a_device_by_questions(tmp_path):
    """Enter takes what the known device has; the file says of each number whose it is."""
    file = tmp_path / "cluster.toml"
    answers = "a100-80gb\n300\n100\n4\n\n64\n\n"
    command = ["calibrate", "--ask", "--out", str(file)]
    result = CliRunner().invoke(simulator.cli.main, command, input=answers)
    assert result.exit_code == 0, result.output
    own, like = read_hardware(file), GPUS["a100-80gb"]
    assert (own.name, own.node_size, own.memory) == ("cluster", 4, 64e9)
    assert (own.network.bandwidth, own.peak_flops) == (12.5e9, like.peak_flops)
    assert own.matmul_efficiency == like.matmul_efficiency
    content = tomllib.loads(file.read_text())
    assert content["memory"]["capacity"]["source"] == "answered"
    assert content["compute"]["peak"]["source"] == "as a100-80gb"
    wrong = CliRunner().invoke(simulator.cli.main, [*command, "--overwrite"], input="h100\n-1\n")
    assert wrong.exit_code == 2
    assert "bandwidth must be" in wrong.output
