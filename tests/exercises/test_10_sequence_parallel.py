"""The solutions of chapter 10, which say what is right, against one device and the simulator's closed forms."""

import pytest
import torch
from torch.nn.functional import cross_entropy, gelu, linear

from course_lib.grading.material import check_file, material
from simulator.predict.collective_traffic import sent_bytes


def seen(exercise):
    """(case, what the solution gave) for every case."""
    given = material(exercise)
    return [(case, given.observe(given.solution, case)) for case in given.cases(7)]


def test_the_operators_join_and_sum():
    for case, found in seen("10.1"):
        (batch, own, hidden), p = case.shape, case.ranks
        draw, whole = torch.Generator().manual_seed(case.seed), (batch, own * p, hidden)
        parts, of_whole, wholes, of_parts = (
            torch.randint(-9, 10, (p, *shape), generator=draw).to(case.dtype)
            for shape in (case.shape, whole, whole, case.shape)
        )
        for rank in range(case.world):
            me = rank % p
            for key, want in {
                "gathered": torch.cat(list(parts), 1),
                "gathered back": of_whole.sum(0).chunk(p, 1)[me],
                "scattered": wholes.sum(0).chunk(p, 1)[me],
                "scattered back": torch.cat(list(of_parts), 1),
            }.items():
                assert found[key][rank].equal(want), (case.name, key)
        size = torch.Size(whole).numel() * case.dtype.itemsize
        each = sent_bytes("all-gather", size, p) + sent_bytes("reduce-scatter", size, p)
        assert abs(found["bytes"] - 2 * each) <= 1


def test_the_region_is_that_of_one_device():
    for case, found in seen("10.2"):
        x, upstream, *weights = check_file("10.2").drawn(case)
        x, up, bias, down = (t.requires_grad_() for t in (x, *weights))
        out = linear(gelu(linear(x, up, bias)), down)
        out.backward(upstream)
        for rank in range(case.world):
            me = rank % case.ranks
            torch.testing.assert_close(found["result"][rank], out.detach().chunk(case.ranks, 1)[me])
            for (name, t), dim in zip(
                {"x": x, "up.weight": up, "up.bias": bias, "down.weight": down}.items(),
                (1, 0, 0, 1),
                strict=True,
            ):
                if not (case.frozen and name == "up.weight"):
                    torch.testing.assert_close(found[name][rank], t.grad.chunk(case.ranks, dim)[me])
        gather, scatter = (
            sent_bytes(name, x.nbytes, case.ranks) for name in ("all-gather", "reduce-scatter")
        )
        assert abs(found["bytes"] - (2 if case.frozen else 3) * gather - 2 * scatter) <= 1


def test_the_mended_layer_is_that_of_one_device():
    module = check_file("10.3")
    for case, found in seen("10.3"):
        if case.drop:  # the check compares with one device itself
            assert not any(text for part in ("result", *module.PARTS) for text in found[part])
            continue
        layer, xs, upstream = module.drawn(case)
        right = module.sequence_layer.of_one_device(layer, xs, upstream, [1.0] * case.calls, case.ranks)
        for rank, want in enumerate(right):
            torch.testing.assert_close(found["result"][rank], want["result"]["result"])
            for part in ("x", "matrices") if case.frozen else module.PARTS:
                torch.testing.assert_close(found[part][rank], want[part])
        assert found["collectives"] == (4 if case.frozen else 5) * case.calls


@pytest.mark.parametrize("place", range(2))
def test_the_parallel_model_gives_the_gradients_of_one_device_and_sends_no_more_than_it_must(place):
    given, module = material("10.4"), check_file("10.4")
    case = given.cases(7)[place]
    found = given.observe(given.solution, case)
    model, tokens, targets = module.drawn(case)
    loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    loss.backward()
    assert found["loss"] == pytest.approx([loss.item()] * case.ranks)
    for name, p in model.named_parameters():
        for rank in range(case.ranks):
            torch.testing.assert_close(found["gradients"][rank][name], p.grad)
    p, activation, regions = case.ranks, tokens.numel() * module.HIDDEN * 8, 2 * case.layers + 1
    both = sent_bytes("all-gather", activation, p) + sent_bytes("reduce-scatter", activation, p)
    norms = regions * sent_bytes("all-reduce", module.HIDDEN * 8, p)
    assert found["bytes"] <= 2 * regions * both + norms + 4 * sent_bytes("all-reduce", tokens.numel() * 8, p)
    assert found["tokens"] == tokens.shape[1] // p
