"""The files of ``course_lib/by_hand`` as programs."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def program(monkeypatch, capsys):
    """Run a file as ``python -m`` does; returns its exit code and what it printed."""

    def run(technique, *options):
        monkeypatch.setattr(sys, "argv", [technique, *options])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / "course_lib" / "by_hand" / f"{technique}.py"), run_name="__main__")
        return ended.value.code, capsys.readouterr()

    return run


def row(text, name):
    return next(line for line in text.splitlines() if line.startswith(name))


def test_a_run_shows_its_ledgers_beside_the_prediction(program):
    code, said = program("ddp", "--ranks", "2", "--steps", "4", "--batch", "4")
    assert (code, said.err) == (0, "")
    begins, *rungs = said.out.split("\n\n")
    assert "834,304 parameters" in begins
    assert "on 2 ranks" in begins
    assert [rung.splitlines()[0] for rung in rungs] == ["per parameter", "buckets", "overlap"]
    for rung in rungs:
        loss, norm = (
            float(part.split()[-1]) for part in row(rung, "largest difference to one device").split(",")
        )
        assert loss < 1e-5
        assert norm < 1e-3
        assert all(row(rung, name) for name in ("a step", "messages on their way", "held at most"))
        assert row(rung, "sent by all-reduce").endswith("exactly 1")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--ranks", "3", "--batch", "4"], "Error: --batch must be a multiple of the 3 ranks, not 4"),
        (["--ranks", "0"], "Error: Invalid value for '--ranks': 0 is not in the range x>=1."),
        (["--steps", "3"], "Error: Invalid value for '--steps': 3 is not in the range x>=4."),
    ],
)
def test_bad_input_gets_one_sentence(program, options, sentence):
    code, said = program("fsdp", *options)
    assert code == 2
    assert said.err.splitlines()[-1] == sentence


def test_help_is_what_the_file_says(program):
    code, said = program("fsdp", "--help")
    assert code == 0
    assert "FSDP by hand" in said.out
    assert "--ranks" in said.out


def test_the_same_file_runs_under_torchrun():
    command = "-m torch.distributed.run --standalone --nproc-per-node 2 -m course_lib.by_hand.fsdp --steps 4 --batch 4"
    run = subprocess.run(
        [sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("on 2 ranks") == 1  # only rank 0 prints
    assert row(run.stdout, "sent by all-gather").endswith("exactly 1")
    assert row(run.stdout, "sent by reduce-scatter").endswith("exactly 1")
