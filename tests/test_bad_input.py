"""Bad input to every command: one sentence and exit code 2, before anything is started, measured or written."""

from pathlib import Path

import pytest
from click.testing import CliRunner

import course_lib.comparison.compression.cli
import course_lib.comparison.finetuning.cli
import course_lib.profile.cli
import course_lib.train.cli
import course_lib.train.start
import simulator.cli.calibrate
from simulator.cli import main as simulator_main

COMMANDS = {
    "train": (course_lib.train.cli.main, ["--hidden", "16", "--steps", "1"]),
    "profile": (course_lib.profile.cli.main, ["--count"]),
    "finetuning": (course_lib.comparison.finetuning.cli.main, ["--model", "tiny"]),
    "compression": (course_lib.comparison.compression.cli.main, []),
    "memory": (simulator_main, ["memory", "--model", "gpt2"]),
    "step": (simulator_main, ["step", "--model", "gpt2", "--gpu", "h100", "--global-batch", "8"]),
    "timeline": (simulator_main, ["timeline", "--schedule", "1f1b", "--ranks", "2", "--microbatches", "4"]),
    "calibrate": (simulator_main, ["calibrate"]),
}
DIGITS = "9" * 400
MANY_DIGITS = "9" * 5000
WRONG_COUNTS = ["", "two", "1.5", "-1", "nan", "true", DIGITS, MANY_DIGITS]
COUNTS = {
    "train": [
        "--layers",
        "--hidden",
        "--heads",
        "--sequence",
        "--global-batch",
        "--steps",
        "--seed",
        "--save-every",
    ],
    "profile": ["--batch", "--sequence", "--depth", "--repeats"],
    "finetuning": ["--seeds", "--steps", "--batch", "--samples"],
    "compression": ["--seeds", "--steps", "--batch", "--ranks"],
    "memory": [
        "--dp",
        "--tp",
        "--pp",
        "--micro-batch",
        "--layers",
        "--vocab",
        "--zero",
        "--prefetch",
        "--gpus",
    ],
    "step": ["--cp", "--ep", "--microbatches", "--hidden", "--sequence", "--experts"],
    "timeline": ["--ranks", "--microbatches", "--chunks"],
}
WRONG_NUMBERS = ["", "x", "nan", "-1"]
NUMBERS = {"train": ["--lr", "--clip"], "timeline": ["--forward", "--transfer"], "memory": ["--parameters"]}
WRONG_LISTS = ["", ",", "1,,2", "x", "nan,1", "inf", "0", "-1"]
WRONG_PLANS = [
    "",
    ",",
    "dp",
    "dp=",
    "dp=2,,tp=2",
    "dp=2,",
    "dp=2,1",
    "=2",
    "dp=x",
    "dp=0",
    "dp=-2",
    "tq=2",
    "dp=1.5",
]
WRONG_PLANS += [
    "dp=2,dp=2",
    "zero=4",
    "schedule=x",
    "schedule=",
    f"dp={DIGITS}",
    DIGITS,
    "stage_layers=,",
    "pp=5,pp=5",
]
WRONG_PLANS += [
    "sequence_parallel=2",
    "tp=5",
    "pp=2,stage_layers=1,x",
    "overlap=x",
    "dp==2",
    "dp=2;tp=2",
    "dp=²",
]
OUTPUTS = {
    "train": ["--checkpoint"],
    "finetuning": ["--out"],
    "compression": ["--out"],
    "timeline": ["--svg", "--trace"],
    "calibrate": ["--out"],
}
WRONG_OUTPUTS = ["", "/dev/null", "/proc/x.toml", "{file}/below.toml", "x" * 300 + ".toml"]
WRONG_GPUS = [
    "",
    ",",
    "1,2",
    "1,2,3,4",
    "1,nan,3",
    "1,-2,3",
    "tpu",
    "none.toml",
    f"{DIGITS},1,1",
    "{folder}.toml",
    "a",
]
BARE_HARDWARE = """format = 1
name = "mine"
compute.peak = { value = VALUE, unit = "TFLOP/s", source = "x" }
memory.capacity = { value = 1, unit = "GB", source = "x" }
memory.bandwidth = { value = 1, unit = "GB/s", source = "x" }
links.node.bandwidth = { value = 1, unit = "GB/s", source = "x" }
links.node.latency = { value = 1, unit = "us", source = "x" }
"""
WRONG_VALUES = [
    '"2"',
    "nan",
    "true",
    "[2]",
    "{}",
    "2026-11-23",
    "12:30:00",
    "-1",
    "[" * 3000,
    DIGITS,
    MANY_DIGITS,
    "{a=[{}]}",
]
FILES = {  # in each, VALUE is what is wrong
    "train": (
        "--config",
        [f"[model]\n{key} = VALUE" for key in ("layers", "hidden", "name")]
        + [f"[training]\n{key} = VALUE" for key in ("lr", "clip", "steps", "seed")]
        + [f"[plan]\n{key} = VALUE" for key in ("dp", "stage_layers", "schedule")]
        + [
            f"[tuning]\n{key} = VALUE"
            for key in ("method", "method = 'lora'\nalpha", "method = 'lora'\ntargets")
        ]
        + [
            "world = VALUE",
            "model = VALUE",
            "tuning = VALUE",
            "[placement]\nheads = VALUE",
            "[checkpoint]\nfolder = VALUE",
        ],
    ),
    "profile": ("--config", ["hidden_size = VALUE", "hidden_dropout_prob = VALUE", "model = VALUE"]),
    "step": (
        "--gpu",
        [BARE_HARDWARE, BARE_HARDWARE.replace('"TFLOP/s"', "VALUE").replace("value = VALUE", "value = 1")],
    ),
}
# Values that fit after all.
RIGHT = {("seed", "-1"), ("alpha", "-1"), ("model", "{}"), ("tuning", "{}"), ("folder", '"2"')}


