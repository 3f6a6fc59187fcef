"""The comparison of methods that send less: what is run, in which order, what is kept, and that it is still true."""

import json
import math
from dataclasses import asdict, replace

import pytest
import torch
from click.testing import CliRunner

import course_lib.comparison.compression.cli as command
from course_lib.comparison.compression.compare import compare
from course_lib.comparison.compression.kept import SEEDS, kept_lines, kept_runs, like_kept
from course_lib.comparison.compression.methods import EVERY, METHODS, NAMES, halves
from course_lib.comparison.compression.predicted import sent_in_run
from course_lib.comparison.compression.results import Runs, lines, markdown
from course_lib.comparison.compression.run import FIRST, Setting, held_out, on_rank, sent
from course_lib.comparison.compression.show import FAMILIES, loss_picture
from course_lib.comparison.compression.tasks import MODELS, TASKS
from course_lib.compression.methods import COMPRESSIONS, HOOKED
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from course_lib.parallelize.comm_hooks import HOOKS
from course_lib.runtime import launch

STEPS = 2 * EVERY + 1  # three more than a whole number of rounds of the streaming fragments
TIMED = "asynchronous"  # what it sends and learns depends on the timing


def measured_and_predicted(ranks):
    """Bytes of rank 0 in a run of each method, counted as they are sent, and by the closed forms."""
    found = {}
    for name, method in METHODS.items():
        torch.manual_seed(0)
        model = MODELS["digits"]()
        called, optimizer = method.build(model, 1e-3, STEPS)
        images, labels = TASKS["digits"]().train
        with record_traffic() as log:
            for _ in range(STEPS):
                optimizer.zero_grad()
                cross_entropy(called(images[:8]), labels[:8]).backward()
                optimizer.step()
            if name == TIMED:
                optimizer.finish()
        setting = Setting("digits", name, 1e-3, 0, STEPS, ranks=ranks)
        found[name] = log.traffic.sent, sent(setting, model, optimizer)
    return found


def test_a_run_sends_what_the_closed_forms_say():
    found = launch(measured_and_predicted, 3, args=(3,), timeout=250, backend="gloo")[0]
    assert set(found) == set(NAMES)
    # The mean over 3 ranks is a third, and a sum of thirds is rounded differently from their product.
    for name, (measured, predicted) in found.items():
        assert measured == pytest.approx(predicted, rel=0, abs=1e-3), name


class Fake:
    """Runs that take no time: the loss is lowest at the rate 0.003, and one method diverges at large rates."""

    def __init__(self, stop_at=None):
        self.made, self.stop_at, self.closed = [], stop_at, False

    def __call__(self, setting):
        if len(self.made) == self.stop_at:
            raise KeyboardInterrupt
        self.made.append((setting.method, setting.lr, setting.seed))
        loss = abs(math.log(setting.lr / 3e-3)) + 0.1 * setting.seed
        if setting.method == "top-k" and setting.lr > 2e-3:
            loss = math.inf
        return asdict(setting) | {"validation": loss, "test": 1 + loss, "sent": 320.0}

    def close(self):
        self.closed = True


LIKE = Setting("docs", "", 0, 0, steps=2, batch=16)
RATES = (3e-4, 1e-3, 3e-3, 1e-2)


def test_rates_are_chosen_under_the_first_seed_on_the_validation_part(tmp_path):
    runs, fake = Runs(tmp_path / "runs.jsonl"), Fake()
    ddp, top = compare(LIKE, runs, ["none", "top-k"], range(2), RATES, trainer=fake)
    assert fake.made == [
        *[("none", lr, 0) for lr in (1e-3, 3e-3, 1e-2)],
        *[("top-k", lr, 0) for lr in (1e-3, 3e-3, 3e-4)],
        ("none", 3e-3, 1),
        ("top-k", 1e-3, 1),
    ]
    assert fake.closed
    assert (ddp.lr, ddp.tests, ddp.tried, ddp.complete) == (3e-3, (1.0, 1.1), 3, True)
    assert ddp.spread == pytest.approx(0.1 / 2**0.5)
    assert ddp.sent_per_sample == 320 / 32
    assert (top.lr, top.complete) == (1e-3, True)
    assert "| DDP | 1.050 | 0.071 | 1.000, 1.100 | 0.003 | 10 |" in markdown([ddp])


def test_a_stopped_comparison_goes_on_where_it_was(tmp_path):
    path, told = tmp_path / "runs.jsonl", []
    with pytest.raises(KeyboardInterrupt):
        compare(LIKE, Runs(path), ["none", "ring"], range(2), RATES, trainer=(first := Fake(stop_at=2)))
    assert first.closed
    with path.open("a") as file:
        file.write('{"task": "docs", "met')  # a line that was cut off
    second = Fake()
    table = compare(
        LIKE, Runs(path), ["none", "ring"], range(2), RATES, lambda *t: told.append(t), trainer=second
    )
    assert not set(first.made) & set(second.made)
    assert len(first.made + second.made) == 8
    assert told[0] == ("none at 0.01, seed 0", 2, 10)
    assert told[-1] == ("done", 8, 8)
    nothing = Fake(stop_at=0)
    assert compare(LIKE, Runs(path), ["none", "ring"], range(2), RATES, trainer=nothing) == table


def test_an_unfinished_sweep_says_so(tmp_path):
    runs = Runs(tmp_path / "runs.jsonl")
    runs.add(Fake()(replace(LIKE, method="ring", lr=1e-3)))
    (line,) = lines(runs.like(LIKE), range(3), RATES)
    assert (line.spread, line.complete) == (None, False)
    assert "0.001 so far" in markdown([line])


