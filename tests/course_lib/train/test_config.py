"""``--config FILE``: what a file says is done, an option goes before it, and a slip is told in one sentence."""

import json
import math
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from click.testing import CliRunner

import course_lib.train.material.models
from course_lib.data.denoising import WORD_PIECES
from course_lib.data.sharding import split_range
from course_lib.models.bart import shift_right
from course_lib.parallelize import mesh_axes, parallelize
from course_lib.runtime import launch
from course_lib.runtime.mesh import make_mesh
from course_lib.train.cli import _read, main
from course_lib.train.config import TASKS, read_config, shipped
from course_lib.train.material.samples import CLASSES
from course_lib.train.run import train_step

SMALL = ["--layers", "2", "--hidden", "16", "--heads", "2", "--sequence", "64", "--global-batch", "4"]


def job_of(*words):
    """What the command would do."""
    with main.make_context("train", [*map(str, words)]) as context:
        return _read(context.params)[0]


def run(*words):
    return CliRunner().invoke(main, [*map(str, words)])


def steps_of(*words):
    result = run(*words, *SMALL, "--lr", "0.01", "--steps", "3", "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()][:-1]


@pytest.mark.parametrize("name", shipped())
def test_every_file_that_comes_with_the_course_can_be_trained(name):
    job = job_of("--config", name)
    assert job.task in TASKS[job.model]
    assert job.plan.ranks == read_config(name).options["world"]
    assert job.steps > 1


def samples_of(task, count, length=16):
    """Drawn tokens in the form of the task's samples."""
    g = torch.Generator().manual_seed(0)
    tokens, targets = torch.randint(3, 200, (2, count, length), generator=g)
    tensors = {
        **{name: (tokens, torch.ones_like(tokens), targets[:, 0] % n) for name, n in CLASSES.items()},
        "denoising": (tokens, shift_right(targets, 2, 1), torch.ones_like(tokens), targets),
    }
    return tensors.get(task, (tokens, targets))


def first_steps(jobs):
    """The losses and gradient norms of two steps of each job, with few words, so that the ends take little time."""
    found = {}
    with patch.object(course_lib.train.material.models, "WORD_PIECES", WORD_PIECES._replace(words=200)):
        for name, job in jobs.items():
            mesh = make_mesh(mesh_axes(job.plan))
            plain = job.tuned(job.make_model())
            ways = {"placement": job.placement, "compression": job.compression}
            read = job.reader(plain)
            model, optimizer = parallelize(plain, job.plan, mesh, **ways, read=read, lr=job.lr)
            tensors = samples_of(job.task, job.plan.global_batch)
            own = split_range(job.plan.global_batch, model.data_rank, model.data_ranks)
            batch = [tensor[own.start : own.stop] for tensor in tensors]
            found[name] = [train_step(model, optimizer, batch, job.clip) for _ in range(2)]
    return found


def test_every_file_that_comes_with_the_course_starts():
    jobs = {name: job_of("--config", name, "--global-batch", 8) for name in shipped()}
    plans = {
        name: replace(job.plan, microbatches=2, micro_batch=4 // job.plan.dp) for name, job in jobs.items()
    }
    jobs = {name: replace(job, sequence=16, lr=0.01, plan=plans[name]) for name, job in jobs.items()}
    assert {job.plan.ranks for job in jobs.values()} == {2}
    first, second = launch(first_steps, 2, args=(jobs,))
    assert list(first) == shipped()
    for name, steps in first.items():
        assert steps[0] == pytest.approx(second[name][0], rel=1e-4), "those of all ranks"
        (loss, norm), (after, _) = steps
        assert math.isfinite(norm)
        assert norm > 0
        assert after < loss, f"{name}: the second step on the same samples"


def test_the_file_in_the_documentation_can_be_trained(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
    assert [name for name in shipped() if f"| {name} |" not in page] == []
    path = tmp_path / "run.toml"
    path.write_text(page.split("```toml")[1].split("```")[0], encoding="utf-8")
    job = job_of("--config", path)
    assert (job.task, job.plan.tp, job.tuning["method"]) == ("words", 2, "lora")
    assert job.placement == {
        "placement": "galaxy",
        "heads": [5, 3],
        "columns": [320, 192],
        "sequence": [5, 3],
    }


def test_options_go_before_the_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'world = 2\n[model]\nname = "bert"\ntask = "words"\nheads = 8\n[tuning]\nmethod = "lora"\nrank = 4\n'
        "[plan]\npp = 2\nstage_layers = [1, 3]\nsequence_parallel = false\n[training]\nlr = 0.01\nsteps = 7\n"
    )
    job = job_of("--config", path)
    assert (job.model, job.task, job.heads, job.lr, job.steps) == ("bert", "words", 8, 0.01, 7)
    assert (job.plan.pp, job.plan.stage_layers) == (2, (1, 3))
    assert job.tuning == {"method": "lora", "rank": 4}
    other = job_of("--config", path, "--heads", 2, "--plan", "dp=2", "--steps", 9)
    assert (other.model, other.heads, other.lr, other.steps) == ("bert", 2, 0.01, 9)
    assert (other.plan.dp, other.plan.pp) == (2, 1)
    assert job_of("--world", 4).plan.dp == 4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "words = 2",
            "the file has no key words; its keys are checkpoint, compression, model, placement, plan, training",
        ),
        (
            "[model]\nlairs = 2",
            "model has no key lairs; its keys are heads, hidden, layers, name, sequence, task, weights",
        ),
        (
            "[training]\nspeed = 2",
            "training has no key speed; its keys are balance_loss, capacity_factor, clip, global_batch, lr, seed, "
            "steps",
        ),
        ("[checkpoint]\nfile = 'x'", "checkpoint has no key file; its keys are folder, resume, save_every"),
        ("[plan]\ntq = 2", "plan has no key tq; its keys are attention"),
        ("[placement]\nhaeds = [1, 1]", "placement has no key haeds; its keys are attention, columns"),
        (
            "[placement]\nheads = 3",
            "placement.heads must be a list, each item a whole number of at least 0, not 3",
        ),
        ("[placement]\nheads = [1.5]", "placement.heads[0] must be a whole number of at least 0, not 1.5"),
        (
            "[placement]\nway = 'tp'\nmlp = 'whole'",
            "placement has way and mlp: give the way, or the place of",
        ),
        (
            "[tuning]\nmethod = 'lara'",
            "tuning.method must be one of full, head, bias, lora, adapter, llama-adapter, side, prompt, p-tuning, pre",
        ),
        ("[tuning]\nmethod = 'ptuning'", "prompt, p-tuning, prefix, p-tuning-v2, not 'ptuning'"),
        ("[tuning]\nmethod = 'head'", "no parameter of GPT is chosen, so nothing would be trained"),
        (
            "[tuning]\nmethod = 'lora'\nrnk = 3",
            "tuning has no key rnk; its keys are alpha, dropout, method, rank, targets",
        ),
        ("[tuning]\nrank = 3", "tuning has no key rank; its keys are method"),
        (
            "[tuning]\nmethod = 'lora'\nrank = '3'",
            "tuning.rank must be a whole number of at least 1, not '3'",
        ),
        ("[tuning]\nmethod = 'lora'\nrank = 0", "rank"),
        (
            "[tuning]\nmethod = 'prompt'\ntokens = 0",
            "tuning.tokens must be a whole number of at least 1, not 0",
        ),
        (
            "[tuning]\nmethod = 'prompt'\nwidth = 4",
            "tuning has no key width; its keys are method, start, tokens",
        ),
        ("[tuning]\nmethod = 'prompt'\nstart = 'words'", "start must be 'random', 'vocabulary' or"),
        ("[tuning]\nmethod = 'p-tuning'\nencoder = 'gru'", "the encoder is 'gru'; choose 'lstm' or 'mlp'"),
        (
            "world = 2\n[model]\nname = 'bert'\n[tuning]\nmethod = 'prefix'\n[placement]\nway = 'sp'",
            "attention must not be placed by sequence with a prefix",
        ),
        (
            "[tuning]\nmethod = 'prompt'\n[plan]\ntp = 2\nsequence_parallel = true",
            "sequence_parallel must be no with a prompt",
        ),
        ("[tuning]\nmethod = 'lora'\ntargets = ['qerry']", "qerry"),
        ("world = 'two'", "world must be a whole number of at least 1, not 'two'"),
        ("world = 3\n[plan]\ntp = 2", "world must be the 2 ranks of the plan, not 3"),
        ("[model]\nname = 'gpt'\ntask = 'words'", "--task must be language for gpt, not words"),
        (
            "[model]\nname = 'bort'",
            "model.name must be one of bart, bert, deepseek, gpt, llama, mixtral, not 'bort'",
        ),
        ("[model]\nlayers = 0", "model.layers must be a whole number of at least 1, not 0"),
        ("[model]\nlayers = [2]", "model.layers must be a whole number of at least 1, not [2]"),
        ("[model]\nlayers = '2'", "model.layers must be a whole number of at least 1, not '2'"),
        ("[model]\nlayers = 1.7", "model.layers must be a whole number of at least 1, not 1.7"),
        ("[model]\nlayers = true", "model.layers must be a whole number of at least 1, not True"),
        (
            "[model]\nlayers = 2026-11-23",
            "model.layers must be a whole number of at least 1, not datetime.date",
        ),
        (
            f"[model]\nlayers = {10**400}",
            "model.layers must be a whole number of at least 1 and at most 1,000,000",
        ),
        (f"[model]\nlayers = {'9' * 5000}", "is not a TOML file: Exceeds the limit"),
        ("[training]\nlr = inf", "training.lr must be a finite number more than 0, not inf"),
        ("[training]\nclip = nan", "training.clip must be a number more than 0, not nan"),
        ("[training]\nlr = '1'", "training.lr must be a finite number more than 0, not '1'"),
        ("[plan]\ndp = '2'", "plan.dp must be a whole number of at least 1, not '2'"),
        ("[tuning]\nmethod = ['lora']", "tuning.method must be one of full, head"),
        (f"[model]\nlayers = {'[' * 5000}", "is nested too deeply"),
        (
            "[model]\nname = 'bart'\nlayers = 1\n[plan]\npp = 3",
            "3 pipeline stages need as many layers; the model has 2",
        ),
        ("world = 2\n[model]\nheads = 4\nname = 'bert'\n[placement]\nheads = [3, 2]", "heads"),
        ("world = 2\n[model]\nname = 'bert'\n[placement]\nway = 'galaxy3'", "galaxy3"),
        (
            "world = 2\n[placement]\nway = 'galaxy'",
            "GPT holds 0 of them",
        ),
        (
            "[model]\nname = 'bert'\n[plan]\npp = 2\ntp = 2\n[placement]\n",
            "pp must be 1 with a placement, not 2",
        ),
        ("model = 2", "model must be a table, not 2"),
        ("[model\n", "is not a TOML file"),
    ],
)
def test_a_slip_in_a_file_is_told_in_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "run.toml"
    path.write_text(text)
    result = run("--config", path)
    assert result.exit_code == 2, result.output
    assert sentence in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--config", "nowhere.toml"], "--config must be a file, or one of bart-denoising, "),
        (["--rank", 0], "--rank needs --world, the number of ranks in all"),
        (["--world", 2, "--rank", 2], "--rank must be from 0 to 1 with --world 2, not 2"),
        (
            ["--world", 2, "--rank", 1, "--address", "here"],
            "--address must be HOST:PORT, such as 127.0.0.1:29500",
        ),
        (["--world", 3, "--plan", "tp=2"], "world must be the 2 ranks of the plan, not 3"),
    ],
)
def test_bad_options_end_with_one_sentence_and_exit_code_2(words, sentence):
    result = run(*words)
    assert result.exit_code == 2
    assert sentence in result.output


def test_bart_and_masked_words_learn_the_same_under_every_plan(tmp_path):
    bart = steps_of("--model", "bart")
    assert bart[0]["loss"] == pytest.approx(10.33, abs=0.1), "an untrained model guesses among 30,522 words"
    assert bart[-1]["loss"] < bart[0]["loss"] - 0.01
    galaxy = tmp_path / "galaxy.toml"
    galaxy.write_text(
        'world = 2\n[model]\nname = "bert"\ntask = "words"\n[placement]\nheads = [2, 0]\ncolumns = [40, 24]\n'
        "sequence = [5, 3]\n"
    )
    words = steps_of("--model", "bert", "--task", "words")
    assert words[0]["loss"] == pytest.approx(10.33, abs=0.1)
    others = [
        (bart, ["--model", "bart", "--plan", "pp=2"]),
        (words, ["--config", galaxy]),
    ]
    for expected, command in others:
        for step, want in zip(steps_of(*command), expected, strict=True):
            assert step["tokens"] == want["tokens"]
            assert step["loss"] == pytest.approx(want["loss"], rel=1e-4), command
            assert step["grad_norm"] == pytest.approx(want["grad_norm"], rel=1e-3), command
