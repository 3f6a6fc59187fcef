"""The command lines of the benchmarks: ``--help`` says what runs and starts nothing; wrong options end with 2.

Each script is run as ``python benchmarks/X.py`` would run it, but in this process, so that torch is imported once.
"""

import importlib.util
import re
import runpy
import sys
from pathlib import Path

import pytest

from course_lib.elastic.random_faults import Report

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(ROOT.glob("benchmarks/*.py"))
LIBRARIES = {"paired", "slow_network"}  # what the others import
BENCHMARKS = [script for script in SCRIPTS if script.stem not in LIBRARIES]

pytestmark = pytest.mark.timeout(60)  # a script that starts to measure when it is asked for help


@pytest.fixture
def run(monkeypatch):
    """(script, arguments) -> the exit code."""

    def run(script, *arguments):
        monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
        monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        return ended.value.code

    return run


@pytest.mark.parametrize("script", BENCHMARKS, ids=lambda script: script.stem)
def test_help_says_what_is_compared_how_long_it_takes_and_what_is_printed(script, run, capsys):
    assert run(script, "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"python benchmarks/{script.name}" in said
    assert "Prints " in said
    assert "Takes about " in said


@pytest.mark.parametrize("script", BENCHMARKS, ids=lambda script: script.stem)
def test_an_unknown_option_ends_with_2(script, run, capsys):
    assert run(script, "--nonsense") == 2
    said = capsys.readouterr().err
    assert "No such option" in said
    assert "--nonsense" in said


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("recompute", "--rounds", "0"),
        ("zero", "--rounds", "many"),
        ("compression", "--mbit", "20,fast"),
        ("flash", "--lengths", "1024,-1"),
        ("unequal_devices", "--slowness", "1,,3"),
        ("elastic_faults", "--first", "-1"),
    ],
)
def test_a_value_that_is_not_accepted_ends_with_2_and_is_named(name, option, value, run, capsys):
    assert run(ROOT / "benchmarks" / f"{name}.py", option, value) == 2
    said = capsys.readouterr().err
    assert option in said
    assert value in said


def test_make_bench_runs_every_benchmark():
    rule = re.search(r"^bench:.*\n(?:\t.*\n)+", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]
    left_out = re.search(r"filter-out ([^,]+),", rule)
    assert {Path(name).stem for name in left_out[1].split()} == LIBRARIES


def load(name, monkeypatch):
    """The benchmark as a module."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / f"benchmarks/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_elastic_faults_keeps_a_line_for_each_run_and_runs_no_good_seed_again(tmp_path, monkeypatch, capsys):
    faults = load("elastic_faults", monkeypatch)
    begun = []

    def random_run(seed, keep):
        begun.append((seed, keep.name))
        if begun.count(begun[-1]) == 1 and seed == 6:
            return Report(seed, "done", 3.0, 9, 2, ["kill rank 1"], left=["port 127.0.0.1:20001"])
        return Report(seed, "done", 5.0, 10, 3, ["kill agent 0", "add 0"])

    monkeypatch.setattr(faults, "random_run", random_run)
    for code in (1, 0):
        with pytest.raises(SystemExit) as ended:
            faults.main.callback(runs=2, first=5, folder=tmp_path / "kept")
        assert ended.value.code == code
    assert begun == [(5, "seed-5"), (6, "seed-6"), (6, "seed-6")]
    assert len((tmp_path / "kept/runs.jsonl").read_text().splitlines()) == 3
    first, second = capsys.readouterr().out.split("seed 5: ")[1:]
    assert "seed 6: FAILED; port 127.0.0.1:20001" in first
    assert "1 ended: not good" in first
    assert second.startswith("kept: done; 5 s, 10 steps; kill agent 0, add 0")
    assert "2 ended: done" in second
    assert "kill agent 2, kill rank 0, pause 0, resume 0, add 2; rounds that were formed again: 4" in second


def test_random_compositions_tell_what_is_equal_from_what_is_not(monkeypatch, capsys):
    compositions = load("random_compositions", monkeypatch)
    drawn = [compositions.draw(seed) for seed in range(300)]
    assert {case["model"] for case in drawn} == compositions.MODELS.keys()
    assert {case["tuning"][0] for case in drawn} == compositions.TUNINGS.keys()
    assert {case["plans"][0].get("schedule") for case in drawn} == {None, *compositions.SCHEDULES}
    by_words = {"model": "gpt", "tuning": ("lora", {"rank": 2, "targets": ["head"]}), "own loss": True}
    assert {case["fp8"] for case in drawn} == {None, *compositions.SCALING}
    assert {case["plans"][0].get("ep", 1) for case in drawn} >= {1, 2, 4}
    case = (
        drawn[0]
        | {"optimizer": "adam", "fp8": None}
        | by_words
        | {"frozen": False, "plans": [{"tp": 2, "microbatches": 2}], "rows": [2, 3]}
    )
    too_few = case | {"rows": [2, 1]}
    monkeypatch.setattr(compositions, "draw", lambda seed, resume: (case, too_few, case)[seed])
    expected = compositions.one_device(case)
    shifted = iter([expected, expected, expected | {"norm 1": expected["norm 1"] * 1.001}])
    monkeypatch.setattr(compositions, "one_device", lambda case: next(shifted))
    with pytest.raises(SystemExit) as ended:
        compositions.main.callback(runs=3, first=0, resume=False)
    assert ended.value.code == 1
    equal, refused, failed, again, sentence, summary = capsys.readouterr().out.splitlines()
    assert equal.startswith("equal")
    assert refused.startswith("refused")
    assert "too few rows" in sentence
    assert "FAILED" in failed
    assert "norm 1 differs by" in failed
    assert again.endswith("--runs 1 --first 2")
    assert summary == "3 runs: 1 equal, 1 refused, 1 failed"


def test_a_few_random_compositions_are_one_device(monkeypatch):
    """Among them Muon on FSDP's shards, activation offload in a zero-bubble pipeline, and both on one rank; experts
    dealt out beside tensor parallelism, in fp8, and under Muon on ZeRO's shards."""
    compositions = load("random_compositions", monkeypatch)
    with compositions.kept():
        ends = {
            seed: compositions.run(compositions.draw(seed)) for seed in (2029, 2007, 2044, 4077, 2040, 2134)
        }
    assert ends == dict.fromkeys(ends, ("equal", ""))


def test_elastic_prints_each_measurement_when_it_is_there(monkeypatch, capsys):
    elastic = load("elastic", monkeypatch)
    printed = []

    def measure(make):
        printed.append(capsys.readouterr().out)
        return (1.5, 2.5, 0.5) if len(printed) % 2 else (None, None, None)

    monkeypatch.setattr(elastic, "measure", measure)
    with pytest.raises(SystemExit) as ended:
        elastic.main.callback(rounds=2, worker=None)
    assert ended.value.code == 0
    assert [line.partition(":")[0] for line in printed] == [
        "",
        "round 1 of 2, ours",
        "round 1 of 2, torchrun",
        "round 2 of 2, ours",
    ]
    assert "of three, after a kill: 2.50 s" in printed[1]
    assert printed[2].endswith("torchrun: first step of four ranks: not within 120 s\n"), (
        "the rest was not tried"
    )


def test_without_a_chromium_the_explorer_says_so_and_ends_with_2(run, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    assert run(ROOT / "benchmarks" / "explorer.py") == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("there is no Chromium: ")
    assert "Traceback" not in shown.err
    assert shown.out == ""
