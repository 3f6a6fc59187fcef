"""What the chapters show of the comparison, whole and unfinished."""

import pytest

from course_lib.comparison.finetuning.kept import kept_lines, kept_runs
from course_lib.comparison.finetuning.methods import NAMES
from course_lib.comparison.finetuning.results import Line
from course_lib.comparison.finetuning.run import CATEGORIES
from course_lib.comparison.finetuning.show import FAMILIES, accuracy_picture, family_of

BYTES = {name: 2e6 for name in CATEGORIES} | {"peak": 9e6}


def line(method="full", tests=(0.7, 0.8), trainable=1000, **changes):
    values = dict(title=f"Title of {method}", start="", lr=1e-3, validation=0.76, total=4000, measured=BYTES)
    values |= dict(predicted={"parameters": 1e6}, seconds_per_step=0.5, complete=True)
    values |= dict(sweep=(("", 1e-3, 0.76), ("", 3e-3, 0.5)))
    return Line(method, tests=tests, trainable=trainable, **(values | changes))


def test_every_method_has_a_family():
    assert {family_of(name) for name in NAMES} == set(FAMILIES)


def test_pictures_say_what_is_seen():
    many = [line(name, (0.5 + i / 100, 0.51 + i / 100), 1000 + i) for i, name in enumerate(NAMES)]
    picture = accuracy_picture(many)  # all in one place: the worst that labels can meet
    assert "Title of full 51.5 % with 1,001" in picture.alt
    assert accuracy_picture([line()]).alt.startswith("Accuracy on the test part over trained parameters")
    with pytest.raises(ValueError, match="give at least one line"):
        accuracy_picture([])


def test_the_kept_runs_are_those_of_one_comparison():
    found = {one.method: one for one in kept_lines()}
    assert set(found) <= set(NAMES)
    for method in ("full", "lora-all-r8"):
        assert found[method].complete
        assert 0.6 < found[method].test < 0.9  # better than chance by far, and no method solves it
    settings = {(r["model"], r["steps"], r["batch"], r["samples"], r["device"]) for r in kept_runs()}
    assert settings == {("minilm", 250, 32, None, "cpu")}
    with pytest.raises(
        ValueError, match="no run of 250 steps of the task 'chess' is kept; this makes them: python -m"
    ):
        kept_lines("chess")
