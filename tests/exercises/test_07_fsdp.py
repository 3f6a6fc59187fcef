"""The solutions of chapter 07, which say what is right, against independent answers."""

import pytest
import torch

from course_lib.grading.material import check_file, material
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.one_device.loop import cross_entropy


def test_the_mean_in_hybrid_sharding_is_that_of_all_gradients():
    given = material("07.3")
    copies, factor, elements, seed = case = given.cases(3)[0]
    own = [
        torch.randn(elements, generator=torch.Generator().manual_seed(seed + r))
        for r in range(copies * factor)
    ]
    parts = (sum(own) / len(own)).chunk(factor)
    for rank, part in enumerate(given.observe(given.solution, case)["mean"]):
        torch.testing.assert_close(part, parts[rank % factor])


@pytest.mark.parametrize("place", range(4))
def test_the_update_in_mixed_precision_is_the_mean_in_64_bits(place):
    given, module = material("07.4"), check_file("07.4")
    weights, elements, seed = case = given.cases(5)[place]
    ranks = len(weights)
    before = torch.cat([module.first_shard(rank, elements, seed) for rank in range(ranks)])
    own = [before.bfloat16() + module.slope_of(w, ranks * elements, seed) for w in weights]
    mean = sum(gradient.double() for gradient in own) / ranks
    got = torch.cat(given.observe(given.solution, case)["update"])
    torch.testing.assert_close(got, mean / mean.abs().max(), rtol=0, atol=1e-3)


def test_the_norm_within_a_budget_is_that_of_one_device():
    given = material("07.5")
    case = given.cases(7)[0]
    torch.manual_seed(case.seed)
    model = GPT(GPTConfig.tiny(vocab_size=64, max_length=16, num_layers=case.blocks, hidden_size=32))
    tokens, targets = torch.randint(64, (2, 2 * case.ranks, 16))
    cross_entropy(model(tokens), targets).backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    torch.testing.assert_close(given.observe(given.solution, case)["norm"], norm, rtol=0.02, atol=0)
