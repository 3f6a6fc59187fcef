"""Blocks drawn, and a reader's line that finds a token in them: right lines have nothing red, wrong ones do."""

import pytest
import torch

from course_lib.by_hand.paged_attention import Gathered, Table
from course_lib.chapters.block_places import WRONG, as_requests, judge_copies, judge_slot, plot_tables
from course_lib.models.gpt import GPT, GPTConfig

PROMPTS = [[1, 2, 3], list(range(17)), [5]]


@pytest.fixture(scope="module")
def gpt():
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(num_layers=2, hidden_size=64, max_length=64)).double()
    for parameter in model.parameters():
        parameter.data *= 4  # so that a wrong key changes which token is drawn
    return model


@pytest.mark.parametrize(
    "slot",
    [
        lambda blocks, token: blocks[token // 8] * 8 + token % 8,
        lambda blocks, token: [8 * block + i for block in blocks for i in range(8)][token],
        lambda blocks, token: torch.tensor(blocks)[token // 8] * 8 + token % 8,
    ],
)
def test_a_right_line_finds_every_token(slot, gpt):
    picture = judge_slot(slot, gpt, PROMPTS, new_tokens=8)
    assert picture.alt == "42 of 42 tokens in their places, 3 of 3 answers right."
    assert WRONG not in picture.svg


@pytest.mark.parametrize(
    "slot",
    [
        lambda blocks, token: token,
        lambda blocks, token: blocks[token // 8] + token % 8,
        lambda blocks, token: blocks[token // 8] * 8,
        lambda blocks, token: (
            blocks[(token - 1) // 8] * 8 + (token - 1) % 8
        ),  # other slots, and right answers
        lambda blocks, token: blocks.pop() * 8 + token % 8,
    ],
)
def test_a_wrong_line_is_drawn_red_and_no_answer_is_called_right(slot, gpt):
    picture = judge_slot(slot, gpt, PROMPTS, new_tokens=8)
    assert WRONG in picture.svg
    assert picture.alt.endswith(" of 42 tokens in their places.")
    assert not picture.alt.startswith("42 of")


def test_a_slot_beyond_the_memory_is_named_and_the_others_are_drawn(gpt):
    def slot(blocks, token):
        return 10_000 if token == 16 else blocks[token // 8] * 8 + token % 8

    picture = judge_slot(slot, gpt, PROMPTS, new_tokens=8)
    assert picture.alt.startswith("41 of 42 tokens in their places; token 16 gets slot 10000, but its block ")
    assert "right" not in picture.alt


@pytest.mark.parametrize("given", [None, -1, 1.0])
def test_what_is_no_slot_gets_one_sentence(given, gpt):
    with pytest.raises(ValueError, match=rf"lies in slot {given!r}; give a whole number"):
        judge_slot(lambda blocks, token: given, gpt, PROMPTS)


def test_lines_that_stop_get_one_sentence(gpt):
    with pytest.raises(ValueError, match=r"token 1 of the blocks \[0, 5, 8, 11\]: IndexError: list index"):
        judge_slot(lambda blocks, token: blocks[token * 9], gpt, PROMPTS)
    with pytest.raises(
        ValueError, match=r"before_writing stops with AttributeError: .*has no attribute 'left'"
    ):
        judge_copies(lambda cache, table: cache.left, gpt, list(range(20)))


def test_shared_blocks_name_all_who_list_them(gpt):
    cache, first = Gathered(gpt, 1, 48), Table()
    cache.grow(first, 20)
    answers = {"A": first, "B": cache.fork(first)}
    for one in answers.values():
        cache.grow(one, 1)
    assert plot_tables({"": answers}, blocks=6).alt == "A lists 0, 1, 3; B lists 0, 1, 2."


def copies(condition, counts=True):
    def before_writing(cache, table):
        last = table.blocks[-1]
        if condition(cache.users[last]):
            table.blocks[-1] = cache.copy(last)
            cache.users[last] -= counts

    return before_writing


def test_copy_on_write_changes_nothing_and_takes_the_fewest_blocks(gpt):
    picture = judge_copies(copies(lambda users: users > 1), gpt, list(range(20)))
    assert picture.alt == "0 of 72 characters are wrong, 14 blocks taken."
    assert WRONG not in picture.svg


def test_a_block_that_nobody_copies_is_drawn_red(gpt):
    picture = judge_copies(copies(lambda users: False), gpt, list(range(20)))
    assert " slots are red, " in picture.alt
    assert picture.alt.endswith(" of 72 characters are wrong, 12 blocks taken.")
    assert ", 0 of" not in picture.alt
    assert WRONG in picture.svg


def test_a_copy_for_all_but_two_is_drawn_red(gpt):
    picture = judge_copies(copies(lambda users: users > 2), gpt, list(range(20)))
    assert WRONG in picture.svg
    assert "slots are red, " in picture.alt


def test_users_that_are_counted_down_without_a_copy_are_told(gpt):
    def too_few(cache, table):
        copies(lambda users: users > 1)(cache, table)
        cache.users[table.blocks[-1]] -= 1

    assert "counted wrongly in `users`" in judge_copies(too_few, gpt, list(range(20))).alt


def test_a_block_that_nobody_lists_is_counted(gpt):
    picture = judge_copies(copies(lambda users: users > 1, counts=False), gpt, list(range(20)))
    assert picture.alt == "0 of 72 characters are wrong, 15 blocks taken, 1 in `users`, listed by nobody."


def test_a_copy_that_was_not_needed_is_told_from_the_blocks_in_the_end(gpt):
    picture = judge_copies(copies(lambda users: True), gpt, list(range(20)))
    assert picture.alt == "0 of 72 characters are wrong, 15 blocks taken at one time, 14 in the end."


def test_copies_without_end_and_no_block_get_one_sentence(gpt):
    with pytest.raises(ValueError, match="all 18 blocks are used: each copy took a block"):
        judge_copies(copies(lambda users: True, counts=False), gpt, list(range(20)))

    def nothing(cache, table):
        table.blocks[-1] = None

    for wrong in (nothing, lambda cache, table: cache.free(table)):
        with pytest.raises(ValueError, match="last entry is None, which is no block"):
            judge_copies(wrong, gpt, list(range(20)))


def test_a_readers_texts_are_requests():
    (one,) = as_requests([("é", 62)], most=64)
    assert (one.prompt, one.new_tokens) == (list("é".encode()), 62)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "there is no text"),
        ([("a", 1), ("", 3)], "text 1 needs a letter"),
        ([("a", 0)], "a byte or more to write"),
        ([("é", 63)], "text 0 has 2 bytes and asks for 63: 65 together, more than 64"),
    ],
)
def test_texts_that_have_no_place_get_one_sentence(texts, said):
    with pytest.raises(ValueError, match=said):
        as_requests(texts, most=64)
