"""``python -m course_lib.train``: the same losses under every plan, checkpoints under another plan, JSON, bad input."""

import json
import math
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from course_lib.observe.ledgers.expert_load import of_all_ranks
from course_lib.runtime.fork_server import preload
from course_lib.runtime.rank_order import coordinates
from course_lib.train.cli import main

preload("course_lib.train.run")
SMALL = "--layers 2 --hidden 16 --heads 2 --sequence 16 --global-batch 8 --lr 0.01"


def run(line):
    return CliRunner().invoke(main, line.split())


def read(line):
    """The steps and the last line of a run that succeeds."""
    result = run(f"{SMALL} {line} --json")
    assert result.exit_code == 0, result.output
    *steps, last = map(json.loads, result.output.splitlines())
    return steps, last


def check_same(steps, expected):
    assert [list(step) for step in steps] == [["step", "loss", "grad_norm", "tokens"]] * len(expected)
    for step, want in zip(steps, expected, strict=True):
        assert (step["step"], step["tokens"]) == (want["step"], want["tokens"])
        assert step["loss"] == pytest.approx(want["loss"], rel=1e-4)
        assert step["grad_norm"] == pytest.approx(want["grad_norm"], rel=1e-3)


def test_losses_are_the_same_under_another_plan_and_when_it_is_resumed_under_a_third(tmp_path):
    expected, alone = read("--plan micro_batch=4 --steps 5")
    assert abs(expected[0]["loss"] - math.log(256)) < 0.1, "an untrained model guesses"
    assert expected[-1]["loss"] < expected[0]["loss"] - 0.1
    assert [step["tokens"] for step in expected] == [8 * 16] * 5
    assert [row["sent"] for row in alone["ranks"]] == [0]

    eight = "--plan dp=2,tp=2,pp=2,zero=1,micro_batch=2,sequence_parallel=yes"
    steps, last = read(f"{eight} --steps 3 --checkpoint {tmp_path} --save-every 2")
    check_same(steps, expected[:3])
    assert last["plan"] == "dp=2,tp=2,pp=2,micro_batch=2,sequence_parallel=yes,zero=1,precision=fp32"
    sizes = {"tp": 2, "dp": 2, "pp": 2}
    for rank, row in enumerate(last["ranks"]):
        assert row["rank"] == rank
        assert {axis: row[axis] for axis in sizes} == coordinates(rank, sizes)
        assert row["sent"] == sum(traffic["sent"] for traffic in row["traffic"])
        assert {"all-gather", "reduce-scatter", "send"} <= {
            traffic["collective"] for traffic in row["traffic"]
        }
        assert row["peak_memory"] == sum(row["memory"].values()) > 0
        assert row["memory"]["parameters"] < alone["ranks"][0]["memory"]["parameters"] / 2
    saved = sorted(path.name for path in tmp_path.iterdir())
    assert [name.rpartition("-")[0] for name in saved] == ["step-00000002", "step-00000003"]
    assert len({name.rpartition("-")[2] for name in saved}) == 1, "of one run"

    steps, _ = read(f"--plan dp=2,tp=2,zero=3,micro_batch=2 --steps 5 --checkpoint {tmp_path} --resume")
    check_same(steps, expected[3:])

    other = run(f"{SMALL} --plan dp=2 --steps 6 --seed 1 --checkpoint {tmp_path} --resume")
    assert other.exit_code == 2
    assert "was trained with seed 0, and here 1: the losses would not go on as they were" in other.output


@pytest.mark.parametrize("model", ["mixtral", "deepseek"])
def test_experts_are_dealt_out_and_resumed_on_other_ranks(model, tmp_path):
    balanced = f"--model {model} --balance-loss 0.1 --capacity-factor 1"
    expected, alone = read(f"{balanced} --plan micro_batch=4 --steps 4")
    saving = f"{balanced} --checkpoint {tmp_path}"
    steps, last = read(f"{saving} --plan dp=2,ep=2,zero=1 --steps 3")
    check_same(steps, expected[:3])
    assert all(any(row["collective"] == "all-to-all" for row in rank["traffic"]) for rank in last["ranks"])
    steps, resumed = read(f"{saving} --plan micro_batch=2 --steps 4 --resume")
    check_same(steps, expected[3:])
    copies = [[sum(load) for load in of_all_ranks(one["ranks"])] for one in (resumed, alone)]
    assert copies[0] == copies[1]
    assert min(copies[0]) > 0
    assert resumed["dropped"] == alone["dropped"] > 0


def test_what_is_asked_of_experts_needs_them_and_the_busiest_and_the_dropped_are_told():
    for option in ("--balance-loss", "--capacity-factor"):
        refused = run(f"{SMALL} {option} 0.1")
        assert refused.exit_code == 2
        assert f"{option} is for models with experts, and gpt has none: leave it out" in refused.output
    told = run(f"{SMALL} --model mixtral --plan dp=2,ep=2 --steps 1 --capacity-factor 0.01").output
    assert "not priced: with a capacity factor below 1" in told
    [dropped] = re.findall(r"experts dropped (.*)% of the copies of tokens", told)
    assert 0 < float(dropped) < 100
    expert, rank = map(
        float, re.search(r"the busiest expert had (.*) of the mean, .* rank (.*)", told).groups()
    )
    assert 4 >= expert >= rank >= 1


