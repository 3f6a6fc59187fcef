"""What a fine-tuned BERT keeps for its backward, to the byte as autograd keeps it."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from course_lib.finetuning.freeze import mark_only_as_trainable, mark_only_biases_as_trainable
from course_lib.finetuning.lora_apply import apply_lora, mark_only_lora_as_trainable
from course_lib.finetuning.prompt import add_prompt
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.observe.ledgers.saved import saved_tensors
from simulator.inputs.shape import ModelShape
from simulator.predict.finetuning import MATRICES, kept_activations, kept_terms

BATCH, SEQ, HIDDEN, HEADS, FFN, RANK = 3, 10, 24, 4, 60, 5
NAMES = {  # as the simulator calls them: as BERT does
    "query": "layer.*.attention.self.query",
    "key": "layer.*.attention.self.key",
    "value": "layer.*.attention.self.value",
    "projection": "layer.*.attention.output.dense",
    "up": "layer.*.intermediate.dense",
    "down": "layer.*.output.dense",
}


def shape(seq=SEQ, dropout=True):
    return ModelShape(2, HIDDEN, HEADS, 100, seq, ffn=FFN, dropout=dropout)


def saved(adapt, dropout=0.1):
    """Bytes that autograd keeps below the pooler, and whether they are in the first layer, in the second or before."""
    config = dict(vocab_size=100, hidden_size=HIDDEN, num_attention_heads=HEADS, intermediate_size=FFN)
    config |= dict(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    model = BertClassifier(Bert(BertConfig.tiny(**config), pooler=True), 2).train()
    adapt(model)
    found = {"embeddings": 0, "layer.0": 0, "layer.1": 0}
    with sdpa_kernel(SDPBackend.MATH):  # the one that the CPU takes where dropout is on
        kept = saved_tensors(model, torch.ones(BATCH, SEQ, dtype=torch.int64))
    for tensor in kept:
        place = next((name for name in found if name in tensor.saved_in), None)
        if place and tensor.dtype == torch.float32:  # not the tokens' ids
            found[place] += tensor.bytes
    return found


def lora(*matrices):
    def adapt(model):
        apply_lora(model.bert, [NAMES[name] for name in matrices], rank=RANK)
        mark_only_lora_as_trainable(model, also=["classifier"])

    return adapt


CASES = {
    "full": (lambda model: None, dict(embeddings=True)),
    "head": (lambda model: mark_only_as_trainable(model, ["classifier"]), dict(trained=())),
    "biases": (lambda model: mark_only_biases_as_trainable(model), dict(trained=(), embeddings=True)),
    "prompt": (lambda model: add_prompt(model, 4), dict(trained=(), embeddings=True)),
    "all": (lora(*MATRICES), dict(rank=RANK)),
    **{
        " and ".join(names): (lora(*names), dict(trained=names, rank=RANK))
        for names in (("query", "value"), ("query",), ("key",), ("value",), ("projection", "up"), ("down",))
    },
    "weights of up": (
        lambda model: mark_only_as_trainable(model, [NAMES["up"] + ".weight"]),
        dict(trained=["up"]),
    ),
}


@pytest.mark.parametrize(
    ("case", "dropout"), [*((case, 0.1) for case in CASES), ("full", 0.0), ("value", 0.0), ("key", 0.0)]
)
def test_a_layer_keeps_what_autograd_keeps(case, dropout):
    adapt, settings = CASES[case]
    seq = SEQ + 4 * (case == "prompt")
    found = saved(adapt, dropout)
    predicted = kept_activations(shape(seq, dropout > 0), BATCH, mask_itemsize=4, **settings)
    assert sum(found.values()) == predicted
    trained = settings.get("trained", MATRICES)
    terms = kept_terms(
        *(shape(seq, dropout > 0), BATCH, trained),
        rank=settings.get("rank", 0),
        below=bool(trained) or settings.get("embeddings", False),
        mask_itemsize=4,
    )
    assert found["layer.1"] == sum(terms.values())


def test_lora_on_all_matrices_keeps_as_much_as_full_fine_tuning_and_the_head_alone_nothing():
    minilm = ModelShape(6, 384, 12, 30522, 40)
    full = kept_activations(minilm, 32, embeddings=True)
    assert 0.97 < kept_activations(minilm, 32, rank=8) / full < 1
    assert 0.6 < kept_activations(minilm, 32, ("query", "value"), rank=8) / full < 0.7
    assert kept_activations(minilm, 32, ()) == 0


def test_an_unknown_matrix_gets_one_sentence():
    with pytest.raises(ValueError, match="trained must be one of query, key"):
        kept_terms(shape(), 1, ["gate"])
