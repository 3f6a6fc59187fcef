"""What a user brings to ``parallelize``: losses of their own, masks, frozen layers, small batches. As on one device, or
refused on all ranks at once."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from on_one_device import mesh_of
from torch import nn

from course_lib.finetuning.lora_apply import apply_lora, mark_only_lora_as_trainable
from course_lib.finetuning.prompt import add_prompt
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.masks import causal_mask, prefix_mask
from course_lib.parallelize import parallelize
from course_lib.pipeline.microbatches import sum_cross_entropy
from course_lib.runtime import launch
from course_lib.runtime.fork_server import preload
from course_lib.tensor_parallel.vocab import VocabParallelCrossEntropy
from simulator.inputs.chunks import chunk_sizes
from simulator.inputs.plan import Plan

preload("course_lib.parallelize")
ROWS, SEQ, VOCAB, CLIP = 6, 8, 31, 0.1


def gpt(frozen=(), **changes):
    model = GPT(GPTConfig.tiny(vocab_size=VOCAB, num_layers=2, hidden_size=16, **changes))
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    return model


def llama():
    return Llama(
        LlamaConfig.tiny(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2)
    )


def prompted():
    model = gpt()
    add_prompt(model, 3)
    return model


def lora_on_words():
    config = BertConfig.tiny(vocab_size=VOCAB, hidden_size=16, intermediate_size=24)
    model = BertClassifier(Bert(config, pooler=True), 3)
    apply_lora(model, ["word_embeddings"], rank=2)
    mark_only_lora_as_trainable(model, also=["classifier"])
    return model


def smoothed(logits, targets):
    return F.cross_entropy(logits.movedim(-1, 1), targets, reduction="sum", label_smoothing=0.1)


class Focal(nn.Module):
    """A loss that is not linear in the cross entropy, and needs the whole softmax."""

    def forward(self, logits, targets):
        p = logits.softmax(-1).gather(-1, targets[..., None])
        return -((1 - p) ** 2 * p.log()).sum()


def official_by_words(mesh):
    return VocabParallelCrossEntropy(VOCAB, mesh["tp"], reduction="sum", label_smoothing=0.1)


FIRST_FROZEN = ("embedding", "blocks.0")
LAST_FROZEN = ("blocks.1", "norm", "head")
PIPELINE = {"dp": 2, "pp": 2, "microbatches": 2}
PREFIXES = prefix_mask(torch.arange(1, ROWS + 1), SEQ)  # one for each row
CASES = [  # name, model, plan, loss, mask
    ("tp, an own loss", gpt, {"dp": 2, "tp": 2}, smoothed, None),
    ("tp and sp, a module", llama, {"dp": 2, "tp": 2, "zero": 3, "sequence_parallel": True}, Focal(), None),
    ("tp and pp, an own loss", gpt, {"tp": 2, "pp": 2, "microbatches": 3}, smoothed, None),
    ("a loss of cut logits", gpt, {"dp": 2, "tp": 2}, official_by_words, None),
    ("a prompt under FSDP", prompted, {"dp": 4, "zero": 3}, None, None),
    ("LoRA on words, FSDP", lora_on_words, {"dp": 4, "zero": 3}, None, None),
    ("LoRA on words, tp", lora_on_words, {"dp": 2, "tp": 2, "zero": 1}, None, None),
    ("LoRA on words, pp", lora_on_words, PIPELINE, nn.CrossEntropyLoss(reduction="sum"), None),
    *(
        (f"{name} stage frozen, {schedule}, zero {zero}", make, plan, None, None)
        for name, frozen in (("first", FIRST_FROZEN), ("last", LAST_FROZEN))
        for schedule, zero in (("1f1b", 0), ("zb-h1", 1))
        for make in [partial(gpt, frozen, tie_embeddings=False)]
        for plan in [PIPELINE | {"schedule": schedule, "zero": zero}]
    ),
    ("masks, GPT", gpt, PIPELINE, None, PREFIXES),
    ("masks, LLaMA", llama, {"tp": 2, "pp": 2, "recompute": "full"}, None, torch.log(PREFIXES.double())),
]


def make_model(make):
    torch.manual_seed(0)
    model = make()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model.double()


def data(model, mask):
    g = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCAB, (ROWS, SEQ), generator=g)
    targets = tokens[:, 0] % 3 if isinstance(model, BertClassifier) else tokens.roll(-1, 1)
    return (tokens, targets) if mask is None else (tokens, mask, targets)


def one_device(make, loss_fn, mask):
    model = make_model(make)
    *inputs, targets = data(model, mask)
    loss_fn = smoothed if loss_fn is official_by_words else loss_fn or sum_cross_entropy
    loss = loss_fn(model(*inputs), targets) / targets.numel()
    loss.backward()
    return after_a_step(
        model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1), loss
    )


def after_a_step(model, optimizer, loss):
    if isinstance(model, nn.Module):
        trained = [p for p in model.parameters() if p.requires_grad]
        norm = nn.utils.clip_grad_norm_(trained, CLIP)
    else:
        norm = model.clip_grad_norm(CLIP)
    optimizer.step()
    return {"loss": loss.detach(), "norm": norm} | model.state_dict()


def on_ranks(cases):
    found = []
    for _, make, settings, loss_fn, mask in cases:
        plan = Plan(**settings, precision="fp32")
        mesh = mesh_of(plan)
        start = make_model(make)
        batch = data(start, mask)
        loss_fn = loss_fn(mesh) if loss_fn is official_by_words else loss_fn
        model, optimizer = parallelize(start, plan, mesh, torch.optim.SGD, loss_fn=loss_fn, lr=0.1)
        sizes = chunk_sizes(ROWS, model.data_ranks)
        loss = model.forward_backward(*(t.split(sizes)[model.data_rank] for t in batch))
        found.append(after_a_step(model, optimizer, loss))
    return found


def test_losses_norms_and_parameters_are_those_of_one_device():
    for found in launch(on_ranks, 4, args=(CASES,), timeout=None):
        for (name, make, _, loss_fn, mask), got in zip(CASES, found, strict=True):
            expected = one_device(make, loss_fn, mask)
            assert got.keys() == expected.keys()
            for key, value in expected.items():
                assert (got[key] - value).abs().max() < 1e-10, (name, key)


# ---- what is refused ----------------------------------------------------------------------------------------

LOSSES = {
    "a mean, by its attribute": (nn.CrossEntropyLoss(), "make it with reduction=\"sum\", not 'mean'"),
    "a mean, by default": (F.cross_entropy, "make it with reduction=\"sum\", not 'mean'"),
    "none": (partial(F.cross_entropy, reduction="none"), "not 'none'"),
    "other targets": (
        nn.CrossEntropyLoss(reduction="sum", ignore_index=0),
        "ignore_index must be -100, not 0",
    ),
}


def refused(mesh):
    plan, said = Plan(dp=3, precision="fp32", microbatches=1), []
    attempts = [partial(parallelize, gpt(), plan, mesh, loss_fn=loss_fn) for loss_fn, _ in LOSSES.values()]
    attempts.append(partial(parallelize, gpt().requires_grad_(False), plan, mesh))
    model, _ = parallelize(gpt(), plan, mesh)
    tokens = torch.zeros(ROWS, SEQ, dtype=torch.long)
    two_rows = tokens[model.data_rank : 2][:1]  # the third rank has none
    attempts.append(partial(model.forward_backward, two_rows, two_rows))
    attempts.append(partial(model.forward_backward, tokens, causal_mask(SEQ), tokens))
    for attempt in attempts:
        with pytest.raises(ValueError) as caught:
            attempt()
        said.append(str(caught.value))
    assert torch.isfinite(model.forward_backward(tokens, tokens)), "the ranks can go on"
    return said


def test_every_rank_says_at_once_what_cannot_be():
    sentences = [sentence for _, sentence in LOSSES.values()]
    sentences += [
        "there is nothing to train",
        "too few rows on one of 3 data-parallel ranks at least ({} on this one): each needs 1",
    ]
    sentences += ["as many rows as the first; the shapes are (6, 8), (8, 8), (6, 8)"]
    for rank, said in enumerate(launch(refused, mesh={"pp": 1, "dp": 3, "tp": 1})):
        for got, sentence in zip(said, sentences, strict=True):
            assert sentence.format(int(rank < 2)) in got
