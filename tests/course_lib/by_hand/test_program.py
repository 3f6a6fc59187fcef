"""The files of ``course_lib/by_hand`` as programs."""

import importlib
import os
import runpy
import sys
from pathlib import Path

import pytest
from forked_programs import run_forked

from course_lib.runtime.fork_server import preload

preload("course_lib.observe.by_hand")
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


LOSSY = ("compress",)
TRAINED = (
    *("ddp", "zero", "fsdp", "compress", "tensor_parallel", "sequence_parallel", "context_parallel"),
    *("galaxy", "pipeline", "muon", "experts", "fp8"),
)


@pytest.mark.parametrize("technique", TRAINED)
def test_a_run_shows_its_ledgers_beside_the_prediction(program, technique):
    steps = "5" if technique == "compress" else "4"  # after five, ranks meet under DiLoCo
    batch = "8" if technique == "pipeline" else "4"  # microbatches
    code, said = program(technique, "--ranks", "2", "--steps", steps, "--batch", batch)
    assert (code, said.err) == (0, "")
    begins, *rungs = said.out.split("\n\n")
    assert f"{6_635_776 if technique == 'experts' else 834_304:,} parameters" in begins
    assert "on 2 ranks" in begins
    names = importlib.import_module(f"course_lib.by_hand.{technique}").RUNGS
    for name, rung in zip(names, rungs, strict=False):
        assert rung.splitlines()[0] == name
        loss, norm = (
            float(part.split()[-1]) for part in row(rung, "largest difference to one device").split(",")
        )
        # A sum in another order may round to another number of 8 bits.
        assert technique in LOSSY or (loss < (1e-3 if technique == "fp8" else 1e-5) and norm < 1e-3)
        assert all(row(rung, line) for line in ("a step", "messages on their way", "held at most"))
        sent = [line for line in rung.splitlines() if line.startswith("sent by") and " 0 " not in line]
        assert sent  # the all-reduce of a gradient norm is not predicted: 0
        assert all(line.endswith("exactly 1") for line in sent), sent


def test_a_rank_is_killed_and_the_others_report(program):
    code, said = program(
        "elastic", "--ranks", "3", "--steps", "4", "--batch", "5", "--at", "2", "--lose", "0"
    )
    assert (code, said.err) == (0, "")
    assert "Rank 0 is killed in step 2" in said.out
    assert "2 of 3 ranks go on." in said.out
    loss, norm = (
        float(part.split()[-1]) for part in row(said.out, "largest difference to one device").split(",")
    )
    assert max(loss, norm) < 1e-4
    assert row(said.out, "sent by all-reduce").endswith("exactly 1")


@pytest.mark.parametrize("technique", ["recompute", "flash_attention"])
def test_a_run_on_one_device_shows_what_it_saves(program, technique):
    code, said = program(technique, "--steps", "4", "--batch", "2")
    assert (code, said.err) == (0, "")
    _, *rungs = said.out.split("\n\n")
    assert len(rungs) == 3
    for rung in rungs:
        differences = row(rung, "largest difference to one device").split(",")
        assert all(float(part.split()[-1]) < 1e-4 for part in differences)
        assert 0.75 < float(row(rung, "held at most").split()[-1]) < 1.5


@pytest.mark.parametrize("technique", ["lora", "adapters", "prompt"])
def test_a_pretrained_model_is_fine_tuned_with_few_numbers(program, technique):
    code, said = program(technique, "--ranks", "1", "--steps", "4", "--batch", "2", "--pretrain", "4")
    assert (code, said.err) == (0, "")
    begins, *rungs = said.out.split("\n\n")
    assert "836,352 parameters" in begins
    names = importlib.import_module(f"course_lib.by_hand.{technique}").RUNGS
    assert [rung.split(":")[0] for rung in rungs] == ["all parameters", *names]
    for rung in rungs:
        assert row(rung, "gradients").endswith("exactly 1")
        assert 1 <= float(row(rung, "optimizer states").split()[-1]) < 1.01
        assert ("100.00 %" in rung) == rung.startswith("all parameters")


def test_every_cache_writes_the_same_texts(program):
    code, said = program("paged_attention", "--samples", "2", "--tokens", "9", "--pretrain", "4")
    assert (code, said.err) == (0, "")
    for name in ("contiguous", "blocks, gathered", "blocks"):
        assert row(said.out, f"{name}: 8 of 8 texts")
        assert row(said.out, f"{name}: kept").endswith("exactly 1")


@pytest.mark.parametrize(
    ("technique", "options", "sentence"),
    [
        ("fsdp", ["--ranks", "3", "--batch", "4"], "--batch must be a multiple of the 3 ranks, not 4"),
        ("pipeline", ["--batch", "9"], "--batch must be a multiple of the 8 microbatches, not 9"),
        ("experts", ["--ranks", "5", "--batch", "5"], "ep must divide the 12 experts, not 5"),
        ("fsdp", ["--ranks", "0"], "Invalid value for '--ranks': 0 is not in the range x>=1."),
        ("recompute", ["--ranks", "2"], "Invalid value for '--ranks': 2 is not in the range 1<=x<=1."),
        ("fsdp", ["--steps", "3"], "Invalid value for '--steps': 3 is not in the range x>=4."),
        ("elastic", ["--lose", "4"], "--lose must be a rank from 0 to 3, not 4"),
        ("elastic", ["--at", "9"], "--at must be at most 8 of 10 steps, not 9"),
        ("elastic", ["--batch", "3"], "--batch must be at least the 4 ranks, not 3"),
    ],
)
def test_bad_input_gets_one_sentence(program, technique, options, sentence):
    code, said = program(technique, *options)
    assert code == 2
    assert said.err.splitlines()[-1] == f"Error: {sentence}"


@pytest.mark.parametrize("technique", ["fsdp", "zero", "adapters", "paged_attention", "elastic"])
def test_help_is_what_the_file_says(program, technique):
    """Its tables line by line, also where the function that is run is wrapped by one of torch's."""
    code, said = program(technique, "--help")
    assert code == 0
    source = (ROOT / "course_lib" / "by_hand" / f"{technique}.py").read_text(encoding="utf-8")
    docstring = source.split('"""')[1]
    assert docstring.split(":")[0] in said.out
    assert [line for line in docstring.splitlines() if line[:4] == "    " and line not in said.out] == []
    assert "--ranks" in said.out


TORCHRUN = ("fsdp", "pipeline")  # collectives; messages between two, and groups of some ranks
ONE_AFTER_THE_OTHER = """
import runpy, sys
for technique in sys.argv[1:]:
    sys.argv = [technique, "--steps", "4", "--batch", "8"]
    try:
        runpy.run_module("course_lib.by_hand." + technique, run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
"""


def test_the_same_files_run_under_torchrun(tmp_path):
    """In the same ranks, because starting them is what takes long."""
    script = tmp_path / "run.py"
    script.write_text(ONE_AFTER_THE_OTHER)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    place = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    run = run_forked([sys.executable, *torchrun, str(script), *TORCHRUN], timeout=280, **place)
    assert run.returncode == 0, run.stderr
    printed = run.stdout.split("A GPT of 834,304 parameters")[1:]  # only rank 0 prints
    for technique, said in zip(TORCHRUN, printed, strict=True):
        assert "on 2 ranks" in said
        names = importlib.import_module(f"course_lib.by_hand.{technique}").RUNGS
        assert all(f"\n{name}\n" in said for name in names), technique
        sent = [line for line in said.splitlines() if line.startswith("sent by") and " 0 " not in line]
        assert sent, technique
        assert all(line.endswith("exactly 1") for line in sent), (technique, sent)
