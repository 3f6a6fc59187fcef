"""The game of a chapter: guesses are taken, remembered and compared, and a formula must give the number."""

import pytest

from course_lib.observe.show.compare import Row, compare
from course_lib.observe.show.predict import Guess, predict, remembered, reveal
from simulator.ledgers.memory import MemoryBreakdown
from simulator.ledgers.timeline import Span, Timeline
from simulator.ledgers.traffic import Traffic, TrafficRow


def test_an_unplayed_guess_says_so_everywhere(capsys):
    guess = predict("sent by each rank", ..., unit="MB")
    assert "sent by each rank: no guess yet" in capsys.readouterr().out
    shown = reveal(guess, 67.08e6, "2 (p - 1)/p × gradients", p=4, gradients=(44.72e6, "B"))
    assert repr(shown).splitlines() == [
        "sent by each rank: 67.1 MB",
        "    = 2 × (p - 1)/p × gradients",
        "    = 2 × (4 - 1)/4 × 44.7 MB",
        "No guess yet: write your number in the cell with predict(…), and run both cells.",
    ]
    assert "none" in repr(compare(Row("sent", guess, 67.08e6, 67.08e6, unit="B")))


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (45, "You said 45 MB: too low, by a factor of 1.5."),
        ("45 MB", "You said 45 MB: too low, by a factor of 1.5."),
        ("0.0671 GB", "You said 67.1 MB: right."),
        ("67,100 kB", "You said 67.1 MB: right."),
        (70, "You said 70 MB: too high, but by only 4 %."),
        (6708, "You said 6.71 GB: too high, by a factor of 100."),
        (0, "You said 0 B: too low, by 67.1 MB."),
    ],
)
def test_how_far_a_guess_was(said, verdict):
    assert repr(reveal(predict("sent", said, unit="MB"), 67.08e6)).splitlines()[-1] == verdict


def test_guesses_in_words_and_percent():
    assert "16 bytes" in repr(reveal(predict("a parameter", "16 B", unit="bytes"), 16))
    assert "You said 8 GPUs: too low, by a factor of 4.4." in repr(
        reveal(predict("GPUs", 8, unit="GPUs"), 35)
    )
    shown = repr(reveal(predict("lost", 1, unit="%"), 0.897))
    assert "lost: 89.7 %" in shown.replace("0.897", "89.7")
    assert "You said 1 %: too low, by 88.7 percentage points." in shown


def test_a_guess_is_remembered_under_its_name():
    guess = predict("per rank", 3, unit="MB")
    assert remembered("per rank") is guess
    assert repr(reveal("per rank", 3e6)).startswith("per rank: 3 MB")
    with pytest.raises(ValueError, match="nothing was predicted under the name 'else'"):
        reveal("else", 1)


def test_ledgers_are_read():
    assert "3 B" in repr(reveal(Guess("memory", None, "B"), MemoryBreakdown(parameters=1, gradients=2)))
    assert "6 B" in repr(reveal(Guess("sent", None, "B"), Traffic([TrafficRow("send", 2, 1, 6, 6)])))
    assert "2.50 s" in repr(reveal(Guess("step", None, "s"), Timeline([Span(0, "compute", "F0", 1, 3.5)])))


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
    lines = repr(reveal(Guess("x", None, ""), numbers[formula], formula, **values)).splitlines()
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
