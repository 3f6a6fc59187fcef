"""The text tasks: right answers by hand, parts without a common text, targets where the answer stands."""

import random

import pytest

from course_lib.data.text_tasks import (
    END,
    IGNORED,
    KNOWN,
    NEW,
    PARTS,
    TASKS,
    draw_texts,
    encode,
    samples,
    texts,
)


@pytest.mark.parametrize(
    ("task", "answers"),
    {
        "copy": ("sys.exit", "open file"),
        "upper": ("SYS.EXIT", "OPEN FILE"),
        "reverse": ("tixe.sys", "elif nepo"),
        "second": ("y.xt", "pnfl"),
        "vowels": ("ei", "oeie"),
        "last": ("exit", "file"),
        "swap": ("exit.sys", "file open"),
        "kind": ("python", "words"),
        "shout": ("EXIT", "FILE"),
        "yell": ("TIXE.SYS", "ELIF NEPO"),
        "bang": ("sys.exit!", "open file!"),
        "crosses": ("sys.xxxt", "xpxn fxlx"),
        "stars": ("sys.*x*t", "*p*n f*l*"),
        "next": ("tzt.fyju", "pqfo gjmf"),
    }.items(),
)
def test_each_task_has_one_right_answer(task, answers):
    assert (TASKS[task]("sys.exit"), TASKS[task]("open file")) == answers


def test_no_task_is_both_known_and_new():
    assert not KNOWN.keys() & NEW.keys()


def test_parts_share_no_text_and_hold_both_kinds():
    parts = [{text for kind in texts(part) for text in kind} for part in PARTS]
    assert sum(map(len, parts)) == len(set().union(*parts))
    for part in PARTS:
        python, words = texts(part)
        assert len(python) >= 50
        assert len(words) >= 1000
        assert all(KNOWN["kind"](text) == "python" for text in python)
        assert all(KNOWN["kind"](text) == "words" for text in words)


def test_a_whole_part_has_each_text_of_python_once_and_as_many_of_words():
    chosen = draw_texts("test", None, random.Random(0))
    assert len(set(chosen)) == len(chosen) == 2 * len(texts("test")[0])
    assert len(draw_texts("train", 6, random.Random(0))) == 6


def test_only_the_answer_and_its_end_are_targets():
    tokens, targets = encode(["copy:ab cd>", "last:x y>"], ["ab cd", "y"])
    assert bytes(tokens[0].tolist()).decode() == "copy:ab cd>ab cd"
    assert bytes(tokens[1].tolist()).decode() == "last:x y>y" + 6 * END
    for row, answer in zip(targets, ("ab cd\n", "y\n"), strict=True):
        assert bytes(row[row != IGNORED].tolist()).decode() == answer
    assert targets[0, len("copy:ab cd>") - 1] == ord("a")  # predicted at the place of ">"


def test_samples_depend_on_their_seed_alone():
    one, same, other = (samples("upper", "train", 4, seed=seed)[0].tolist() for seed in (1, 1, 2))
    assert one == same != other


def test_a_wrong_name_is_told():
    with pytest.raises(ValueError, match="choose from copy"):
        samples("sing", "train", 2)
    with pytest.raises(ValueError, match="choose from train"):
        texts("all")
