import pytest
import torch

from course_lib.models.llama import Llama, LlamaConfig
from course_lib.text.extend import (
    BytesAndWords,
    chinese_text,
    loss_per_character,
    with_new_rows,
    with_words,
)
from course_lib.text.published import SENTENCES, pieces

WORDS = ["猫", "键盘", "键"]


def test_words_are_one_token_and_the_rest_is_bytes():
    tokenizer = BytesAndWords(WORDS)
    text = "猫 on 键盘, 键, 湿"
    tokens = tokenizer.encode(text)
    assert tokens == [256, *b" on ", 257, *b", ", 258, *b", ", *"湿".encode()]
    assert tokenizer.decode(tokens) == text
    assert BytesAndWords().encode(text) == [*text.encode()]


def test_published_pieces_of_an_added_word_stand_together():
    found = with_words(
        ["▁", "我", "猫", "<0xE5>", "<0x92>", "<0xAA>", "<E5><92>", "<96>"], ["猫", "猫咪", "咖"]
    )
    assert found == [["▁"], ["我"], ["猫", "<0xE5>", "<0x92>", "<0xAA>"], ["<E5><92>", "<96>"]]
    assert with_words(["▁", "我", "的"], ["我的"]) == [["我", "的"]]
    assert with_words(["▁My", "▁cat"], ["cat", "狗"]) == [["▁My"], ["▁cat"]]


# Counted by transformers' LlamaTokenizer, legacy=False, from Mistral 7B's file after add_tokens.
COUNTED = {
    "": 32,
    "我 家 打 了": 31,
    "猫咪 咖啡": 24,
    "猫咪 咖啡 浇得 湿透了": 17,
    "我家 猫咪 打翻了 咖啡 我的 键盘 浇得 湿透了": 11,
}


@pytest.mark.parametrize("words", COUNTED)
def test_words_added_to_mistral_cost_what_transformers_counts(words):
    assert len(with_words(pieces("Mistral 7B", SENTENCES["Chinese"]), words.split())) == COUNTED[words]


@pytest.mark.parametrize("words", ["我家", ["我", ""], [7], None, ...])
def test_words_that_are_no_list_of_texts_are_refused(words):
    for add in (BytesAndWords, lambda words: with_words(["▁"], words)):
        with pytest.raises(ValueError, match=r"give a list of texts|cannot be added"):
            add(words)


def test_new_rows_come_from_old_pieces_and_old_logits_stay():
    torch.manual_seed(0)
    cut = BytesAndWords(["键"])
    model = Llama(LlamaConfig.tiny(num_hidden_layers=1, vocab_size=257))
    mean = with_new_rows(model, cut, ["键盘"])
    ends = with_new_rows(model, cut, ["键盘"], lambda rows: rows[-1], lambda rows: rows[0])
    rows, pieces_of_it = model.model.embed_tokens.weight, [256, *"盘".encode()]
    torch.testing.assert_close(mean.model.embed_tokens.weight[257], rows[pieces_of_it].mean(0))
    torch.testing.assert_close(ends.model.embed_tokens.weight[257], rows[pieces_of_it[-1]])
    torch.testing.assert_close(ends.lm_head.weight[257], model.lm_head.weight[256])
    tokens = torch.arange(20)[None]
    for other in (mean, ends):
        torch.testing.assert_close(other(tokens)[..., :257], model(tokens))


def test_rows_that_cannot_be_made_are_refused():
    model = Llama(LlamaConfig.tiny(num_hidden_layers=1))
    with pytest.raises(ValueError, match=r"has 128 numbers; yours is \(2, 128\)"):
        with_new_rows(model, BytesAndWords(), WORDS, read=lambda rows: rows[:2])
    with pytest.raises(ValueError, match="has 256 tokens, and its tokenizer 259"):
        with_new_rows(model, BytesAndWords(WORDS), WORDS)


def test_a_loss_per_character_is_that_of_equal_chances():
    model = Llama(LlamaConfig.tiny(num_hidden_layers=1))
    torch.nn.init.zeros_(model.lm_head.weight)
    text = "湿" * 64
    found = loss_per_character(model, BytesAndWords(), text, length=16)
    assert found == pytest.approx(3 * torch.tensor(256.0).log().item(), rel=1e-4)


def test_there_is_chinese_to_learn_from():
    text = chinese_text()
    assert len(text) > 150_000
