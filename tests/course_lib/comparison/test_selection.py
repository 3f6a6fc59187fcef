"""The GPT that knows text tasks, and the comparison that tunes it without an instruction."""

import copy

import pytest
import torch
import transformers
from click.testing import CliRunner
from torch import nn

from course_lib.comparison.finetuning.selection import run
from course_lib.comparison.finetuning.selection.cli import main
from course_lib.comparison.finetuning.selection.kept import Runs, kept_lines, lines
from course_lib.comparison.finetuning.selection.methods import METHODS
from course_lib.comparison.finetuning.selection.pretrain import main as pretrain
from course_lib.comparison.finetuning.selection.run import Setting, right_answers, train_one
from course_lib.data.task_gpt import CONFIG, answer, load_task_gpt
from course_lib.data.text_tasks import KNOWN, NEW, samples
from course_lib.finetuning.prompt import add_prompt
from course_lib.models.gpt import GPT
from course_lib.one_device.loop import cross_entropy


@pytest.fixture(scope="module")
def gpt() -> GPT:
    return load_task_gpt()


@pytest.fixture
def few(monkeypatch):
    """Runs and commands ask for eight answers, not for those to all texts."""
    monkeypatch.setattr(
        run, "right_answers", lambda model, lines: right_answers(model, [x[:8] for x in lines])
    )


@pytest.mark.parametrize("task", KNOWN)
def test_after_its_instruction_it_does_what_it_knows_and_without_one_nothing(gpt, task):
    assert right_answers(gpt, samples(task, "test", 100, instruction=task)) > 0.95
    assert right_answers(gpt, samples(task, "test", 40)) < 0.2


@pytest.mark.parametrize("task", NEW)
def test_a_new_task_is_new(gpt, task):
    for instruction in ("", task, *KNOWN):
        assert right_answers(gpt, samples(task, "test", 20, instruction=instruction)) < 0.3


def test_what_is_counted_as_right_is_what_generation_writes(gpt):
    assert answer(gpt, "open file", "reverse") == "elif nepo"
    assert answer(gpt, "sys.exit", "kind") == "python"


def test_another_file_is_refused(tmp_path):
    wrong = tmp_path / "task_gpt.safetensors"
    with pytest.raises(ValueError, match="missing"):
        load_task_gpt(wrong)
    wrong.write_bytes(b"something")
    with pytest.raises(ValueError, match="is not the model of this course"):
        load_task_gpt(wrong)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_trains_its_own_numbers_alone(gpt, method, few):
    model = copy.deepcopy(gpt)
    METHODS[method].adapt(model, 0)
    own = {name for name, p in model.named_parameters() if p.requires_grad}
    assert own
    plain = {p.data_ptr() for p in model.parameters() if not p.requires_grad}
    assert sum(p.numel() for p in model.parameters() if p.data_ptr() in plain) == CONFIG.parameters
    row = train_one(Setting("reverse", method, 1e-3, 0, steps=2, batch=2), gpt)
    assert row["trainable"] == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_the_rate_is_chosen_by_the_mean_of_all_seeds_on_the_validation_part():
    def row(lr, seed, validation, test):
        found = {"task": "reverse", "method": "prompt", "lr": lr, "seed": seed, "trainable": 8}
        return found | {"validation": validation, "test": test}

    rows = [row(0.1, 0, 0.9, 0.5), row(0.1, 1, 0.1, 0.5), row(0.3, 0, 0.6, 0.2), row(0.3, 1, 0.6, 0.4)]
    line = lines(rows)["reverse", "prompt"]
    assert (line.lr, line.tests, line.test) == (0.3, (0.2, 0.4), pytest.approx(0.3))
    assert line.tried == ((0.1, 0.5), (0.3, 0.6))


def test_the_runs_that_are_kept_find_the_task_that_the_model_knows():
    found = kept_lines()
    assert all(found["reverse", method].test > 0.9 for method in ("prompt", "prefix", "p-tuning-v2"))


def test_a_prompt_finds_two_known_tasks_in_one_and_nothing_new():
    found = kept_lines()
    assert found["shout", "prompt"].test > 0.95
    assert found["yell", "prompt"].test > 0.8
    assert all(found[task, "prompt"].test < 0.05 for task in ("stars", "bang"))


def test_lora_adds_what_the_model_never_wrote():
    found = kept_lines()
    assert all(found[task, "lora-r8"].test > 0.5 for task in ("stars", "bang"))
    assert all(found[task, "p-tuning-v2"].test < 0.5 for task in ("stars", "bang"))


