"""The game of a chapter: guesses are taken, remembered and compared, and a formula must give the number."""

import re

import pytest

from course_lib.observe.show.commitment import _remembered
from course_lib.observe.show.compare import Row, compare
from course_lib.observe.show.predict import Guess, bet, predict, remembered, reveal
from course_lib.observe.show.tables import table
from simulator.ledgers.memory import MemoryBreakdown
from simulator.ledgers.timeline import Span, Timeline
from simulator.ledgers.traffic import Traffic, TrafficRow


@pytest.fixture(autouse=True)
def forgotten():
    """Nothing has been said yet."""
    _remembered.clear()


def test_an_unplayed_guess_shows_no_answer_but_in_a_closed_fold(capsys):
    guess = predict("sent by each rank", ..., unit="MB")
    assert "sent by each rank: no guess yet" in capsys.readouterr().out
    shown = reveal(guess, 67.08e6, "2 (p - 1)/p × gradients", p=4, gradients=(44.72e6, "B"))
    assert repr(shown) == "sent by each rank. The answer opens after your guess."
    html = shown._repr_mimebundle_()["text/html"]
    assert re.match(
        '<details data-answer="[^"]+"><summary>The answer opens after your guess.</summary>', html
    )
    assert "67.1 MB" in html
    assert "2 × (4 - 1)/4 × 44.7 MB" in html
    assert "none" in repr(compare(Row("sent", guess, 67.08e6, 67.08e6, unit="B")))


def test_the_answer_opens_when_something_was_said():
    reveals = reveal(
        predict("sent", ..., unit="MB"), 67.08e6, "2 (p - 1)/p × g", table([""], []), p=4, g=44.72e6
    )
    predict("sent", 67.1, unit="MB")
    assert repr(reveals).splitlines()[:4] == [
        "sent: 67.1 MB",
        "    = 2 × (p - 1)/p × g",
        "    = 2 × (4 - 1)/4 × 44.72e6",
        "You said 67.1 MB: right.",
    ]
    html = reveals._repr_mimebundle_()["text/html"]
    assert "<details" not in html
    assert "<table>" in html


def test_running_a_cell_again_keeps_what_was_said():
    guess = predict("sent", 5, unit="MB")
    assert predict("sent", ..., unit="MB") is guess
    assert guess.value == 5e6
    assert predict("sent", 6, unit="MB") is guess
    assert guess.value == 6e6
    which = bet("pair", ["faster", "slower"], pick=1)
    assert bet("pair", ["faster", "slower"]).value == "faster"
    assert bet("pair", ["better", "slower"]).value is None
    assert which.choices == ("better", "slower")


def test_a_bet_is_answered(capsys):
    which = bet("pair", ["faster", "slower", "as fast"])
    assert capsys.readouterr().out.splitlines() == [
        "pair: no bet yet (press a choice, or give its number as pick=)",
        "    1  faster",
        "    2  slower",
        "    3  as fast",
    ]
    shown = reveal(which, "slower", "It waits.", mistakes={"faster": "You kept both busy"})
    assert "slower" not in repr(shown)
    assert shown.html().startswith("<details")
    for pick, said in {
        2: "Right.",
        "slower": "Right.",
        1: "You said “faster”. You kept both busy.",
        3: "You said “as fast”.",
    }.items():
        bet("pair", ["faster", "slower", "as fast"], pick)
        assert repr(shown).splitlines() == ["pair: slower", said, "It waits."]


@pytest.mark.parametrize("pick", [0, 3, "fast", True, None, 1.5])
def test_a_pick_that_is_no_choice_is_refused(pick):
    with pytest.raises(ValueError, match=r"is none of the choices of 'pair'; they are 1 \('faster'\), 2"):
        bet("pair", ["faster", "slower"], pick)


def test_a_bet_that_cannot_be_won_is_refused():
    for choices in (["one"], ["one", "one"], "one", []):
        with pytest.raises(ValueError, match="a bet needs two or more different choices"):
            bet("pair", choices)
    which = bet("pair", ["faster", "slower"])
    with pytest.raises(ValueError, match="the answer 'equal' is none of the choices: 'faster', 'slower'"):
        reveal(which, "equal")
    for choice in ("equal", "slower"):
        with pytest.raises(ValueError, match=f"the mistake '{choice}' is not one of the wrong choices"):
            reveal(which, "slower", mistakes={choice: "No."})
    with pytest.raises(ValueError, match="a slider needs low below high"):
        predict("sent", ..., low=3, high=2)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (34, "too low, by a factor of 2. Perhaps you forgot the way back."),
        (134, "too high, by a factor of 2. It is half of your number: did you count something twice?"),
        (67.08e3, "too high, by a factor of 1,000. The factor is about 1,000: look at the unit."),
        (67.08 / 1024, "too low, by a factor of 1,024. The factor is about 1,000: look at the unit."),
        (8.385, "too low, by a factor of 8. It is eight times your number: bytes for bits?"),
        (50, "too low, by a factor of 1.3."),
        (0, "too low. Perhaps you sent nothing."),
        (66, "too low, but by only 2 %."),
    ],
)
def test_the_likely_mistake_is_named(said, sentence):
    mistakes = {"you forgot the way back": 33.54e6, "you sent nothing": 0}
    shown = reveal(predict("sent", said, unit="MB"), 67.08e6, mistakes=mistakes)
    assert repr(shown).endswith(f": {sentence}")


