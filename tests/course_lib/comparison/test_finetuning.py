import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

import course_lib.comparison.finetuning.cli as command
from course_lib.comparison.command import checked_names
from course_lib.comparison.finetuning.compare import Comparison
from course_lib.comparison.finetuning.methods import BY_IMPORTANCE, METHODS, NAMES, PROBE, TEXT
from course_lib.comparison.finetuning.places import PLACED, as_in_llama, right_answers
from course_lib.comparison.finetuning.results import Runs, lines, markdown
from course_lib.comparison.finetuning.run import Setting, evaluate, train_one, trimmed, warmed_up
from course_lib.comparison.finetuning.timing import read_times
from course_lib.comparison.walk import best, next_try, with_halves
from course_lib.data.finetuning_tasks import Part, Task
from course_lib.finetuning.methods import TUNINGS
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.pretrained import load_tokenizer
from course_lib.one_device.loop import accuracy

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


@pytest.mark.parametrize("method", PLACED)
def test_lora_stands_at_its_places_alone(method):
    config = BertConfig.tiny(hidden_size=16, num_attention_heads=2, intermediate_size=16, num_hidden_layers=6)
    model = BertClassifier(Bert(config, pooler=True), 2)
    PLACED[method].adapt(model, "")
    trained = [name for name, p in model.named_parameters() if p.requires_grad and "layer." in name]
    upper = 7 - int(method[-1]) if "from" in method else 6
    matrices = {"qv": 2, "attention": 4, "five": 5, "all": 6}[method.split("-")[1]]
    assert len(trained) == upper * matrices * 2
    assert {int(name.split("layer.")[1][0]) for name in trained} == set(range(6 - upper, 6))


def test_what_upper_layers_learned_is_kept():
    more_layers = [right_answers("all", lowest) or 0 for lowest in (6, 5, 4, 1)]
    assert sorted(more_layers) == more_layers
    assert right_answers("qv", 1) == pytest.approx(0.713, abs=5e-4)
    assert right_answers("qv", 3, seed=1) != right_answers("qv", 3)
    assert right_answers("attention", 1) is None


def test_a_llamas_places_are_found_in_minilm():
    seven = ("query", "key", "value", "output", "gate", "up", "down")
    assert as_in_llama(seven, 8, 1) == [right_answers("all", 1, seed) for seed in range(3)]
    assert as_in_llama(seven, 4, 1) == [right_answers("all", 1, seed, rank=4) for seed in range(3)]
    assert as_in_llama(seven, 8, 12)[0] == right_answers("all", 3)
    assert as_in_llama(seven, 8, 19) == [right_answers("all", 4)]
    assert as_in_llama(seven[:-1], 8, 1)[0] == right_answers("five", 1)
    assert as_in_llama(("value", "query"), 8, 15) == [right_answers("qv", 4)]
    assert as_in_llama(("query", "gate"), 8, 1) == as_in_llama(("gate", "up"), 8, 1) == []


def test_every_method_trains_what_it_should_and_the_ledger_agrees_with_the_simulator():
    assert {method.tuning for method in METHODS.values()} == set(TUNINGS), (
        "every one of the table, by its name"
    )
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
    assert trained["adapter-pfeiffer", ""] == layers * (2 * d * 16 + d + 16)
    assert rows["full", ""]["trainable"] == rows["full", ""]["total"]
    for row in rows.values():
        for category in ("parameters", "gradients", "optimizer_states"):
            steps_of_adam = 4 * 500  # a counter for each tensor
            assert row["memory"][category] == pytest.approx(
                row["predicted_memory"][category], abs=steps_of_adam
            )
        assert row["memory"]["peak"] > row["memory"]["parameters"]
        assert row["predicted_memory"].get("activations", 0) <= row["memory"]["activations"]
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
    train_one(replace(setting, matmul="medium", steps=1), bert, task)
    assert torch.get_float32_matmul_precision() == "highest"


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
    assert seen[0] == ("head at 0.01, seed 0", 3, 18)  # the first run was there; at most nine are needed
    assert seen[-1][0] == "done"
    assert seen[-1][1] == seen[-1][2] == 2 * len(runs.rows)
    order = [(row["method"], row["seed"]) for row in runs.rows.values()]
    assert order == sorted(order, key=lambda pair: pair[1]), "every method under seed 0 first"
    assert [line.title for line in table] == ["Linear probe", "Head only"]
    assert len(table[1].tests) == 2
    assert table[0].spread == 0
    assert all(line.complete for line in table)

    def not_needed(setting):
        raise AssertionError("everything is done, so nothing is loaded")

    again, _ = compare(["head", PROBE], load=not_needed)
    assert again == table
    assert len(markdown(table).splitlines()) == 4
    assert "| Biases only (BitFit) | not run yet |" in markdown(table, NAMES)


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
    assert not line.complete  # 0.003 lies between them