LORA = """
[model]
name = "llama"
layers = 2
hidden = 16
heads = 2
sequence = {sequence}
[tuning]
method = "lora"
rank = 2
alpha = {alpha}
[training]
global_batch = 4
steps = {steps}
[checkpoint]
folder = "{folder}/saved"
save_every = 1
"""


def test_resuming_skips_what_is_damaged_tells_what_differs_and_refuses_another_meaning(tmp_path):
    def go(*more, plan="dp=2,zero=1", steps=3, sequence=8, alpha=4):
        file = tmp_path / "lora.toml"
        file.write_text(LORA.format(sequence=sequence, alpha=alpha, steps=steps, folder=tmp_path))
        return CliRunner().invoke(main, ["--config", str(file), "--plan", plan, *more])

    def losses(result):
        assert result.exit_code == 0, result.output
        lines = [line.split() for line in result.output.splitlines() if line.startswith("step")]
        return {words[1]: words[3] for words in lines}

    expected = losses(go())
    (newest,) = (tmp_path / "saved").glob("step-00000003-*")
    (newest / "__1_0.distcp").write_bytes(b"")
    again = go("--resume", plan="tp=2")
    skipped = f"skipped: {newest} is damaged: __1_0.distcp has 0 bytes, and "
    assert skipped in again.output
    assert losses(again) == {"3/3": expected["3/3"]}

    shorter = go(steps=1)  # a run that begins anew in the same folder: its step is the newest now
    assert losses(shorter) == {"1/1": expected["1/3"]}
    longer = go("--resume", "--lr", "0.01", sequence=16)
    assert list(losses(longer)) == ["2/3", "3/3"]
    assert "was trained with sequence 8, and here 16; lr 0.001, and here 0.01" in longer.output

    other = go("--resume", alpha=400, steps=4)
    assert other.exit_code == 2
    assert "is a checkpoint of another model: " in other.output
    assert "config.alpha is 4 there, and 400 here" in other.output
    adam = go("--resume", plan="dp=2,optimizer=momentum", steps=4, sequence=16)
    assert adam.exit_code == 2
    assert "is of another optimizer: AdamW there, and SGD with momentum here" in adam.output


def test_bert_under_a_plan_with_padding_and_progress_for_people():
    expected, _ = read("--model bert --plan micro_batch=4 --steps 3")
    assert abs(expected[0]["loss"] - math.log(8)) < 0.1
    assert len({step["tokens"] for step in expected}) > 1, "padding does not count"
    result = run(f"{SMALL} --model bert --plan tp=2,pp=2,micro_batch=4 --steps 3")
    assert result.exit_code == 0, result.output
    for word in (
        "bert on 4 ranks: --plan tp=2,pp=2",
        "python -m simulator step",
        "step 3/3",
        "tokens/s",
        "MFU",
        "MB",
    ):
        assert word in result.output
    shown = [line.split() for line in result.output.splitlines() if line.startswith("step")]
    for words, step in zip(shown, expected, strict=True):
        assert float(words[3]) == pytest.approx(step["loss"], abs=1e-3)
    priced = next(line for line in result.output.splitlines() if "simulator step" in line).split(": ")[1]
    answer = subprocess.run([sys.executable, *priced.split()[1:]], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "4 x laptop-cpu" in answer.stdout


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--plan dp=2,foo=3", "a plan is KEY=VALUE,… with the keys dp, tp, pp"),
        ("--plan dp", "not dp"),
        ("--plan dp=2,dp=4", "dp stands twice in the plan dp=2,dp=4"),
        ("--plan tp=x", "tp must be a whole number, not x"),
        (
            "--plan sequence_parallel=maybe",
            "sequence_parallel must be one of true, yes, false, no, not maybe",
        ),
        ("--plan tp=3", "tp must divide the 4 heads, not 3"),
        ("--plan pp=8", "8 pipeline stages need as many layers; the model has 4"),
        ("--plan pp=2,zero=3", "zero must be 0 or 1 with pp 2, not 3"),
        ("--plan dp=3", "global batch must be a multiple of dp x micro-batch = 3, not 16"),
        ("--plan dp=2,ep=2", "ep must divide the 1 experts, not 2"),
        (
            "--plan tp=2,sequence_parallel=yes --sequence 63",
            "the sequence of 63 cannot be split into 2 equal pieces",
        ),
        ("--heads 3", "hidden_size 128 does not divide into 3 heads"),
        ("--resume", "--resume needs --checkpoint"),
        ("--save-every 3", "--save-every needs --checkpoint"),
        ("--gpu tpu", "gpu must be one of v100"),
        ("--steps 0", "0 is not in the range x>=1"),
    ],
)
def test_bad_input_ends_with_one_sentence_and_exit_code_2(line, sentence):
    result = run(line)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    result = run(f"--resume --checkpoint {tmp_path}")
    assert result.exit_code == 2
    assert "holds no complete checkpoint to resume from" in result.output


def test_help_fits_80_columns_and_needs_no_torch():
    assert max(map(len, run("--help").output.splitlines())) <= 80
    code = "import sys, course_lib.train.cli as c\ntry: c.main(['--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
