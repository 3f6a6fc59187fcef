"""LoRA on several ranks against one device: losses, gradient norms, gradients and parameters after two steps."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from course_lib.data.sharding import batches
from course_lib.data_parallel.ddp import DDP
from course_lib.data_parallel.fsdp import FSDP
from course_lib.finetuning.lora import LoRAConfig, LoRAMergedLinear
from course_lib.finetuning.lora_apply import (
    apply_lora,
    lora_layers,
    mark_only_lora_as_trainable,
    merge,
)
from course_lib.finetuning.lora_styles import lora_styles
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.parallelize import mesh_axes, parallelize
from course_lib.pipeline.microbatches import sum_cross_entropy
from course_lib.runtime import launch
from course_lib.runtime.fork_server import preload
from course_lib.runtime.mesh import make_mesh
from course_lib.tensor_parallel.apply import apply_tensor_parallel
from course_lib.tensor_parallel.full_tensors import full_gradients
from simulator.inputs.plan import Plan

preload("course_lib.parallelize")
STEPS, BATCH, SEQ, VOCAB, CLASSES = 2, 8, 10, 97, 5


def bert(targets=("query", "value", "dense"), also=("classifier",), **settings):
    config = BertConfig.tiny(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, intermediate_size=32)
    model = BertClassifier(Bert(config, pooler=True), CLASSES)
    apply_lora(model, targets, rank=3, **settings)
    mark_only_lora_as_trainable(model, bias="lora_only", also=also)
    return model


def gpt():
    """The embedding, which is tied to the head, and the head itself, both cut by words."""
    sizes = {"vocab_size": VOCAB, "max_length": 16, "num_layers": 2, "num_heads": 4, "hidden_size": 16}
    model = GPT(GPTConfig.tiny(**sizes))
    apply_lora(model, ["tokens", "positions", "key", "up", "down", "head"], rank=2)
    mark_only_lora_as_trainable(model)
    return model


def llama():
    """Heads of keys and values that several ranks hold."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    model = Llama(LlamaConfig.tiny(**sizes, num_attention_heads=4, num_key_value_heads=1))
    apply_lora(model, {"self_attn.*_proj": LoRAConfig(2), "gate_proj": LoRAConfig(4, rslora=True)})
    mark_only_lora_as_trainable(model)
    return model


MODELS = {
    "bert": bert,
    "gpt": gpt,
    "llama": llama,
    "last layer": partial(bert, ["layer.1.attention.self.value"]),
}


def make(name, seed=0):
    torch.manual_seed(seed)
    model = MODELS[name]()
    for p in model.parameters():  # B starts as zeros: an error in A would not show
        nn.init.normal_(p, std=0.3 if p.dim() == 1 else 0.1)
    return model.double()


def data(name):
    g = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(VOCAB, (2, STEPS * BATCH, SEQ), generator=g)
    if name in ("bert", "last layer"):
        lengths = torch.randint(3, SEQ + 1, (len(tokens), 1), generator=g)
        return tokens, (torch.arange(SEQ) < lengths).long(), targets[:, 0] % CLASSES
    return tokens, targets


def mean_loss(outputs, targets):
    return sum_cross_entropy(outputs, targets) / targets.numel()


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu().clone()


def train(model, name, gradients, norm, rank=0, ranks=1):
    """What is compared, of a model that is called as on one device."""
    optimizer = torch.optim.AdamW(trained(model), lr=1e-2)
    losses, norms, first = [], [], None
    for *inputs, targets in batches(data(name), BATCH, rank=rank, ranks=ranks, epochs=1):
        optimizer.zero_grad()
        loss = mean_loss(model(*inputs), targets)
        loss.backward()
        first = first or gradients(model)
        norms.append(float(norm(model)))
        optimizer.step()
        losses.append(average(loss.item()) if ranks > 1 else loss.item())
    return losses, norms, first


def average(number):
    total = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def plain_gradients(model):
    return {
        n.removeprefix("module."): whole(p.grad) for n, p in model.named_parameters() if p.grad is not None
    }


def plain_norm(model):
    return whole(nn.utils.get_total_norm([p.grad for p in trained(model)]))


def one_device(name):
    model = make(name)
    results = train(model, name, plain_gradients, plain_norm)
    return *results, model.state_dict()


# ---- each wrapper by itself, on all ranks ---------------------------------------------------------------------


def with_ddp(wrap, name):
    model = make(name)
    wrapped = wrap(model)
    return train(
        wrapped, name, plain_gradients, plain_norm, dist.get_rank(), dist.get_world_size()
    ), model.state_dict()


def with_fsdp(name, units):
    model = FSDP(make(name), units, make_mesh({"dp": dist.get_world_size()}))
    kinds = {flat.trainable for flat in model.units[0].flats}
    assert kinds == {True, False}, "frozen and trained parameters are in one unit"
    results = train(
        model, name, lambda m: present(m.gradients()), fsdp_norm, dist.get_rank(), dist.get_world_size()
    )
    assert all(layer.merged_weight is None for layer in lora_layers(model.eval()).values())
    with pytest.raises(ValueError, match="FSDP has sharded this layer"):
        merge(model)
    return results, model.state_dict()


def present(gradients):
    return {name: g for name, g in gradients.items() if g is not None}