def test_the_command_trains_and_goes_on(tmp_path):
    words = ["--methods", "none,diloco", "--steps", "2", "--batch", "4", "--ranks", "2", "--lrs", "1e-2"]
    words += ["--out", str(tmp_path), "--seeds"]
    one = CliRunner().invoke(command.main, [*words, "1"])
    assert one.exit_code == 0, one.output
    before = (tmp_path / "runs.jsonl").read_text()
    two = CliRunner().invoke(command.main, [*words, "2"])
    assert two.exit_code == 0, two.output
    assert (tmp_path / "docs.md").read_text() in two.stdout
    after = (tmp_path / "runs.jsonl").read_text()
    assert after.startswith(before), "finished runs are kept"
    rows = [json.loads(line) for line in after.splitlines()]
    runs = [(row["method"], row["seed"]) for row in rows]
    assert runs == [("none", 0), ("diloco", 0), ("none", 1), ("diloco", 1)]
    for row in rows:
        assert 4 < row["test"] < 6  # two steps away from the loss of 256 equally likely bytes, 5.5
        assert row["first_losses"][0] == pytest.approx(math.log(256), abs=0.3)
    assert rows[0]["sent"] == 2 * 4 * rows[0]["parameters"]  # two steps; two ranks send each gradient once
    assert rows[1]["sent"] == 0  # no round has ended


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--methods", "none,gossip"], "methods has 'gossip'; choose 'all', or from none, bytegrad"),
        (["--methods", "ddp"], "methods has 'ddp'; choose 'all', or from none, bytegrad"),
        (["--lrs", "1e-3,nan"], "lrs is '1e-3,nan'; give positive numbers"),
        (["--batch", "3"], "batch is 3; give a multiple of the 4 ranks"),
        (["--batch", "400000"], "batch is 400000; the training part has"),
        (["--steps", "0"], "Invalid value for '--steps'"),
    ],
)
def test_bad_input_gets_one_sentence(tmp_path, words, sentence):
    done = CliRunner().invoke(command.main, [*words, "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_every_name_of_the_table_is_built_by_somebody():
    """One spelling: the comparison's names and those that ``parallelize`` takes are the table's."""
    assert {*NAMES, *HOOKS} == set(COMPRESSIONS)
    assert {"none", *HOOKS} == set(HOOKED)


def test_no_sample_is_in_two_parts():
    for make in TASKS.values():
        task = make()
        rows = [
            {(x.numpy().tobytes(), y.numpy().tobytes()) for x, y in zip(*part, strict=True)}
            for part in (task.train, task.validation, task.test)
        ]
        # The corpus repeats itself in places, such as in lines of dashes.
        assert len(rows[0] & (rows[1] | rows[2])) + len(rows[1] & rows[2]) <= 3


def test_the_loss_of_a_part_is_that_of_all_its_samples():
    model, (images, labels) = MODELS["digits"](), TASKS["digits"]().test
    expected = cross_entropy(model(images), labels).item()
    assert held_out(model, (images, labels), batch_size=50) == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():
        model[1].weight[0, 0] = math.nan
    assert held_out(model, (images, labels)) == math.inf


def test_every_method_is_drawn():
    assert sorted(name for _, _, methods in FAMILIES.values() for name in methods) == sorted(NAMES)


def test_the_kept_table_is_whole():
    found = kept_lines("docs")
    assert [line.method for line in found] == list(NAMES)
    for line in found:
        assert line.complete, line.method
        assert len(line.tests) == len(SEEDS), line.method
    ddp = found[0]
    for row in kept_runs("docs"):
        if row["method"] == "none" and row["lr"] == ddp.lr:
            assert row["first_losses"][0] - row["test"] > 2, "DDP learns"
    assert "DDP" in loss_picture(found).alt


def test_the_kept_runs_sent_what_this_code_sends():
    model = MODELS["docs"]()
    shapes = [tuple(parameter.shape) for parameter in model.parameters()]
    fragments = [sum(parameter.numel() for parameter in half) for half in halves(model)]
    for row in kept_runs("docs"):
        assert row["parameters"] == sum(map(math.prod, shapes))
        if row["method"] != TIMED:
            assert row["sent"] == sent_in_run(row["method"], shapes, fragments, row["ranks"], row["steps"])


def first_losses(settings, task):
    return [on_rank(setting, task, FIRST)["first_losses"] for setting in settings]


def test_the_first_steps_of_kept_runs_come_out_again():
    chosen = {line.method: line.lr for line in kept_lines("docs") if line.method in ("none", "powersgd")}
    rows = [row for row in kept_runs("docs") if chosen.get(row["method"]) == row["lr"] and not row["seed"]]
    assert {row["method"] for row in rows} == set(chosen) == {"none", "powersgd"}
    task = TASKS["docs"]()
    if rows[0]["data"] != task.digest:
        pytest.skip("the kept runs were made with the documentation of another version of Python")
    settings = [replace(like_kept("docs"), method=row["method"], lr=row["lr"]) for row in rows]
    again = launch(first_losses, settings[0].ranks, args=(settings, task), timeout=250, backend="gloo")[0]
    for losses, row in zip(again, rows, strict=True):
        assert losses == pytest.approx(row["first_losses"], rel=1e-4), row["method"]
        assert losses[-1] < losses[0], row["method"]
