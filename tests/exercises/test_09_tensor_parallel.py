"""The solutions of chapter 09, which say what is right, against one device and the simulator's closed forms."""

import pytest
import torch
from torch.nn.functional import cross_entropy, gelu

from course_lib.grading.material import check_file, material
from simulator.inputs.chunks import chunk_sizes
from simulator.predict.collective_traffic import sent_bytes
from simulator.predict.traffic import calls, tensor_parallel_traffic
from simulator.predict.vocabulary_traffic import embedding_traffic, head_traffic


def seen(exercise):
    """(case, what the solution gave) for every case."""
    given = material(exercise)
    return [(case, given.observe(given.solution, case)) for case in given.cases(7)]


def test_the_region_is_that_of_one_device():
    for case, found in seen("09.1"):
        draw, mine = torch.Generator().manual_seed(case.seed), []
        shapes = {"input": (case.tokens, case.hidden), "scale": (case.hidden,), "shift": (case.hidden,)}
        given = {name: torch.randn(s, generator=draw).requires_grad_() for name, s in shapes.items()}
        upstream, total = torch.randn(shapes["input"], generator=draw), 0
        for rank in range(case.ranks):
            draw = torch.Generator().manual_seed(case.seed + 1 + rank)
            mine.append([torch.randn(s, generator=draw) for s in ((case.hidden, 2), (2, case.hidden))])
            up, down = (t.requires_grad_() for t in mine[-1])
            total = total + gelu((given["input"] * given["scale"] + given["shift"]) @ up) @ down
        total.backward(upstream)
        for rank in range(case.ranks):
            torch.testing.assert_close(found["sum"][rank], total.detach())
            torch.testing.assert_close(list(found["own"][rank].values()), [t.grad for t in mine[rank]])
            for name, gradient in found["gradients"][rank].items():
                torch.testing.assert_close(gradient, given[name].grad)
        numbers = sum(t.numel() for name, t in given.items() if name != case.frozen)
        assert found["bytes"] == round(sent_bytes("all-reduce", 4 * numbers, case.ranks))


def test_the_loss_of_a_cut_vocabulary_is_that_of_whole_logits():
    for case, found in seen("09.2"):
        logits, targets = check_file("09.2").drawn(case)
        logits.requires_grad_()
        loss = cross_entropy(logits, targets, reduction="sum") / max(1, case.tokens - case.ignored)
        loss.backward()
        parts = logits.grad.split(list(chunk_sizes(case.words, case.ranks)), 1)
        for rank in range(case.ranks):
            torch.testing.assert_close(found["loss"][rank], loss.detach(), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(found["gradient"][rank], parts[rank], rtol=1e-5, atol=1e-5)
        assert found["bytes"] <= round(sent_bytes("all-reduce", 3 * 4 * case.tokens, case.ranks))


def test_the_mended_block_is_that_of_one_device():
    from course_checks.residual_block import PARTS, on_one_device

    for case, found in seen("09.3"):
        for rank, want in enumerate(on_one_device(case)):
            for key in ("output", *PARTS):
                torch.testing.assert_close(found[key][rank], want[key], rtol=1e-4, atol=1e-5)
        least = round(sent_bytes("all-reduce", 4 * case.tokens * case.hidden, case.ranks))
        assert (found["sent forward"], found["sent backward"]) == (least, least)


def test_attention_of_all_ranks_heads_is_that_of_the_whole_weight():
    given = material("09.4")
    for case, found in seen("09.4"):
        whole = given.observe(lambda weight, *_: weight, case._replace(ranks=1))["attention"][0]
        torch.testing.assert_close(torch.cat(found["attention"]), whole)
        needed = case.heads // case.ranks + 2 * max(1, case.kv_heads // case.ranks)
        assert found["more"] == needed * case.size


@pytest.mark.parametrize("place", range(2))
def test_the_planned_model_gives_the_gradients_of_one_device_and_sends_no_more_than_it_must(place):
    given, module = material("09.5"), check_file("09.5")
    case = given.cases(7)[place]
    found = given.observe(given.solution, case)
    model, tokens, targets = module.drawn(case)
    loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    loss.backward()
    assert found["loss"] == pytest.approx([loss.item()] * case.ranks)
    for name, p in model.named_parameters():
        torch.testing.assert_close(found["gradients"][0][name], p.grad, rtol=1e-4, atol=1e-6)
    tokens, hidden, ranks = tokens.numel(), 8 * case.heads, case.ranks
    blocks = tensor_parallel_traffic(tokens, hidden, ranks, case.layers, 4)
    ends = embedding_traffic(tokens, hidden, ranks, 4) + head_traffic(tokens, hidden, ranks, 4)
    assert found["bytes"] <= (blocks + ends + calls("all-reduce", [tokens] * 3, 4, ranks)).sent