def cases():
    for command, flags in COUNTS.items():
        yield from ((command, [flag, value]) for flag in flags for value in WRONG_COUNTS)
    for command, flags in NUMBERS.items():
        yield from ((command, [flag, value]) for flag in flags for value in WRONG_NUMBERS)
    for command in ("train", "memory", "step"):
        yield from ((command, ["--plan", plan]) for plan in WRONG_PLANS)
    for command in ("memory", "step", "train"):
        yield from ((command, ["--gpu", gpu]) for gpu in WRONG_GPUS)
    for command in ("finetuning", "compression"):
        yield from ((command, ["--lrs", rates]) for rates in WRONG_LISTS)
        yield from ((command, ["--methods", names]) for names in ("", ",", "x", "full,x", DIGITS))
    for command, flags in OUTPUTS.items():
        yield from ((command, [flag, path]) for flag in flags for path in WRONG_OUTPUTS)
    for command, (flag, texts) in FILES.items():
        for text in texts:
            yield from ((command, [flag, ("file", text, value)]) for value in WRONG_VALUES)
    yield from (
        ("train", ["--lr", "inf"]),
        ("train", ["--resume"]),
        ("train", ["--address", "x", "--rank", "0"]),
    )
    for command in COMMANDS:
        yield command, ["--nosuch"]
        yield command, ["surplus"]


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    def started(*_, **__):
        raise AssertionError("something was started")

    monkeypatch.setattr(course_lib.train.start, "launch", started)
    monkeypatch.setattr(course_lib.train.cli, "become_rank", started)
    monkeypatch.setattr(simulator.cli.calibrate, "measure", started)
    monkeypatch.setattr("course_lib.comparison.compression.compare.compare", started)
    monkeypatch.setattr("course_lib.comparison.finetuning.compare.Comparison.run", started)


def complaint(command, words):
    """What is wrong with the answer to this input; None: nothing."""
    main, before = COMMANDS[command]
    result = CliRunner().invoke(main, [*before, *words])
    lines = result.output.splitlines()
    if result.exit_code != 2:
        return f"exit code {result.exit_code}, {result.exception!r}: {result.output[-200:]}"
    if not isinstance(result.exception, SystemExit) or "Traceback" in result.output:
        return f"no clean end: {result.exception!r}"
    if (
        not lines
        or not lines[-1].startswith("Error: ")
        or any(line.startswith("Error: ") for line in lines[:-1])
    ):
        return f"not one sentence: {result.output[-300:]}"
    if len(lines[-1]) > 1200:
        return f"a sentence of {len(lines[-1])} letters: {lines[-1][:200]}"
    return None


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_input_ends_with_one_sentence_and_exit_code_2(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.toml").mkdir()
    count, wrong = 0, []
    for words in [words for of, words in cases() if of == command]:
        told = words
        if len(words) == 2 and isinstance(words[1], tuple):
            _, text, value = words[1]
            Path("case.toml").write_text(text.replace("VALUE", value), encoding="utf-8")
            told = [words[0], "case.toml"]
            key = text.partition(" = VALUE")[0].rpartition("\n")[2]
        else:
            told = [word.format(file="file", folder="folder") if "{" in word else word for word in words]
            key, value = (*words, "")[:2]
        if (key, value) in RIGHT:
            continue
        count += 1
        if (said := complaint(command, told)) is not None:
            wrong.append(f"{str(words)[:120]}: {said}")
    assert count >= 7
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong)
    assert {path.name for path in tmp_path.iterdir()} <= {"case.toml", "file", "folder.toml"}, (
        "nothing is left"
    )
