"""Adapted models drawn in a few boxes, with the bytes that are trained and those that are frozen."""

import pytest

from course_lib.finetuning.prefix import add_deep_prompts
from course_lib.finetuning.prompt import add_prompt
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.observe.networks.adapted import draw_adapted


def test_bytes_of_what_is_trained_and_of_what_is_frozen():
    models = {}
    for title, add in {"a prompt": add_prompt, "deep prompts": add_deep_prompts}.items():
        models[title] = BertClassifier(Bert(BertConfig.tiny(), pooler=True), 2)
        add(models[title], 5)
    drawn = draw_adapted(models)
    text = getattr(drawn, "svg", None) or repr(drawn)
    assert "5 virtual tokens" in text
    assert "trained: 1.28 kB" in text  # 5 x 64 numbers of 4 bytes
    assert "trained: 5.12 kB" in text  # in 2 layers a key and a value of each
    assert text.count("frozen: 399.9 kB") == 2  # both models' layers
    assert "a prompt: 1.80 kB trained; deep prompts: 5.64 kB trained" in drawn.alt


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="at least one model"):
        draw_adapted({})