def test_an_unfinished_comparison_is_shown_as_it_is():
    row = dict(method="head", start="", seed=0, trainable=1, total=2, memory=None, predicted_memory=None)
    row |= dict(seconds_per_step=0.5, lr=1e-3, validation=0.6, test=0.9)
    (line,) = lines([row], (0, 1, 2))
    assert (line.tests, line.spread, line.complete) == ((0.9,), None, False)
    assert line.sweep == (("", 1e-3, 0.6),)
    assert "0.001 so far | 0.600 | 0.900 | – | 1 |" in markdown([line])


@pytest.mark.parametrize(
    ("accuracies", "tried"),
    [
        ([0.1, 0.2, 0.9, 0.3, 0.8], [3, 4, 2]),  # fallen on both sides
        ([0.1, 0.7, 0.6, 0.5, 0.4], [3, 4, 2, 1]),
        ([0.9, 0.7, 0.6, 0.5, 0.4], [3, 4, 2, 1]),
        ([0.1, 0.2, 0.3, 0.4, 0.5], [3, 4, 5]),  # to the end of the grid
        ([0.5, 0.5, 0.5, 0.5, 0.5], [3, 4, 2, 1]),  # of equal ones the smallest
    ],
)
def test_the_sweep_walks_from_the_middle_until_the_accuracy_has_fallen_on_both_sides(accuracies, tried):
    lrs, runs = (1, 2, 3, 4, 5), []
    while (pair := next_try([""], lrs, runs)) is not None:
        runs.append(dict(start="", lr=pair[1], validation=accuracies[pair[1] - 1]))
    assert [run["lr"] for run in runs] == tried
    shuffled = [runs[i] for i in torch.randperm(len(runs)).tolist()]
    assert next_try([""], lrs, shuffled) is None


@pytest.mark.parametrize(("at_half", "tried"), [(0.95, [5e-4]), (0.1, [5e-4, 2e-4])])
def test_a_finer_sweep_tries_the_rates_halfway_to_the_neighbours_of_the_best(at_half, tried):
    lrs = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
    accuracies = dict(zip(lrs, (0.1, 0.2, 0.3, 0.9, 0.4), strict=True)) | {5e-4: at_half, 2e-4: 0.1}
    runs = []
    while (pair := next_try([""], lrs, runs, finer=True)) is not None:
        runs.append(dict(start="", lr=pair[1], validation=accuracies[pair[1]]))
    assert [run["lr"] for run in runs] == [1e-4, 3e-4, 1e-3, *tried]
    assert next_try([""], lrs, runs) is None  # what lies between does not disturb the walk
    assert with_halves(lrs) == (1e-5, 2e-5, 3e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 1e-3)


def test_the_sweep_tries_each_start_at_the_middle_rate_and_walks_with_the_best():
    runs = []
    while (pair := next_try(["a", "b"], (1, 2, 3), runs)) is not None:
        runs.append(dict(start=pair[0], lr=pair[1], validation={"a": 0.4, "b": 0.5}[pair[0]] - 0.1 * pair[1]))
    assert [(run["start"], run["lr"]) for run in runs] == [("a", 2), ("b", 2), ("b", 3), ("b", 1)]
    assert next_try(["a", "b"], (1, 2, 3), runs, every=True) == ("a", 1)


def test_the_command_writes_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "load", toy)
    words = ["--model=tiny", "--methods=probe,lora-qv-r1", "--lrs=1e-2", "--steps=1", "--batch=4"]
    done = CliRunner().invoke(command.main, [*words, "--seeds", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "LoRA, rank 1, query and value" in done.stdout
    assert (tmp_path / "word-order.md").read_text() in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert [row["method"] for row in rows if row["method"] != PROBE] == ["lora-qv-r1"]


def test_the_times_of_methods_are_kept_beside_those_of_before(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "load", toy)
    for method in ("head", "side"):
        words = ["--model", "tiny", "--methods", method, "--batch", "4", "--time", "--out", str(tmp_path)]
        done = CliRunner().invoke(command.main, words)
        assert done.exit_code == 0, done.output
    assert "in relation to it:" in done.stdout
    times = read_times(tmp_path / "times.json")
    assert set(times["ratios"]) == {"full", "head", "side"}
    assert times["ratios"]["full"] == 1
    assert all(0 < ratio < 100 for ratio in times["ratios"].values())
    assert times["tokens"][0] == 4
    assert not (tmp_path / "runs.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--methods", "lora"], "methods has 'lora'; choose 'all', or from probe, full"),
        (["--methods", "houlsby"], "methods has 'houlsby'; choose 'all', or from probe, full"),
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
    assert sorted(checked_names("all", NAMES, BY_IMPORTANCE)) == sorted(NAMES)
    assert checked_names("all", NAMES, BY_IMPORTANCE)[0] == "full"
    assert checked_names("head, full,head", NAMES) == ("head", "full")
