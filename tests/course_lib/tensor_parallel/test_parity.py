"""Tensor and sequence parallelism against two oracles: one device, and torch's parallelize_module."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor import Shard as TorchShard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import current_device, launch
from course_lib.tensor_parallel.apply import apply_tensor_parallel
from course_lib.tensor_parallel.full_tensors import full_gradients, full_state_dict, own_parts
from course_lib.tensor_parallel.gradient_norm import grad_norm
from course_lib.tensor_parallel.vocab import VocabParallelCrossEntropy

STEPS, BATCH, SEQ = 2, 3, 12
VOCAB = 97  # a prime: no number of ranks divides it
CLASSES = 5


def gpt(vocab=VOCAB, **changes):
    sizes = {"vocab_size": vocab, "max_length": 16, "num_layers": 2, "num_heads": 12, "hidden_size": 48}
    return GPT(GPTConfig.tiny(**sizes | changes))


def untied_gpt():
    return gpt(96, tie_embeddings=False)


def frozen_gpt():
    model = gpt()
    for name, p in model.named_parameters():
        p.requires_grad_(not ("norm_1" in name or "query" in name or name.endswith("down.bias")))
    return model


def bert():
    config = BertConfig.tiny(vocab_size=VOCAB, hidden_size=48, num_attention_heads=12, intermediate_size=96)
    return BertClassifier(Bert(config, pooler=True), CLASSES)


def llama(kv_heads=1, **changes):
    sizes = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2}
    return Llama(LlamaConfig.tiny(**sizes, num_attention_heads=12, num_key_value_heads=kv_heads, **changes))


def grouped_llama():
    return llama(2, tie_word_embeddings=True)


MODELS = {
    "gpt": gpt,
    "gpt untied": untied_gpt,
    "gpt frozen": frozen_gpt,
    "bert": bert,
    "llama": llama,
    "llama 2 kv heads": grouped_llama,
}


def make(name, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    model = MODELS[name]()
    for p in model.parameters():  # norms and biases start trivial: an error in them would not show
        nn.init.normal_(p, std=0.3 if p.dim() == 1 else 0.1)
    return model.to(current_device(), dtype)


def batch(step, name):
    g = torch.Generator().manual_seed(step)
    tokens, targets = torch.randint(96, (2, BATCH, SEQ), generator=g)
    if name == "bert":
        mask = (torch.arange(SEQ) < torch.tensor([[SEQ], [7], [9]])).long()
        token_types = (torch.arange(SEQ) > 5).long().expand(BATCH, -1)
        inputs, targets = (tokens, mask, token_types), targets[:, 0] % CLASSES
    else:
        inputs, targets = (tokens,), targets.masked_fill(targets % 7 == 0, -100)
    return [t.to(current_device()) for t in inputs], targets.to(current_device())


def train(model, name, loss_fn, gradients, norm):
    """Losses and gradient norms of all steps, and the first step's gradients."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses, norms, first = [], [], None
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = batch(step, name)
        loss = loss_fn(model(*inputs), targets)
        loss.backward()
        first = gradients(model) if first is None else first
        norms.append(float(norm(model)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, first


def plain_gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def plain_norm(model):
    return torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])


def furthest(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(float((ours[n] - theirs[n]).abs().max()) for n in theirs)


def parity(mesh, name, sequence_parallel):
    one = make(name)
    expected = train(one, name, cross_entropy, plain_gradients, plain_norm)

    model = apply_tensor_parallel(
        make(name, seed=mesh.get_local_rank()), mesh, sequence_parallel=sequence_parallel
    )
    vocabulary = 96 if name == "gpt untied" else VOCAB
    loss_fn = cross_entropy if name == "bert" else VocabParallelCrossEntropy(vocabulary, mesh)
    got = train(model, name, loss_fn, plain_gradients, lambda m: grad_norm(m, mesh))
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in one.named_parameters()]
    return {
        "loss": max(abs(a - b) for a, b in zip(got[0], expected[0], strict=True)),
        "norm": max(abs(a - b) / b for a, b in zip(got[1], expected[1], strict=True)),
        "gradients": furthest(got[2], own_parts(expected[2], model)),
        "parameters": furthest(model.state_dict(), own_parts(one.state_dict(), model)),
    }