def test_a_mistake_that_is_right_is_refused():
    with pytest.raises(ValueError, match=r"the mistake .you rounded. gives 67\.1 MB, which is the right"):
        reveal(Guess("sent", None, "B"), 67.08e6, mistakes={"you rounded": 67.1e6})


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (45, "You said 45 MB: too low, by a factor of 1.5."),
        ("45 MB", "You said 45 MB: too low, by a factor of 1.5."),
        ("0.0671 GB", "You said 67.1 MB: right."),
        ("67,100 kB", "You said 67.1 MB: right."),
        (70, "You said 70 MB: too high, but by only 4 %."),
        (6708, "You said 6.71 GB: too high, by a factor of 100."),
        (0, "You said 0 B: too low."),
    ],
)
def test_how_far_a_guess_was(said, verdict):
    assert repr(reveal(predict("sent", said, unit="MB"), 67.08e6)).splitlines()[-1] == verdict


def test_guesses_in_words_and_percent():
    assert "16 bytes" in repr(reveal(predict("a parameter", "16 B", unit="bytes"), 16))
    assert "You said 8 GPUs: too low, by a factor of 4.4." in repr(
        reveal(predict("GPUs", 8, unit="GPUs"), 35)
    )
    assert "right" in repr(reveal(predict("a share", "44 %"), 0.44))
    assert "You said 34 %: right." in repr(reveal(predict("kept", 34, unit="%"), 0.34375))
    assert "You said 33 %: too low, by 1.3" in repr(reveal(predict("kept", 33, unit="%"), 0.34375))
    assert "You said 1 %: too high" in repr(reveal(predict("lost", 1, unit="%"), 0.006))
    shown = repr(reveal(predict("lost", 1, unit="%"), 0.897))
    assert "lost: 89.7 %" in shown.replace("0.897", "89.7")
    assert "You said 1 %: too low, by 88.7 percentage points." in shown


@pytest.mark.parametrize("said", [19, 100.5, "0.44", "101 %"])
def test_a_guess_outside_of_its_slider_is_refused(said):
    with pytest.raises(ValueError, match=rf"^the guess {said!r} is not between 20 and 100 %$"):
        predict("held", said, unit="%", low=20, high=100)
    assert [predict("held", end, unit="%", low=20, high=100).value for end in (20, "100 %")] == [0.2, 1]


def test_a_guess_is_remembered_under_its_name():
    guess = predict("per rank", 3, unit="MB")
    assert remembered("per rank") is guess
    assert repr(reveal("per rank", 3e6)).startswith("per rank: 3 MB")
    with pytest.raises(ValueError, match="nothing was predicted under the name 'else'"):
        reveal("else", 1)


def test_ledgers_are_read():
    assert "3 B" in repr(reveal(Guess("memory", 1, "B"), MemoryBreakdown(parameters=1, gradients=2)))
    assert "6 B" in repr(reveal(Guess("sent", 1, "B"), Traffic([TrafficRow("send", 2, 1, 6, 6)])))
    assert "2.50 s" in repr(reveal(Guess("step", 1, "s"), Timeline([Span(0, "compute", "F0", 1, 3.5)])))


@pytest.mark.parametrize(
    ("formula", "values", "filled"),
    [
        ("parameters × (2 + 2 + 12)", {"parameters": 175e9}, "175e9 × (2 + 2 + 12)"),
        ("ceil(bytes_held / capacity)", {"bytes_held": (2.8e12, "B"), "capacity": (1, "B")}, None),
        ("2^k p", {"k": 3, "p": -2}, "2^3 × (-2)"),
        ("max(a, b) · 0.5", {"a": 1024, "b": 2}, "max(1,024, 2) × 0.5"),
    ],
)
def test_formulas_are_filled_in(formula, values, filled):
    numbers = {
        "parameters × (2 + 2 + 12)": 2.8e12,
        "ceil(bytes_held / capacity)": 2.8e12,
        "2^k p": -16,
        "max(a, b) · 0.5": 512,
    }
    lines = repr(reveal(Guess("x", 1, ""), numbers[formula], formula, **values)).splitlines()
    assert "_" not in lines[1]
    if filled:
        assert lines[2] == f"    = {filled}"


def test_a_formula_that_gives_another_number_is_refused():
    with pytest.raises(ValueError, match=r"the formula 'a b' gives 6, the value is 7"):
        reveal(Guess("x", None), 7, "a b", a=2, b=3)
    with pytest.raises(ValueError, match="needs a value for b"):
        reveal(Guess("x", None), 7, "a b", a=2)


@pytest.mark.parametrize("guess", ["about five", True, None, float("nan"), "5 s", "1.2.3"])
def test_what_is_no_guess_is_refused_in_a_sentence(guess):
    with pytest.raises(ValueError, match=r"guess|number"):
        predict("sent", guess, unit="MB")


def test_an_unknown_unit_is_refused():
    with pytest.raises(ValueError, match="unit 'Mb' is not known"):
        predict("sent", 1, unit="Mb")
