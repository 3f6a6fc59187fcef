"""Every composition of data, tensor and pipeline parallelism against one device: losses, gradient norms, gradients."""

import pytest
import torch
from torch import nn

from course_lib.data.sharding import batches
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.parallelize import mesh_axes, parallelize
from course_lib.pipeline.executor import sum_cross_entropy
from course_lib.runtime import launch
from course_lib.runtime.mesh import make_mesh
from simulator.inputs.plan import Plan

STEPS, BATCH, SEQ, CLIP = 3, 7, 12, 0.1
VOCAB = 97  # a prime: the vocabulary is dealt out unevenly
CLASSES = 5


def gpt():
    sizes = {"vocab_size": VOCAB, "max_length": 16, "num_layers": 3, "num_heads": 4, "hidden_size": 16}
    return GPT(GPTConfig.tiny(**sizes))  # tied embeddings; three layers are two stages of 2 and 1


def llama():
    sizes = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
    return Llama(LlamaConfig.tiny(**sizes, num_attention_heads=4, num_key_value_heads=1))  # on several ranks


def bert():
    config = BertConfig.tiny(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=3, intermediate_size=32)
    return BertClassifier(Bert(config, pooler=True), CLASSES)


MODELS = {"gpt": gpt, "llama": llama, "bert": bert}


def make(name, seed=0):
    torch.manual_seed(seed)
    model = MODELS[name]()
    for p in model.parameters():  # norms and biases start trivial: an error in them would not show
        nn.init.normal_(p, std=0.3 if p.dim() == 1 else 0.1)
    return model.double()


def data(name):
    """Sequences in which some targets do not count, more of them in the first ones: ranks count differently many."""
    g = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(VOCAB, (2, STEPS * BATCH, SEQ), generator=g)
    if name == "bert":
        lengths = torch.randint(3, SEQ + 1, (len(tokens), 1), generator=g)
        return tokens, (torch.arange(SEQ) < lengths).long(), targets[:, 0] % CLASSES
    rows = torch.arange(len(tokens))[:, None] % BATCH
    return tokens, targets.masked_fill(torch.arange(SEQ) > 2 * rows + 1, -100)


