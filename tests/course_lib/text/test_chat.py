"""The messages that chapter 25's small model reads."""

from course_lib.text.chat import DRINKS, WHAT, WHO, chat
from course_lib.text.published import NEXT_MESSAGE, SENTENCES


def test_the_chapters_messages_are_among_them():
    text = chat(2000, seed=0)
    assert SENTENCES["Chinese"] in text
    assert NEXT_MESSAGE in text
    assert text.count("。") == 2000


def test_a_seed_always_gives_the_same():
    assert chat(20, seed=3) == chat(20, seed=3) != chat(20, seed=4)


def test_a_byte_that_ends_a_word_ends_others_too():
    ends = {
        byte: [word for word in (*WHO, *DRINKS, *WHAT) if word.encode()[-1] == byte] for byte in (0xAA, 0xA1)
    }
    assert ends == {0xAA: ["我家猫咪", "她的猫咪", "他的小猪", "奶酪"], 0xA1: ["她家的鸡", "咖啡"]}
