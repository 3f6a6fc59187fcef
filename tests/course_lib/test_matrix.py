"""Every way of tuning under every way of spreading layers over ranks: each cell is one device, or says why it is not.

The loss, the gradient's norm and the trained parameters of a step, in fp64. ``python
tests/course_lib/test_matrix.py`` writes these cells into docs/matrix.md.
"""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from on_one_device import mesh_of
from torch import nn

from course_lib.models.bart import Bart, BartConfig, shift_right
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.parallelize import parallelize
from course_lib.pipeline.microbatches import sum_cross_entropy
from course_lib.runtime import launch
from course_lib.runtime.fork_server import preload
from course_lib.train.tuning import tune
from simulator.inputs.plan import Plan

preload("course_lib.parallelize")
preload("course_lib.train.tuning")
BATCH, SEQ, VOCAB = 4, 8, 31

TUNINGS = {
    "full": {},
    "lora": {"rank": 2, "alpha": 4},
    "adapter": {"width": 3},
    "llama-adapter": {"length": 3, "layers": 1},
    "side": {"layers": 1, "width": 8},
    "prompt": {"tokens": 2},
    "p-tuning": {"tokens": 2, "width": 4},
    "prefix": {"tokens": 2, "width": 4},
}
UNEVEN = {"heads": (3, 1), "columns": (5, 3), "sequence": (3, 1)}  # columns: in this proportion of the MLP's
WAYS = {  # name -> (plan, placement)
    "DP": ({"dp": 2, "microbatches": 2}, None),
    "TP": ({"tp": 2}, None),
    "TP and SP": ({"tp": 2, "sequence_parallel": True}, None),
    "SP": ({"tp": 2}, "sp"),
    "Galaxy": ({"tp": 2}, "galaxy"),
    "Galaxy2": ({"tp": 2}, "galaxy2"),
    "PP": ({"pp": 2, "microbatches": 2}, None),
    "TP and PP": ({"tp": 2, "pp": 2, "microbatches": 2}, None),
}
MODELS = ("bert", "bart", "llama")
NAMES = (
    {"bert": "BERT", "bart": "BART", "llama": "LLaMA"}
    | {tuning: tuning for tuning in TUNINGS}
    | {"lora": "LoRA", "llama-adapter": "LLaMA-Adapter", "p-tuning": "P-tuning"}
)

# Cells that are refused, each with its sentence.
NARROW = "sequence_parallel must be no with side tuning: its network reads whole sequences"
BEFORE = (
    "sequence_parallel must be no with a prompt: it stands before whole sequences, and each rank has a part"
)
KEYS = "attention must not be placed by sequence with a prefix: each rank would put it before its own keys"
OF_TUNINGS = {
    ("side", "TP and SP"): NARROW,
    ("prompt", "TP and SP"): BEFORE,
    ("p-tuning", "TP and SP"): BEFORE,
    ("prefix", "SP"): KEYS,
}
REFUSED = {(tuning, model, way): why for (tuning, way), why in OF_TUNINGS.items() for model in MODELS}


def make(name, tuning):
    torch.manual_seed(0)
    if name == "bert":
        sizes = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 16}
        model = BertClassifier(Bert(BertConfig.tiny(vocab_size=VOCAB, **sizes), pooler=True), 3)
    elif name == "bart":
        sizes = {
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_ffn_dim": 16,
            "decoder_ffn_dim": 16,
        }
        model = Bart(BartConfig.tiny(vocab_size=VOCAB, final_logits_bias=False, **sizes))
    else:
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
        model = Llama(LlamaConfig.tiny(vocab_size=VOCAB, num_key_value_heads=4, **sizes))
    tune(model, tuning, **TUNINGS[tuning])
    for p in model.parameters():  # norms, biases and B of LoRA start trivial: an error in them would not show
        nn.init.normal_(p, std=0.3 if p.dim() == 1 else 0.1)
    return model.double()


def batch(name):
    g = torch.Generator().manual_seed(0)
    tokens, targets = torch.randint(2, VOCAB, (2, BATCH, SEQ), generator=g)
    mask = (torch.arange(SEQ) < torch.tensor([[SEQ], [5], [7], [3]])).long()
    if name == "bert":
        return tokens, mask, targets[:, 0] % 3
    targets = targets.masked_fill(torch.arange(SEQ) > torch.tensor([[7], [7], [3], [5]]), -100)
    return (tokens, targets) if name == "llama" else (tokens, shift_right(targets, 2, 1), mask, targets)