OFFICIAL_PLAN = {
    "embedding.tokens": RowwiseParallel(input_layouts=Replicate()),
    "blocks.*.attention.query": ColwiseParallel(),
    "blocks.*.attention.key": ColwiseParallel(),
    "blocks.*.attention.value": ColwiseParallel(),
    "blocks.*.attention.output": RowwiseParallel(),
    "blocks.*.mlp.up": ColwiseParallel(),
    "blocks.*.mlp.down": RowwiseParallel(),
    "head": ColwiseParallel(output_layouts=TorchShard(-1), use_local_output=False),
}


def official_plan(sequence_parallel):
    if not sequence_parallel:
        return OFFICIAL_PLAN
    own_tokens, all_tokens = (TorchShard(1),), (Replicate(),)
    entered = PrepareModuleInput(input_layouts=own_tokens, desired_input_layouts=all_tokens)
    return OFFICIAL_PLAN | {
        "embedding": PrepareModuleOutput(output_layouts=all_tokens, desired_output_layouts=own_tokens),
        "blocks.*.norm_1": SequenceParallel(),
        "blocks.*.attention": entered,
        "blocks.*.attention.output": RowwiseParallel(output_layouts=own_tokens[0]),
        "blocks.*.norm_2": SequenceParallel(),
        "blocks.*.mlp": entered,
        "blocks.*.mlp.down": RowwiseParallel(output_layouts=own_tokens[0]),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(
            input_layouts=own_tokens[0], output_layouts=TorchShard(-1), use_local_output=False
        ),
    }


def official(mesh, sequence_parallel):
    """How far losses, gradients and parameters are from parallelize_module's."""

    def whole(t):
        return (t.full_tensor() if isinstance(t, DTensor) else t).detach().cpu().clone()

    def gradients(model):
        return {name: whole(p.grad) for name, p in model.named_parameters()}

    name = "gpt untied"
    theirs = parallelize_module(make(name), mesh, official_plan(sequence_parallel))
    ours = apply_tensor_parallel(make(name), mesh, sequence_parallel=sequence_parallel)
    with loss_parallel():
        expected = train(theirs, name, cross_entropy_of_dtensor, gradients, lambda m: 0)
    got = train(
        ours, name, VocabParallelCrossEntropy(96, mesh), lambda m: full_gradients(m, mesh), lambda m: 0
    )
    return {
        "loss": max(abs(a - b) for a, b in zip(got[0], expected[0], strict=True)),
        "gradients": furthest(got[2], expected[2]),
        "parameters": furthest(
            full_state_dict(ours, mesh), {n: whole(t) for n, t in theirs.state_dict().items()}
        ),
    }


def cross_entropy_of_dtensor(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


CASES = {  # the models that each number of ranks is tried with
    1: ["gpt"],
    2: ["gpt frozen", "llama 2 kv heads"],
    3: ["gpt", "bert", "llama"],
    4: ["llama 2 kv heads"],
}
OFFICIAL = 2  # ranks on which it is trained beside parallelize_module, too


def everything(mesh):
    results = {(name, sp): parity(mesh, name, sp) for name in CASES[mesh.size()] for sp in (False, True)}
    if mesh.size() == OFFICIAL:
        results |= {("official", sp): official(mesh, sp) for sp in (False, True)}
    return results


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_loss_gradients_their_norm_and_parameters_equal_one_device_and_torch(ranks):
    for results in launch(everything, mesh={"tp": ranks}, timeout=None):
        assert len(results) == 2 * (len(CASES[ranks]) + (ranks == OFFICIAL))
        for case, differences in results.items():
            for what, difference in differences.items():
                assert difference < 1e-9, (ranks, case, what)
