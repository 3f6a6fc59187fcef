import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

import course_lib.finetuning_comparison.cli as command
from course_lib.data.finetuning_tasks import Part, Task
from course_lib.finetuning_comparison.compare import Comparison
from course_lib.finetuning_comparison.methods import METHODS, NAMES, PROBE, TEXT, checked_names
from course_lib.finetuning_comparison.results import Runs, best, lines, markdown
from course_lib.finetuning_comparison.run import Setting, evaluate, train_one, trimmed, warmed_up
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.pretrained import load_tokenizer
from course_lib.training.loop import accuracy

LIKE = Setting("toy", "tiny", method="", start="", lr=0, seed=0, steps=2, batch=4)


def toy_part(n: int, seed: int) -> Part:
    """Does token 7 come first? Lengths differ, so there is padding."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(8, 50, (n, 12), generator=generator)
    labels = torch.arange(n) % 2
    tokens[:, 1] = torch.where(labels == 1, 7, tokens[:, 1])
    mask = torch.arange(12) < torch.randint(5, 11, (n, 1), generator=generator)
    return Part(tokens * mask, mask, labels)


def toy(setting: Setting = LIKE) -> tuple[Bert, Task]:
    torch.manual_seed(0)
    # As large a vocabulary as the text start needs; everything else as narrow as it can be.
    config = BertConfig.tiny(
        vocab_size=max(TEXT) + 1, hidden_size=16, num_attention_heads=2, intermediate_size=16
    )
    return Bert(config, pooler=True), Task(toy_part(24, 1), toy_part(16, 2), toy_part(16, 3), ("no", "yes"))


def test_every_method_trains_what_it_should_and_the_ledger_agrees_with_the_simulator():
    bert, task = toy()
    before = {name: p.clone() for name, p in bert.named_parameters()}
    rows = {
        (name, start): train_one(replace(LIKE, method=name, start=start, lr=1e-2), bert, task)
        for name, method in METHODS.items()
        for start in method.starts
    }
    d, f, layers, head = 16, 16, 2, 2 * 16 + 2
    trained = {key: row["trainable"] - head for key, row in rows.items()}
    assert trained["head", ""] == 0
    for r in (1, 2, 4, 8, 16):
        assert trained[f"lora-qv-r{r}", ""] == layers * 2 * r * 2 * d
        assert trained[f"lora-all-r{r}", ""] == layers * (4 * r * 2 * d + 2 * r * (d + f))
    assert trained["prompt", "random"] == trained["prompt", "text"] == 10 * d
    assert trained["p-tuning-v2", "text"] == layers * 10 * 2 * d
    assert trained["pfeiffer", ""] == layers * (2 * d * 16 + d + 16)
    assert rows["full", ""]["trainable"] == rows["full", ""]["total"]
    for row in rows.values():
        for category in ("parameters", "gradients", "optimizer_states"):
            steps_of_adam = 4 * 500  # a counter for each tensor
            assert row["memory"][category] == pytest.approx(
                row["predicted_memory"][category], abs=steps_of_adam
            )
        assert row["memory"]["peak"] > row["memory"]["parameters"]
        assert row["seconds_per_step"] > 0
    assert all(torch.equal(before[name], p) for name, p in bert.named_parameters()), (
        "a run changed the backbone"
    )


def test_a_run_depends_on_its_setting_alone():
    bert, task = toy()
    setting = replace(LIKE, method="full", lr=1e-2, steps=30, batch=8)
    one, two = (train_one(setting, bert, task) for _ in range(2))
    assert one["last_loss"] == two["last_loss"]
    assert one["last_loss"] != train_one(replace(setting, seed=1), bert, task)["last_loss"]
    assert one["last_loss"] < 0.4  # chance is 0.69: it learns its 24 samples


def test_the_learning_rate_rises_and_falls():
    assert [warmed_up(done, 20) for done in (0, 1, 2, 11, 19)] == [0.5, 1, 1, 0.5, 1 / 18]
    assert warmed_up(0, 1) == 1


def test_the_accuracy_is_that_of_padded_batches_in_their_order():
    bert, task = toy()
    torch.manual_seed(4)
    model = BertClassifier(bert, 2)
    model.classifier.weight.data *= 100  # so that both classes are guessed
    assert evaluate(model, task.train, batch_size=5) == accuracy(model, *task.train)
    assert model.training


def test_batches_lose_the_padding_of_all_samples():
    part = toy_part(6, 0)
    tokens, mask, labels = trimmed(tuple(part))
    assert tokens.shape == mask.shape == (6, int(part.mask.sum(1).max()))
    assert tokens.sum() == part.tokens.sum()
    assert torch.equal(labels, part.labels)


def test_the_start_text_is_what_it_says():
    assert load_tokenizer().decode(list(TEXT)) == "is the order of the words in this sentence right"


def test_a_finished_run_is_not_computed_again_and_an_interrupted_one_leaves_nothing(tmp_path):
    def compare(methods, seeds=(0, 1), load=toy, told=lambda *_: None):
        runs = Runs(tmp_path / "out" / "runs.jsonl")
        return Comparison(LIKE, lambda: load(LIKE), runs, methods, seeds, (1e-3, 1e-2)).run(told), runs

    def stop(text, done, total):
        if done == 3:  # in the middle of the second run
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(["head"], told=stop)
    with (tmp_path / "out" / "runs.jsonl").open("a") as file:
        file.write('{"task": "toy", "mo')  # a line that was cut off
    seen = []
    table, runs = compare(["head", PROBE], told=lambda text, done, total: seen.append((text, done, total)))
    assert [row["lr"] for row in runs.rows.values() if row["method"] == "head"][:2] == [1e-3, 1e-2]
    assert seen[0] == ("head at 0.01, seed 0", 3, 18)  # the first run was there
    assert seen[-1] == ("done", 18, 18)
    assert [line.title for line in table] == ["Linear probe", "Head only"]
    assert len(table[1].tests) == 2
    assert table[0].spread == 0

    def not_needed(setting):
        raise AssertionError("everything is done, so nothing is loaded")

    again, _ = compare(["head", PROBE], load=not_needed)
    assert again == table
    assert len(markdown(table).splitlines()) == 4


def test_the_test_part_chooses_nothing():
    row = dict(method="head", start="", seed=0, trainable=1, total=2, memory=None, predicted_memory=None)
    row |= dict(seconds_per_step=0.5)
    low = row | dict(lr=1e-3, validation=0.6, test=0.9)
    high = row | dict(lr=1e-2, validation=0.7, test=0.5)
    other = high | dict(seed=1, validation=0.1, test=0.7)
    assert best([low, high]) == high
    (line,) = lines([low, high, other], (0, 1))
    assert (line.lr, line.tests, line.test) == (1e-2, (0.5, 0.7), pytest.approx(0.6))
    assert line.spread == pytest.approx(0.1414, abs=1e-4)
    assert lines([low, high], (0, 1)) == []  # seed 1 is not there yet


def test_the_command_writes_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "load", toy)
    words = [
        "--model",
        "tiny",
        "--methods",
        "probe,lora-qv-r1",
        "--lrs",
        "1e-2",
        "--steps",
        "1",
        "--batch",
        "4",
    ]
    done = CliRunner().invoke(command.main, [*words, "--seeds", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "LoRA, rank 1, query and value" in done.stdout
    assert (tmp_path / "word-order.md").read_text() in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert [row["method"] for row in rows] == [PROBE] * 5 + ["lora-qv-r1"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--methods", "lora"], "methods has 'lora'; choose 'all', or from probe, full"),
        (["--lrs", "1e-3,-1"], "lrs is '1e-3,-1'; give positive numbers"),
        (["--device", "abacus"], "device is 'abacus', which torch cannot use here"),
        (["--steps", "0"], "Invalid value for '--steps'"),
    ],
)
def test_bad_input_gets_one_sentence(tmp_path, words, sentence):
    done = CliRunner().invoke(command.main, [*words, "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_a_file_of_other_lines_is_refused(tmp_path):
    (tmp_path / "runs.jsonl").write_text('{"something": "else"}\n')
    with pytest.raises(ValueError, match=r"line 1 of .* is no finished run"):
        Runs(tmp_path / "runs.jsonl")


def test_all_names_every_method():
    assert checked_names("all") == NAMES
    assert checked_names("head, full,head") == ("head", "full")
