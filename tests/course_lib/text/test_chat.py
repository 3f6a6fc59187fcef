"""The messages that chapter 25's small model reads."""

from course_lib.text.chat import chat
from course_lib.text.published import NEXT_MESSAGE, SENTENCES


def test_the_chapters_messages_are_among_them():
    text = chat(2000, seed=0)
    assert SENTENCES["Chinese"] in text
    assert NEXT_MESSAGE in text
    assert text.count("。") == 2000


def test_a_seed_always_gives_the_same():
    assert chat(20, seed=3) == chat(20, seed=3) != chat(20, seed=4)