def fsdp_norm(model):
    return torch.stack([g.norm() for g in present(model.gradients()).values()]).norm()


def with_fully_shard(name):
    model = make(name)
    mesh = make_mesh({"dp": dist.get_world_size()})
    for layer in model.bert.encoder.layer:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    results = train(model, name, plain_gradients, plain_norm, dist.get_rank(), dist.get_world_size())
    return results, {n: whole(t) for n, t in model.state_dict().items()}


# ---- plans, through parallelize -------------------------------------------------------------------------------


def with_plan(name, settings):
    plan = Plan(**settings, precision="fp32")
    start = make(name, seed=dist.get_rank())  # rank 0's counts
    model, optimizer = parallelize(start, plan, make_mesh(mesh_axes(plan)), torch.optim.AdamW, lr=1e-2)
    losses, norms, first = [], [], None
    for *inputs, targets in batches(
        data(name), BATCH, rank=model.data_rank, ranks=model.data_ranks, epochs=1
    ):
        optimizer.zero_grad()
        losses.append(model.forward_backward(*inputs, targets).item())
        first = first or model.gradients()
        norms.append(model.clip_grad_norm().item())
        optimizer.step()
    return (losses, norms, first), model.state_dict()


SP = {"sequence_parallel": True}
ALONE = {
    "ddp": ("bert", partial(with_ddp, DDP)),
    "torch's ddp": ("bert", partial(with_ddp, DistributedDataParallel)),
    "fsdp": ("bert", partial(with_fsdp, units=["bert.encoder.layer.*"])),
    "fully_shard": ("bert", with_fully_shard),
}
PLANS = {
    2: [
        ("gpt", {"tp": 2}),
        ("gpt", {"tp": 2, **SP}),
        ("bert", {"tp": 2, "recompute": "full", **SP}),
        ("bert", {"pp": 2, "microbatches": 2}),
        ("last layer", {"pp": 2, "microbatches": 2}),
        ("gpt", {"dp": 2, "zero": 1}),
    ],
    4: [
        ("llama", {"tp": 4}),
        ("bert", {"dp": 2, "tp": 2, "zero": 3}),
        ("gpt", {"tp": 2, "pp": 2, "microbatches": 2, **SP}),
        ("bert", {"dp": 2, "pp": 2, "microbatches": 2, "zero": 1}),
    ],
}


def everything(expected):
    ranks = dist.get_world_size()
    results = {}
    if ranks == 2:
        for case, (name, run) in ALONE.items():
            results[case] = distance(*run(name=name), expected[name])
    for name, settings in PLANS[ranks]:
        results[name, str(settings)] = distance(*with_plan(name, settings), expected[name])
    return results


def distance(results, state, expected):
    losses, norms, first = results
    return {
        "loss": max(abs(a - b) for a, b in zip(losses, expected[0], strict=True)),
        "norm": max(abs(a - b) / b for a, b in zip(norms, expected[1], strict=True)),
        "gradients": furthest(first, expected[2]),
        "parameters": furthest(state, expected[3]),
    }


def furthest(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(float((ours[n] - t.cpu()).abs().max()) for n, t in theirs.items())


def cut(tp, **settings):
    torch.manual_seed(tp.get_local_rank())
    model = apply_tensor_parallel(bert(also=(), **settings).double(), tp)
    for layer in lora_layers(model).values():
        for p in layer.lora_B.parameters():
            nn.init.normal_(p, std=0.1)  # the same on both ranks where both have it: so is their random state
    return model


def merged_and_dropped():
    """What each rank merges alone is its part of the whole merged model; dropout differs only where inputs do."""
    tp = make_mesh({"tp": 2})
    model = cut(tp)
    tokens = data("bert")[0][:BATCH]
    with torch.no_grad():
        apart = model(tokens)
        merge(model.eval())
        far = float((model(tokens) - apart).abs().max())
    assert all(layer.merged_weight is not None for layer in lora_layers(model).values())
    model = cut(tp, dropout=0.5)
    outputs = model(tokens)
    outputs.square().sum().backward()
    row = model.bert.encoder.layer[0].output.dense
    return far, outputs.tolist(), row.lora_B.weight.grad.tolist(), full_gradients(model, tp)


def test_each_rank_merges_its_part_and_dropout_keeps_the_ranks_equal():
    (far, *first), (_, *second) = launch(merged_and_dropped, 2)
    assert far < 1e-12
    assert first[:2] == second[:2]
    assert furthest(first[2], second[2]) == 0


def test_what_cannot_be_cut_is_refused_in_a_sentence():
    layer = LoRAMergedLinear(nn.Linear(4, 6), LoRAConfig(2, parts=(True, False, True)))
    with pytest.raises(ValueError, match="several matrices in one cannot be cut with the style 'column'"):
        layer.tensor_parallel_styles("column")
    with pytest.raises(
        ValueError, match="a layer with LoRA cannot have the style 'enter': choose one of column, "
    ):
        lora_styles("enter")


@pytest.mark.parametrize("ranks", PLANS)
def test_losses_norms_gradients_and_parameters_equal_one_device(ranks):
    expected = {name: one_device(name) for name in MODELS}
    for results in launch(everything, ranks, args=(expected,)):
        for case, far in results.items():
            for what, difference in far.items():
                assert difference < 1e-9, (case, what, difference)
