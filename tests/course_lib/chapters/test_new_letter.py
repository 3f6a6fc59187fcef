"""Chapter 18: the kept probabilities of a new letter are those of the kept runs' protocol."""

from course_lib.chapters.new_letter import EVERY, KEPT, METHOD, alike, plot_new_letter, record
from course_lib.chapters.own_task import written
from course_lib.comparison.finetuning.selection.kept import kept_lines
from course_lib.data.text_tasks import KNOWN, NEW, VOCABULARY
from simulator.plots.picture import smallest_text


def test_the_likeliest_letter_is_the_one_that_is_written():
    right = {name: min(kept_lines()["bang", method].tests) > 0.5 for name, method in METHOD.items()}
    assert right == {name: new > other for name, (new, _, other) in KEPT.items()}


def test_the_first_steps_can_be_recorded_again():
    start, later = record("prefix", until=EVERY)
    assert start[0] == later[0] == 0
    assert start[1] < KEPT["prefix"][1]
    assert start[2] > 50 > KEPT["prefix"][2]  # an old letter is the likeliest before anything is trained


def test_a_mark_is_new_and_capitals_are_not():
    assert "!" in NEW["bang"]("open file")
    assert not written() & set("!*(")
    assert set(KNOWN["upper"]("open file") + "\n") <= written()
    assert VOCABULARY - len(written()) == 72


def test_each_method_has_the_new_letter_and_its_rival():
    picture = plot_new_letter()
    assert "LoRA: ! 28.8 %, the other new letters 69.1 %, old letters 2.1 % (! 28.8 %, likelie" in picture.alt
    assert "prompt: ! 1.1 %" in picture.alt
    assert smallest_text(picture.svg) >= 9


def test_rows_of_letters_without_training_are_alike():
    cosines = {line[2]: float(line.split()[-1]) for line in str(alike("!", "?*(0~eE")).splitlines()[2:]}
    assert min(cosines[letter] for letter in "?*(0~") > 0.95
    assert max(cosines[letter] for letter in "eE") < 0.1