def one_device(name):
    """What every plan must give."""
    model = make(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, norms, first = [], [], None
    for *inputs, targets in batches(data(name), BATCH, epochs=1):
        optimizer.zero_grad()
        loss = sum_cross_entropy(model(*inputs), targets) / (targets != -100).sum()
        loss.backward()
        first = first or {n: p.grad.clone() for n, p in model.named_parameters()}
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    assert min(norms) > CLIP, "the gradients must be clipped"
    return losses, norms, first, model.state_dict()


def run(plan, name, expected, official_clip=False):
    """How far losses, gradient norms, first gradients and parameters under a plan are from one device."""
    mesh = make_mesh(mesh_axes(plan))
    start = make(name, seed=torch.distributed.get_rank())  # a model of its own on each rank: rank 0's counts
    model, optimizer = parallelize(start, plan, mesh, torch.optim.AdamW, lr=1e-2)
    losses, norms, first = [], [], None
    slices = batches(data(name), BATCH, rank=model.data_rank, ranks=model.data_ranks, epochs=1)
    for *inputs, targets in slices:
        optimizer.zero_grad()
        losses.append(model.forward_backward(*inputs, targets).item())
        first = first or model.gradients()
        if official_clip:
            held = [p for group in optimizer.param_groups for p in group["params"]]
            norms.append(nn.utils.clip_grad_norm_(held, CLIP).item())
        else:
            norms.append(model.clip_grad_norm(CLIP).item())
        optimizer.step()
    state = model.state_dict()
    assert list(state) == list(expected[3]), "names and their order are the plain model's"
    return {
        "loss": furthest(losses, expected[0]),
        "norm": max(abs(a - b) / b for a, b in zip(norms, expected[1], strict=True)),
        "gradients": furthest_of(first, expected[2]),
        "parameters": furthest_of(state, expected[3]),
    }


def furthest(ours, theirs):
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def furthest_of(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(float((ours[n] - t.cpu()).abs().max()) for n, t in theirs.items())


SP = {"sequence_parallel": True}
CASES = {  # ranks -> (model, plan)
    1: [("gpt", {"microbatches": 3}), ("gpt", {"zero": 3}), ("gpt", {"zero": 1, "recompute": "full"})],
    2: [
        ("gpt", {"dp": 2, "microbatches": 2}),
        ("gpt", {"dp": 2, "overlap": ()}),
        ("gpt", {"dp": 2, "zero": 1, "microbatches": 3}),
        ("gpt", {"dp": 2, "zero": 1, "overlap": ()}),
        ("gpt", {"dp": 2, "zero": 2, "microbatches": 2}),
        ("gpt", {"dp": 2, "zero": 3, "microbatches": 2, "recompute": "full"}),
        ("gpt", {"tp": 2, "microbatches": 2}),
        ("gpt", {"tp": 2, "recompute": "full", **SP}),
        ("gpt", {"pp": 2, "microbatches": 3}),
        (
            "gpt",
            {"pp": 2, "schedule": "gpipe", "microbatches": 2, "stage_layers": (1, 2), "recompute": "full"},
        ),
        ("llama", {"pp": 2, "schedule": "zb-h1", "microbatches": 4}),
        ("bert", {"pp": 2}),
    ],
    4: [
        ("gpt", {"dp": 2, "tp": 2}),
        ("gpt", {"dp": 2, "tp": 2, "microbatches": 3, "recompute": "selective", **SP}),
        ("gpt", {"dp": 2, "tp": 2, "zero": 1, "microbatches": 2, **SP}),
        ("llama", {"dp": 2, "tp": 2, "zero": 1}),
        ("gpt", {"dp": 2, "tp": 2, "zero": 2, "microbatches": 2}),
        ("gpt", {"dp": 2, "tp": 2, "zero": 3, "microbatches": 2}),
        ("llama", {"dp": 2, "tp": 2, "zero": 3, "recompute": "full", **SP}),
        ("bert", {"dp": 2, "tp": 2, **SP}),
        ("bert", {"dp": 2, "tp": 2, "zero": 3}),
        ("gpt", {"dp": 4, "zero": 3, "shard": 2}),
        ("gpt", {"dp": 2, "pp": 2}),
        ("gpt", {"dp": 2, "pp": 2, "zero": 1, "microbatches": 3}),
        ("gpt", {"tp": 2, "pp": 2, "microbatches": 3}),
        ("gpt", {"tp": 2, "pp": 2, "schedule": "zb-h1", "microbatches": 3, **SP}),
        ("bert", {"tp": 2, "pp": 2, "recompute": "selective", **SP}),
    ],
    8: [
        ("gpt", {"dp": 2, "tp": 2, "pp": 2}),
        ("gpt", {"dp": 2, "tp": 2, "pp": 2, "microbatches": 3, "zero": 1, "recompute": "full", **SP}),
        ("gpt", {"dp": 2, "tp": 2, "pp": 2, "schedule": "zb-h1", "microbatches": 3, "zero": 1}),
        ("llama", {"dp": 2, "tp": 2, "pp": 2, "zero": 1, "recompute": "selective", **SP}),
        ("bert", {"dp": 2, "tp": 2, "pp": 2, "microbatches": 3, **SP}),
        ("gpt", {"dp": 2, "tp": 4, "zero": 3, "recompute": "full", **SP}),
    ],
}


def everything(cases, expected):
    results = []
    for i, (name, settings) in enumerate(cases):
        plan = Plan(**settings, precision="fp32")
        results.append(run(plan, name, expected[name], official_clip=i % 2 == 1))
    return results


@pytest.mark.parametrize("ranks", CASES)
def test_losses_norms_gradients_and_parameters_equal_one_device(ranks):
    cases = CASES[ranks]
    expected = {name: one_device(name) for name, _ in cases}
    for results in launch(everything, ranks, args=(cases, expected)):
        for (name, settings), far in zip(cases, results, strict=True):
            for what, difference in far.items():
                assert difference < 1e-10, (name, settings, what, difference)
