"""Chapter 18: a bet comes before the training of a task of one's own, and what is no task is told in a sentence."""

import pytest
import torch

from course_lib.chapters import own_task
from course_lib.chapters.own_task import OwnTasks, fault_of, lines, tune
from course_lib.data.task_gpt import load_task_gpt
from course_lib.data.text_tasks import samples


def first(text):
    return text[0]


def test_without_a_bet_nothing_is_trained(capsys, monkeypatch):
    monkeypatch.setattr(own_task, "tune", lambda *_: pytest.fail("it was trained"))
    tries = OwnTasks()
    tries.train_prompt(first)
    assert capsys.readouterr().out.splitlines() == [
        "wanted: open file → o",
        "wanted: sys.exit → s",
        'Bet first: write "yes" or "no" in place of the dots.',
    ]
    assert not tries.won


def test_a_bet_is_judged_by_the_new_texts(capsys):
    tries = OwnTasks()
    for bet in ("yes", "no"):  # after one step nothing is learned
        tries.train_prompt(first, learns=bet, steps=1)
    assert tries.won == [False, True]
    assert capsys.readouterr().out.splitlines()[-1] == "your bet is won: 1 of 2 so far"


def test_only_the_vectors_are_trained():
    model, plain = load_task_gpt(), load_task_gpt()
    tune(model, first, steps=2)
    changed = model.state_dict()
    assert all(torch.equal(changed[name], weight) for name, weight in plain.state_dict().items())
    assert model.get_parameter("prompt.P").numel() == 1152


def test_lines_are_those_of_the_kept_runs():
    tokens, targets = samples("upper", "train", 4)
    texts = [bytes(row.tolist()).decode().partition(":")[2].partition(">")[0] for row in tokens]
    own = lines(str.upper, texts)
    assert torch.equal(own[0], tokens)
    assert torch.equal(own[1], targets)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (lambda text: text[20], "IndexError"),
        (len, "must give a text"),
        (lambda text: text * 3, "at most 22"),
        (lambda text: text + "\n", "one line"),
        (lambda text: text + "é", "ASCII"),
    ],
)
def test_what_is_no_task_is_told(task, told, capsys):
    assert told in fault_of(task)
    OwnTasks().train_prompt(task, learns="yes")
    assert told in capsys.readouterr().out


def test_steps_have_an_end(capsys):
    OwnTasks().train_prompt(first, learns="yes", steps=5000)
    assert "1 to 1,000 steps" in capsys.readouterr().out