def one_device(name, tuning):
    model = make(name, tuning).train()
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    *inputs, targets = batch(name)
    loss = sum_cross_entropy(model(*inputs), targets) / (targets != -100).sum()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(trained.values(), 0.1)
    torch.optim.SGD(trained.values(), lr=1.0).step()
    return loss.item(), float(norm), {n: p.detach() for n, p in trained.items()}


def under(settings, way, name, tuning):
    """The same on this rank and its neighbours."""
    plan = Plan(**settings, precision="fp32")
    placement = None
    if way is not None:
        columns = tuple(16 * share // 8 for share in UNEVEN["columns"])
        placement = {"placement": way, **UNEVEN, "columns": columns}
    model, optimizer = parallelize(
        make(name, tuning), plan, mesh_of(plan), torch.optim.SGD, placement=placement, lr=1.0
    )
    own = slice(
        model.data_rank * BATCH // model.data_ranks, (model.data_rank + 1) * BATCH // model.data_ranks
    )
    loss = model.forward_backward(*(tensor[own] for tensor in batch(name)))
    norm = model.clip_grad_norm(0.1)
    optimizer.step()
    return float(loss), float(norm), model.state_dict()


def cells(name, ways, expected):
    """For each cell the furthest from one device, or the sentence with which it is refused."""
    found = {}
    for way, (settings, placement) in ways.items():
        for tuning in TUNINGS:
            try:
                *numbers, state = under(settings, placement, name, tuning)
            except ValueError as error:
                found[tuning, name, way] = str(error)
                dist.barrier()
                continue
            *want, trained = expected[tuning]
            tensors = [float((state[n] - p).abs().max()) for n, p in trained.items()]
            found[tuning, name, way] = max(
                *(abs(a - b) for a, b in zip(numbers, want, strict=True)), *tensors
            )
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_cell_is_one_device_or_says_why_not(name, ranks):
    ways = {"serial": ({"microbatches": 2}, None), **WAYS}
    ways = {way: its for way, its in ways.items() if Plan(**its[0]).ranks == ranks}
    expected = {tuning: one_device(name, tuning) for tuning in TUNINGS}
    wrong = {}
    for found in launch(cells, ranks, args=(name, ways, expected), timeout=None):
        for cell, result in found.items():
            if cell in REFUSED:
                assert REFUSED[cell] in str(result), cell
            elif isinstance(result, str) or not result < 1e-9:
                wrong[cell] = result
    assert not wrong


DOCUMENT = Path(__file__).parents[2] / "docs" / "matrix.md"


def document():
    """The cells as a page. A number points to the sentence of a cell that is refused."""
    sentences = list(dict.fromkeys(REFUSED.values()))
    columns = ["serial", *WAYS]
    lines = [
        "# What runs with what",
        "",
        "Each cell trains a small model for a step, on two ranks (serial: on one; TP and PP: on four). The loss, the "
        "gradient's norm and the trained parameters are those of one device, with a difference of at most 1e-9 in 64 "
        "bits: *yes*. A number stands for the sentence below, with which the cell is refused. "
        "`tests/course_lib/test_matrix.py` tests every cell and makes this page.",
        "",
        "SP, Galaxy and Galaxy2 are placements of hybrid layers, here with three heads on one rank and one on the "
        "other. "
        "TP and SP is Megatron-LM's sequence parallelism.",
        "",
        f"| model | tuning | {' | '.join(columns)} |",
        "| --- | --- |" + " --- |" * len(columns),
    ]
    for model in MODELS:
        for tuning in TUNINGS:
            refused = [REFUSED.get((tuning, model, way)) for way in columns]
            cells = [str(sentences.index(sentence) + 1) if sentence else "yes" for sentence in refused]
            lines.append(f"| {NAMES[model]} | {NAMES[tuning]} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{i}. {sentence}." for i, sentence in enumerate(sentences, 1)), ""])


def test_the_page_shows_these_cells():
    assert DOCUMENT.read_text(encoding="utf-8") == document(), f"python {Path(__file__).name} writes the page"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