def test_with_the_numbers_of_a_prefix_lora_learns_bang_and_no_more_of_stars():
    found = kept_lines()
    lora, prefix = (
        {task: found[task, way] for task in ("bang", "stars")} for way in ("lora-r1", "p-tuning-v2")
    )
    assert lora["bang"].trainable < 1.2 * prefix["bang"].trainable
    assert min(lora["bang"].tests) > 0.5 > 0.05 > max(prefix["bang"].tests)
    assert lora["stars"].test < prefix["stars"].test


def test_the_command_goes_on_where_it_was_stopped(tmp_path, few):
    asked = ["--tasks=vowels", "--methods=prompt", "--steps=1", "--batch=2", f"--out={tmp_path}"]
    first = CliRunner().invoke(main, [*asked, "--seeds", "1"])
    assert first.exit_code == 0, first.output
    before = (tmp_path / "runs.jsonl").read_text()
    assert before.count("\n") == len(METHODS["prompt"].lrs)
    assert CliRunner().invoke(main, [*asked, "--seeds", "1"]).exit_code == 0
    assert (tmp_path / "runs.jsonl").read_text() == before
    assert len(Runs(tmp_path / "runs.jsonl").rows) == len(METHODS["prompt"].lrs)
    assert "prompt tuning" in (tmp_path / "table.md").read_text()
    assert "vowels after its instruction, nothing trained: " in first.output


def test_a_wrong_name_is_one_sentence():
    refused = CliRunner().invoke(main, ["--methods", "magic"])
    assert refused.exit_code == 2
    assert "choose 'all', or from prompt" in refused.output


def test_the_command_that_makes_the_model(tmp_path, few):
    out = [str(tmp_path / name) for name in ("a.safetensors", "b.safetensors")]
    told = [CliRunner().invoke(pretrain, ["--steps", "1", "--batch", "4", "--out", path]) for path in out]
    assert [t.exit_code for t in told] == [0, 0]
    first, second = (t.output.split()[-1] for t in told)
    assert first == second  # the same seed, the same file
    assert "reverse" in told[0].output


def as_gpt2(gpt: GPT) -> transformers.GPT2LMHeadModel:
    """transformers' GPT-2 with the same weights: query, key and value in one matrix, all of them transposed."""
    c = gpt.config
    sizes = {"n_embd": c.hidden_size, "n_layer": c.num_layers, "n_head": c.num_heads}
    sizes |= {"vocab_size": c.vocab_size, "n_positions": c.max_length}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(**sizes, **dropout)
    theirs = transformers.GPT2LMHeadModel(config)
    body = theirs.transformer
    body.wte.weight.data.copy_(gpt.embedding.tokens.weight.data)
    body.wpe.weight.data.copy_(gpt.embedding.positions.weight.data)

    def put(module: nn.Module, *linears: nn.Linear) -> None:
        module.weight.data.copy_(torch.cat([linear.weight.data.T for linear in linears], dim=1))
        module.bias.data.copy_(torch.cat([linear.bias.data for linear in linears]))

    for block, h in zip(gpt.blocks, body.h, strict=True):
        attention = block.attention
        put(h.attn.c_attn, attention.query, attention.key, attention.value)
        put(h.attn.c_proj, attention.output)
        put(h.mlp.c_fc, block.mlp.up)
        put(h.mlp.c_proj, block.mlp.down)
        h.ln_1.load_state_dict(block.norm_1.state_dict())
        h.ln_2.load_state_dict(block.norm_2.state_dict())
    body.ln_f.load_state_dict(gpt.norm.state_dict())
    return theirs


def test_pefts_prompt_takes_the_same_steps(gpt):
    peft = pytest.importorskip("peft")
    ours, n = copy.deepcopy(gpt), 8
    theirs = peft.get_peft_model(
        as_gpt2(gpt), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=n)
    )
    prompt = add_prompt(ours, n, start=[*b"abcdefgh"])
    P = theirs.prompt_encoder["default"].embedding.weight
    P.data.copy_(prompt.P.data)
    losses = []
    for tuned, parameter, logits in (
        (ours, prompt.P, lambda tokens: ours(tokens)),
        (theirs, P, lambda tokens: theirs(input_ids=tokens, use_cache=False).logits[:, n:]),
    ):
        optimizer, own = torch.optim.Adam([parameter], lr=0.1), []
        tuned.train()
        for seed in range(10):
            tokens, targets = samples("reverse", "train", 8, seed=seed)
            optimizer.zero_grad()
            loss = cross_entropy(logits(tokens), targets)
            loss.backward()
            optimizer.step()
            own.append(loss.item())
        losses.append(own)
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-2, atol=1e-2)
    assert losses[0][-1] < 0.7 * losses[0][0]
