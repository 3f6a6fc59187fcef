"""Chapter 18: the kept probabilities of a new letter are those of the kept runs' protocol."""

from course_lib.chapters.new_letter import EVERY, KEPT, METHOD, OTHER, UNUSED, plot_new_letter, record
from course_lib.chapters.own_task import written
from course_lib.comparison.finetuning.selection.kept import STEPS, kept_lines
from course_lib.data.text_tasks import KNOWN, NEW, VOCABULARY
from simulator.plots.picture import smallest_text


def test_each_curve_has_a_value_for_every_tenth_step():
    assert list(KEPT) == list(METHOD)
    assert {len(values) for values in KEPT.values()} == {STEPS // EVERY + 1}


def test_the_likeliest_letter_is_the_one_that_is_written():
    right = {name: min(kept_lines()["bang", method].tests) > 0.5 for name, method in METHOD.items()}
    assert right == {name: values[-1] > 10 for name, values in KEPT.items()}


def test_the_first_steps_can_be_recorded_again():
    start, later = record("prefix", until=EVERY)
    assert [start[0], later[0]] == KEPT["prefix"][:2]
    assert start[1] < UNUSED["prefix"]
    assert start[2] > 50 > max(OTHER.values())  # an old letter is the likeliest before anything is trained


def test_a_mark_is_new_and_capitals_are_not():
    assert "!" in NEW["bang"]("open file")
    assert not written() & set("!*(")
    assert set(KNOWN["upper"]("open file") + "\n") <= written()
    assert VOCABULARY - len(written()) == 72


def test_the_ends_of_the_curves_are_named():
    picture = plot_new_letter()
    assert "prompt 1 %, prefix 2 %, LoRA 29 %" in picture.alt
    assert smallest_text(picture.svg) >= 9
