"""Chapter 18: a wrong forward and what is no task are told in a sentence; a bet comes before the training."""

import re

import pytest
import torch

from course_lib.chapters import own_task
from course_lib.chapters.own_task import (
    OwnTasks,
    WithPrompt,
    fault_of,
    lines,
    printed,
    search_names,
    train_after,
    try_forward,
    tune,
    writes,
)
from course_lib.data.task_gpt import load_task_gpt
from course_lib.data.text_tasks import samples
from course_lib.observe.show.commitment import Bet


def first(text):
    return text[0]


def made(joined, dropped):
    """The forward of the chapter with its two lines."""

    def forward(model, P, tokens):
        text = model.embedding.tokens(tokens)
        x = joined(P.expand(len(text), -1, -1), text)
        x = x + model.embedding.positions.weight[: x.shape[1]]
        for block in model.blocks:
            x = block(x)
        return model.head(model.norm(dropped(x)))

    return forward


def before(P, text):
    return torch.cat((P, text), dim=1)


forward = made(before, lambda x: x[:, 8:])


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (forward, "Right"),
        (made(lambda P, text: ..., lambda x: x), "a line with dots is left"),
        (made(before, lambda x: ...), "a line with dots is left"),
        (made(lambda P, text: torch.cat((P, text)), lambda x: x[:, 8:]), "joins along dimension 0."),
        (made(lambda P, text: torch.cat((P, text), dim=2), lambda x: x[:, 8:]), "joins along dimension 2."),
        (made(lambda P, text: torch.cat(P, text), lambda x: x[:, 8:]), "as one tuple"),
        (made(lambda P, text: torch.cat((P[0], text)), lambda x: x[:, 8:]), "2 dimensions with one of 3"),
        (made(lambda P, text: P + text, lambda x: x[:, 8:]), "You add or multiply where 8 vectors"),
        (made(before, lambda x: x.nothing), "stopped with AttributeError"),
        (made(before, lambda x: x), "need logits of (3, 40, 128); yours: (3, 48, 128). Of 48 places 0 are"),
        (
            made(before, lambda x: x[:, len(x) :]),
            "Of 48 places 3 are dropped; the 8 of the vectors have to be",
        ),
        (made(before, lambda x: x[8:]), "yours: (0, 48, 128).\n"),
        (
            made(lambda P, text: text, lambda x: x[:, 8:]),
            "(3, 32, 128). 40 places enter the layers; 8 vectors",
        ),
        (made(lambda P, text: torch.cat((P, text, text), dim=1), lambda x: x[:, 8:]), "RuntimeError"),
        (made(before, lambda x: x[:, :-8]), "not the logits of the text's places"),
        (made(lambda P, text: torch.cat((text, P), dim=1), lambda x: x[:, :-8]), "does not read the vectors"),
        (made(lambda P, text: text, lambda x: x), "does not read the vectors"),
        (made(lambda P, text: before(P.detach(), text), lambda x: x[:, 8:]), "does not read the vectors"),
        (lambda *_: None, "yours: NoneType"),
    ],
)
def test_a_forward_is_judged(own, told, capsys):
    try_forward(own)
    assert told in capsys.readouterr().out


def test_with_a_wrong_forward_nothing_is_trained(capsys, monkeypatch):
    monkeypatch.setattr(own_task, "tune", lambda *_: pytest.fail("it was trained"))
    OwnTasks().train_prompt(made(before, lambda x: x), first, learns="yes")
    assert "need logits" in capsys.readouterr().out


def test_without_a_bet_nothing_is_trained(capsys, monkeypatch):
    monkeypatch.setattr(own_task, "tune", lambda *_: pytest.fail("it was trained"))
    tries = OwnTasks()
    assert tries.train_prompt(forward, first, learns=...) is None
    assert capsys.readouterr().out.splitlines() == [
        "wanted: open file → o",
        "wanted: sys.exit → s",
        'Bet first: write "yes" or "no" in place of the dots.',
    ]
    assert not tries.won


def test_a_bet_is_judged_by_the_new_texts(capsys):
    tries = OwnTasks()
    for bet, task in {"yes": first, "no": "(".__add__}.items():  # after one step nothing is learned
        board = tries.train_prompt(forward, task, learns=bet, steps=1)
    assert list(tries.won.values()) == [False, True]
    told = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in str(board).splitlines()[2:]]
    assert (rows[0][0], rows[0][-4:]) == ("o", ["none", "yes", "0", "%"])
    assert (rows[1][:2], rows[1][-4:]) == (["(open", "file"], ["(", "no", "0", "%"])
    assert told[-1] == "your bet is won: 1 of 2 so far"
    tries.train_prompt(forward, first, learns="no", steps=1)  # it is known now
    assert capsys.readouterr().out.endswith("your bet is lost: 1 of 2 so far\n")


def test_two_tasks_are_trained_after_the_bet_alone(capsys, monkeypatch):
    bet = Bet("the prompt is right", ("yes", "no"))
    with monkeypatch.context() as context:
        context.setattr(own_task, "tune", lambda *_: pytest.fail("it was trained"))
        train_after(bet, forward, first, str.upper)
        assert capsys.readouterr().out == "Bet first, in the cell above. Then run this cell again.\n"
        bet.commit("no")
        train_after(bet, made(before, lambda x: x), first)
        assert "need logits" in capsys.readouterr().out
    train_after(bet, forward, first, "(".__add__, steps=1)
    told = capsys.readouterr().out
    assert re.findall("open file: wanted (.+), written", told) == ["o", "(open file"]
    assert told.count("right on 0 % of new texts") == 2
    near, typed = re.findall("nearest to its vectors, (.{8}), write (.*)", told)[0]
    assert typed == printed(writes(f"{near}:open file>"))


def test_a_control_character_is_printed_as_its_number():
    assert printed("open file\x07") == "open file\\x07"


def test_names_are_searched(monkeypatch):
    monkeypatch.setattr("course_lib.chapters.own_task.ascii_letters", "uch")
    found = search_names("ENLE")
    assert found.startswith("332 names tried; these make it write ENLE: ")
    assert {"uc", "uh"} <= set(found.rpartition(": ")[2].split(", "))


def test_a_line_is_typed_by_the_reader():
    assert writes("reverse:open file>") == writes("reverse:open file") == "elif nepo"
    assert len(writes("a" * 32 + ":" + "b" * 9)) > 0  # the longest line
    assert writes("reverse upper:open file>") != "ELIF NEPO"


@pytest.mark.parametrize(
    "line", ["", "reverse", "reverse:", "reverse:>", "reverse:öl>", "a:b\n", "a" * 33 + ":" + "b" * 10]
)
def test_what_is_no_line_is_told(line):
    assert "a colon" in writes(line)


def test_only_the_vectors_are_trained():
    model, plain = WithPrompt(forward), load_task_gpt()
    start = model.P.detach().clone()
    tune(model, first, steps=2)
    changed = model.model.state_dict()
    assert all(torch.equal(changed[name], weight) for name, weight in plain.state_dict().items())
    assert model.P.numel() == 1152
    assert not torch.equal(model.P, start)


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
    OwnTasks().train_prompt(forward, task, learns="yes")
    assert told in capsys.readouterr().out


def test_steps_have_an_end(capsys):
    OwnTasks().train_prompt(forward, first, learns="yes", steps=5000)
    assert "1 to 1,000 steps" in capsys.readouterr().out
