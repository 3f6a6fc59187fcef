"""Context parallelism beside every other axis: losses, gradient norms, gradients and parameters of one device."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from on_one_device import (
    differences,
    furthest,
    mesh_of,
    step_from_each_checkpoint,
    train_in_parallel,
    train_on_one_device,
)
from torch import nn

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.masks import prefix_mask
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.parallelize import parallelize
from course_lib.parallelize.shape import model_shape
from course_lib.runtime import launch
from course_lib.runtime.fork_server import preload
from simulator.inputs.plan import Plan
from simulator.ledgers.traffic import Traffic
from simulator.predict.plan_traffic import plan_traffic

preload("course_lib.parallelize")
STEPS, BATCH, SEQ, VOCAB, CLIP = 2, 5, 12, 31, 0.1
SP, ULYSSES = {"sequence_parallel": True}, {"context": "all-to-all"}


def make(name):
    torch.manual_seed(0)
    if name == "llama":
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
        model = Llama(LlamaConfig.tiny(vocab_size=VOCAB, num_key_value_heads=2, **sizes))
    else:
        sizes = {"max_length": 16, "num_layers": 3, "num_heads": 4, "hidden_size": 16}
        model = GPT(GPTConfig.tiny(vocab_size=VOCAB, **sizes))
    for p in model.parameters():
        nn.init.normal_(p, std=0.3 if p.dim() == 1 else 0.1)
    return model.double()


def data(name):
    """Later tokens count more often than early ones, so ranks count differently many targets."""
    g = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(VOCAB, (2, STEPS * BATCH, SEQ), generator=g)
    rows = torch.arange(len(tokens))[:, None] % BATCH
    masks = [prefix_mask(rows[:, 0] + 1, SEQ)] if name == "prefix" else []
    return tokens, *masks, targets.masked_fill(torch.arange(SEQ) < rows, -100)


def one_device(name):
    return train_on_one_device(make(name), data(name), BATCH, CLIP)


def run(name, settings, expected):
    plan = Plan(**settings, precision="fp32")
    model, optimizer = parallelize(make(name), plan, mesh_of(plan), torch.optim.AdamW, lr=1e-2)
    return differences(train_in_parallel(model, optimizer, data(name), BATCH, CLIP), expected)


CASES = {  # ranks -> (model, plan)
    2: [
        ("gpt", {"cp": 2}),
        ("prefix", {"cp": 2, "microbatches": 2}),
        ("llama", {"cp": 2, **ULYSSES}),
        ("prefix", {"cp": 2, "zero": 1, "microbatches": 2, **ULYSSES}),
        ("llama", {"cp": 2, "zero": 2}),
        ("gpt", {"cp": 2, "zero": 3, "recompute": "full"}),
        ("llama", {"cp": 2, "recompute": "selective", "overlap": (), "zigzag": False}),
        ("llama", {"cp": 2, "context": "all-gather"}),
    ],
    4: [
        ("llama", {"dp": 2, "cp": 2, "zero": 1, "microbatches": 2}),
        ("prefix", {"dp": 2, "cp": 2, "zero": 3, "recompute": "full"}),
        ("llama", {"dp": 2, "cp": 2, "zero": 3, "shard": 2}),
        ("llama", {"cp": 2, "tp": 2, "recompute": "selective", **SP}),
        ("gpt", {"cp": 2, "tp": 2, "zero": 1, **SP, **ULYSSES}),
        ("prefix", {"cp": 4, "ulysses": 2, "context": "all-gather", "zero": 3, "recompute": "full"}),
        ("prefix", {"cp": 2, "pp": 2, "schedule": "zb-h1", "microbatches": 3, "zero": 1}),
        ("llama", {"cp": 2, "pp": 2, "microbatches": 2, "recompute": "full", **ULYSSES}),
    ],
    8: [
        ("llama", {"cp": 4, "tp": 2, "ulysses": 2, "zero": 1}),  # a text is too short for SP
        ("gpt", {"cp": 2, "tp": 2, "pp": 2, "microbatches": 2, "zero": 1, **SP}),
    ],
}


SENT = {  # ranks -> plans
    2: [
        {"context": "ring"},
        {"context": "ring", "recompute": "selective", "zigzag": False},
        {"context": "all-to-all", "recompute": "full"},
        {"context": "all-gather"},
    ],
    4: [{"ulysses": 2, "recompute": "full"}, {"ulysses": 2, "context": "all-gather"}],
}


def sent(settings):
    """What a step of 4 rows sends, but for all-reduces."""
    plan = Plan(cp=dist.get_world_size(), microbatches=2, micro_batch=2, precision="fp32", **settings)
    model, _ = parallelize(make("llama").float(), plan, mesh_of(plan))
    with record_traffic() as log:
        model.forward_backward(*(t[:4] for t in data("llama")))
    return without_sums(log.traffic), without_sums(plan_traffic(model_shape(make("llama"), SEQ), plan))


def without_sums(traffic):
    return Traffic(row for row in traffic.rows if row.collective != "all-reduce")


def all_sent():
    return [sent(settings) for settings in SENT[dist.get_world_size()]]


@pytest.mark.parametrize("ranks", SENT)
def test_a_plan_sends_what_the_simulator_says(ranks):
    for found in launch(all_sent, ranks, timeout=None):
        for settings, (measured, predicted) in zip(SENT[ranks], found, strict=True):
            assert measured == predicted, settings
            assert measured.rows


def everything(cases, expected):
    return [run(name, settings, expected[name]) for name, settings in cases]


@pytest.mark.parametrize("ranks", CASES)
def test_losses_norms_gradients_and_parameters_equal_one_device(ranks):
    expected = {name: one_device(name) for name, _ in CASES[ranks]}
    for results in launch(everything, ranks, args=(CASES[ranks], expected), timeout=None):
        for (name, settings), far in zip(CASES[ranks], results, strict=True):
            assert max(far) < 1e-10, (name, settings, far)


def resumed(folder, data):
    """A step under each plan, each from the checkpoint of the one before."""
    rows = [t[:4] for t in data]
    axes = {"dp": 2, "cp": 2}, {"cp": 4, "zigzag": False}, {"dp": 4}, {"dp": 2, "cp": 2, "zero": 3}
    plans = [Plan(**each, precision="fp32") for each in axes]
    return step_from_each_checkpoint(folder, partial(make, "llama"), rows, plans, lr=1e-2)


def test_a_checkpoint_is_resumed_with_more_or_fewer_context_parallel_ranks(tmp_path):
    model, (tokens, targets) = make("llama"), (t[:4] for t in data("llama"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    for state in launch(resumed, 4, args=(str(tmp_path), data("llama"))):
        assert furthest(state, model.state_dict()) < 1e-9
