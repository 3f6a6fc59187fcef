"""GPT-2, read from a folder that transformers has saved: the same logits."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from course_lib.models.pretrained import load_gpt2
from course_lib.models.pretrained.family import Pretrained
from course_lib.models.pretrained.gpt2 import GPT2

SIZES = {"vocab_size": 97, "n_positions": 40, "n_embd": 32, "n_layer": 3, "n_head": 4}


def save(folder, **changes):
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES | changes)).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_gpt2_equals_transformers(tmp_path, tied):
    theirs = save(tmp_path, tie_word_embeddings=tied)
    ours, _ = load_gpt2(tmp_path, torch.float64)
    assert (ours.head.weight is ours.embedding.tokens.weight) == tied
    tokens = torch.randint(97, (2, 17))
    assert (ours(tokens) - theirs(tokens).logits).abs().max() < 1e-9


def test_the_names_of_the_first_published_file(tmp_path):
    """Without the prefix, with the buffers of the mask."""
    theirs = save(tmp_path)
    old = {
        name.removeprefix("transformer."): t for name, t in load_file(tmp_path / "model.safetensors").items()
    }
    save_file(old | {"h.0.attn.bias": torch.ones(1, 1, 40, 40)}, tmp_path / "model.safetensors")
    tokens = torch.randint(97, (2, 17))
    ours, _ = load_gpt2(tmp_path, torch.float64)
    assert (ours(tokens) - theirs(tokens).logits).abs().max() < 1e-9


def test_a_part_of_a_matrix_is_read_and_no_more(tmp_path):
    save(tmp_path)
    whole, _ = load_gpt2(tmp_path, torch.float64)
    pretrained = Pretrained(tmp_path, GPT2)
    for name in ("key.weight", "value.bias", "output.weight"):
        p = whole.blocks[1].attention.get_parameter(name)
        part = [(8, 24), (5, 9)][: p.dim()]
        before = pretrained.folder.bytes_read
        read = pretrained.read(f"blocks.1.attention.{name}", part)
        assert torch.equal(read, p[tuple(slice(*ends) for ends in part)])
        assert pretrained.folder.bytes_read - before == read.numel() * 8


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"activation_function": "relu"}, "has activation_function 'relu'; only 'gelu_new' is supported"),
        ({"n_inner": 64}, "has n_inner 64; only 4 x 32 is supported"),
        ({"resid_pdrop": 0.3}, r"has dropouts \[0\.1, 0\.3\]; only one for all is supported"),
        ({"model_type": "opt"}, "has model_type 'opt'; only 'gpt2' is supported"),
    ],
)
def test_what_is_not_supported_is_told_in_one_sentence(tmp_path, changes, sentence):
    save(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | changes))
    with pytest.raises(ValueError, match=sentence):
        load_gpt2(tmp_path)
