"""Numbers of trained parameters that the paper prints (arXiv:2106.09685, tables 2, 4 and 5), from shapes alone."""

import pytest
import torch

from course_lib.finetuning.lora_apply import apply_lora, mark_only_lora_as_trainable
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig

ROBERTA_BASE = BertConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)
GPT_3 = GPTConfig(vocab_size=50257, max_length=2048, num_layers=96, num_heads=96, hidden_size=12288)

ROWS = [  # model, targets, rank, trained, as printed in millions
    (GPT, GPT_3, ["query", "value"], 8, 37_748_736, 37.7),
    (GPT, GPT_3, ["query"], 8, 18_874_368, 18),
    (Bert, ROBERTA_BASE, ["query", "value"], 8, 294_912, 0.3),
]


@pytest.mark.parametrize(("kind", "config", "targets", "rank", "trained", "printed"), ROWS)
def test_trained_parameters_are_those_of_the_paper(kind, config, targets, rank, trained, printed):
    with torch.device("meta"):
        model = kind(config)
    plain = sum(p.numel() for p in model.parameters())
    apply_lora(model, targets, rank=rank)
    count = mark_only_lora_as_trainable(model)
    assert all(p.is_meta for p in model.parameters())
    assert count.trainable == trained
    assert count.total == plain + trained
    digits = len(str(printed).partition(".")[2])
    assert abs(count.trainable / 1e6 - printed) < 10**-digits
