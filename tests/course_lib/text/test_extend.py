import pytest
import torch

from course_lib.models.llama import Llama, LlamaConfig
from course_lib.text.extend import (
    BytesAndWords,
    chinese_text,
    frequent_characters,
    loss_per_character,
    with_new_rows,
)

WORDS = ["猫", "键盘", "键"]


def test_words_are_one_token_and_the_rest_is_bytes():
    tokenizer = BytesAndWords(WORDS)
    text = "猫 on 键盘, 键, 湿"
    tokens = tokenizer.encode(text)
    assert tokens == [256, *b" on ", 257, *b", ", 258, *b", ", *"湿".encode()]
    assert tokenizer.decode(tokens) == text
    assert BytesAndWords().encode(text) == [*text.encode()]


def test_new_rows_are_means_and_old_logits_stay():
    torch.manual_seed(0)
    model = Llama(LlamaConfig.tiny(num_hidden_layers=1))
    grown, noise = with_new_rows(model, WORDS), with_new_rows(model, WORDS, "random")
    rows = model.model.embed_tokens.weight
    torch.testing.assert_close(grown.model.embed_tokens.weight[257], rows[[*"键盘".encode()]].mean(0))
    assert noise.lm_head.weight[256:].std().item() == pytest.approx(
        model.lm_head.weight.std().item(), rel=0.2
    )
    tokens = torch.arange(20)[None]
    for other in (grown, noise):
        torch.testing.assert_close(other(tokens)[..., :256], model(tokens))
    with pytest.raises(ValueError, match="'mean' or 'random'"):
        with_new_rows(model, WORDS, "zeros")
    with pytest.raises(ValueError, match="it must have the 256 bytes"):
        with_new_rows(grown, WORDS)


def test_a_loss_per_character_is_that_of_equal_chances():
    model = Llama(LlamaConfig.tiny(num_hidden_layers=1))
    torch.nn.init.zeros_(model.lm_head.weight)
    text = "湿" * 64
    found = loss_per_character(model, BytesAndWords(), text, length=16)
    assert found == pytest.approx(3 * torch.tensor(256.0).log().item(), rel=1e-4)


def test_there_is_chinese_to_learn_from():
    text = chinese_text()
    assert len(text) > 150_000
    assert frequent_characters(text, 1) == ["，"]
    assert frequent_characters("abab c", 2) == ["a", "b"]
