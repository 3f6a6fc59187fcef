"""The solutions of chapter 06, which say what is right, against one device."""

import torch

from course_lib.grading.material import check_file, material


def test_shards_of_gradients_are_those_of_one_device():
    given, module = material("06.2"), check_file("06.2")
    case = given.cases(3)[0]
    model = module.Tied(case.seed, case.size, case.frozen)
    inputs = torch.randn(3, case.ranks, 4, 7, generator=torch.Generator().manual_seed(case.seed))
    for step, of_ranks in enumerate(inputs):
        sum(model(x, step) for x in of_ranks).backward()
    seen = given.observe(given.solution, case)["entries"]
    for name, parameter in model.named_parameters():
        whole = torch.cat([entries[f"`{name}` after backward 3"] for entries in seen])
        mean = parameter.grad.flatten() / case.ranks
        torch.testing.assert_close(whole[: len(mean)], mean, rtol=1e-4, atol=1e-4)


def test_the_mended_step_is_that_of_one_device():
    given = material("06.3")
    case = next(case for case in given.cases(4) if case.max_norms == (0.7,))
    draw, elements = torch.Generator().manual_seed(case.seed), case.ranks * case.length
    weights = torch.nn.Parameter(torch.randn(1, elements, generator=draw)[0])
    gradients = 1 + torch.randn(3, 1, case.ranks, elements, generator=draw)
    optimizer = torch.optim.SGD([weights], lr=0.05, momentum=0.8)
    seen = given.observe(given.solution, case)["weights"][0]
    for step in range(3):
        weights.grad = gradients[step, 0].mean(0)
        torch.nn.utils.clip_grad_norm_(weights, 0.7)
        optimizer.step()
        torch.testing.assert_close(seen[f"step {step + 1}"], weights.data, rtol=1e-4, atol=1e-4)
