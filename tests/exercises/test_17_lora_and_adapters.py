"""The solutions of chapter 17, which say what is right, against independent answers."""

import torch
from facts_alike import facts_that_differ
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import gelu, linear

from course_lib.grading.material import material


class OneMatrix(nn.Module):
    """The formula of LoRA with A B in float64, multiplied out."""

    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.scaling = base.requires_grad_(False), alpha / rank
        self.A = nn.Parameter(torch.ones_like(base.weight[:1]).repeat(rank, 1))
        self.B = nn.Parameter(torch.zeros_like(base.weight[:, :1]).repeat(1, rank))

    def forward(self, x):
        W = self.base.weight.double() + self.scaling * (self.B.double() @ self.A.double())
        bias = 0 if self.base.bias is None else self.base.bias.double()
        return (x.double() @ W.T + bias).to(x.dtype)


def test_the_layer_gives_what_the_formula_gives():
    given = material("17.1")
    for case in given.cases(0):
        assert not facts_that_differ(given, given.solution, OneMatrix, case)
        assert given.observe(given.solution, case).get("flops", 0) == 0


def test_merging_gives_the_sum_and_unmerging_the_weight_that_was_there():
    given, seen = material("17.2"), {}

    def merge(layer):
        if layer not in seen:
            seen[layer] = layer.weight.detach().clone()
            change = layer.scaling * (layer.B.double() @ layer.A.double())
            layer.weight.data.copy_((seen[layer].double() + change).float())

    def unmerge(layer):
        layer.weight.data.copy_(seen.pop(layer, layer.weight.data))

    for case in given.cases(0):
        got, want = (given.observe(answers, case) for answers in (given.solution, (merge, unmerge)))
        assert not any(fact.wrong(got[key], want[key]) for key, fact in given.facts.items())


def test_the_bytes_are_those_that_autograd_keeps():
    given = material("17.3")
    for case in given.cases(0):
        assert given.observe(given.solution, case)["bytes"] == given.observe(kept, case)["bytes"]


def test_as_many_layers_are_adapted_as_a_run_shows_to_fit():
    given = material("17.4")
    for case in given.cases(0):
        got = given.observe(given.solution, case)
        assert not any(got.values()), (case.name, got)


def kept(layers, rank, tokens):
    """Run it, and count the storages that are saved, those of parameters left out."""
    own, saved, x = [], {}, torch.zeros(tokens, layers[0][0])

    def pack(tensor):
        if not any(tensor.untyped_storage().data_ptr() == p.untyped_storage().data_ptr() for p in own):
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        for place, (inputs, outputs, what) in enumerate(layers):
            base = nn.Linear(inputs, outputs)
            base.weight.requires_grad_(what == "all")
            base.bias.requires_grad_(what in ("all", "bias"))
            A, B = nn.Parameter(torch.ones(rank, inputs)), nn.Parameter(torch.ones(outputs, rank))
            own += [*base.parameters(), A, B]
            x = gelu(x) if place else x
            x = base(x) + 2.0 * linear(linear(x, A), B) if what == "lora" else base(x)
    return sum(storage.nbytes() for storage in saved.values())
