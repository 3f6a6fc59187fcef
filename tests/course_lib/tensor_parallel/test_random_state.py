"""Dropout: masks agree where every rank has the whole tensor, and differ where each has its own part."""

import torch
import torch.distributed as dist
from torch import nn

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.recompute import apply_recompute
from course_lib.runtime import current_device, launch
from course_lib.tensor_parallel.apply import apply_tensor_parallel
from course_lib.tensor_parallel.full_tensors import full_gradients
from course_lib.tensor_parallel.vocab import VocabParallelCrossEntropy

HEADS, SEQ = 6, 12


class Core(nn.Module):
    """Causal attention whose dropout is a module, so that a test can see its mask."""

    def __init__(self, p):
        super().__init__()
        self.dropout, self.drop = p, nn.Dropout(p)

    def forward(self, q, k, v):
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return self.drop(scores.masked_fill(future, -1e9).softmax(-1)) @ v


class Replay(nn.Module):
    """Dropout with given masks."""

    def __init__(self, masks, p):
        super().__init__()
        self.masks, self.p = masks, p

    def forward(self, x):
        return x * self.masks.pop(0).to(x.device) / (1 - self.p)


def make(seed=0):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 31, "max_length": SEQ, "num_layers": 2, "num_heads": HEADS, "hidden_size": 24}
    model = GPT(GPTConfig.tiny(**sizes, dropout=0.3))
    for block in model.blocks:
        block.attention.core = Core(0.3)
    for p in model.parameters():
        nn.init.normal_(p, std=0.2)
    return model.to(current_device(), torch.float64)


def batch():
    g = torch.Generator().manual_seed(3)
    return torch.randint(31, (2, 2, SEQ), generator=g).to(current_device())


def record_masks(model):
    masks = {}

    def keep(name, _module, inputs, output):
        masks.setdefault(name, []).append((output != 0).cpu())

    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda *args, name=name: keep(name, *args))
    return masks


def run(mesh, sequence_parallel):
    """Two forward passes, and the same on one device with the masks of all ranks put together."""
    model = apply_tensor_parallel(make(seed=mesh.get_local_rank()), mesh, sequence_parallel=sequence_parallel)
    masks, (tokens, targets) = record_masks(model), batch()
    loss_fn = VocabParallelCrossEntropy(31, mesh)
    loss = loss_fn(model(tokens), targets) + loss_fn(model(tokens), targets)
    loss.backward()
    common = torch.get_rng_state()

    everyone = [None] * mesh.size()
    dist.all_gather_object(everyone, (masks, common), group=mesh.get_group())
    agree, differ = [], []
    one = make()
    for name in masks:
        of_ranks = [m[name] for m, _ in everyone]
        core = ".core." in name
        together = []
        for calls in zip(*of_ranks, strict=True):
            same = all(torch.equal(calls[0], other) for other in calls[1:])
            (agree if same else differ).append(name)
            cut = core or sequence_parallel  # by heads or by tokens, both dimension 1
            together.append(torch.cat(calls, 1) if cut else calls[0])
        assert not torch.equal(*together), "a second forward draws other masks"
        parent, _, attribute = name.rpartition(".")
        setattr(one.get_submodule(parent), attribute, Replay(together, 0.3))
    expected = cross_entropy(one(tokens), targets) + cross_entropy(one(tokens), targets)
    expected.backward()
    gradients = full_gradients(model, mesh)
    return {
        "agree": sorted(set(agree)),
        "differ": sorted(set(differ)),
        "loss": float((loss - expected).detach()),
        "gradients": max(float((gradients[n] - p.grad.cpu()).abs().max()) for n, p in one.named_parameters()),
        "common state": all(torch.equal(common, other) for _, other in everyone),
    }


def recomputed(mesh, sequence_parallel):
    """How far the gradients with recomputation are from those without, for every unit of it."""
    found = []
    for what in (None, "full", "selective"):
        model = apply_tensor_parallel(make(), mesh, sequence_parallel=sequence_parallel)
        if what:
            apply_recompute(model, what)
        torch.manual_seed(5)
        tokens, targets = batch()
        loss = VocabParallelCrossEntropy(31, mesh)(model(tokens), targets)
        loss.backward()
        found.append(full_gradients(model, mesh))
    return max(float((g[n] - t).abs().max()) for g in found[1:] for n, t in found[0].items())


def everything(mesh):
    return {sp: run(mesh, sp) | {"recomputed": recomputed(mesh, sp)} for sp in (False, True)}


def test_masks_agree_or_differ_as_they_must_and_the_gradients_are_those_of_one_device():
    cores = [f"blocks.{i}.attention.core.drop" for i in range(2)]
    others = ["embedding.dropout"]
    others += [f"blocks.{i}.{half}.dropout" for i in range(2) for half in ("attention", "mlp")]
    for results in launch(everything, mesh={"tp": 2}):
        assert results[False]["agree"] == sorted(others)
        assert results[False]["differ"] == cores
        assert results[True]["agree"] == []
        assert results[True]["differ"] == sorted(cores + others)
        for got in results.values():
            assert abs(got["loss"]) < 1e-12
            assert got["gradients"] < 1e-12
            assert got["common state"]
            assert got["recomputed"] < 1e-12
