"""Recomputation, FlashAttention and sequence parallelism by hand: what they promise not to keep is gone."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from course_lib.by_hand import flash_attention, recompute, sequence_parallel
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.runtime import current_device, launch

REGIONS = {name: {"repeat": recompute.checkpoint, "modules": recompute.blocks} | settings
           for name, settings in recompute.RUNGS.items()}  # fmt: skip
pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []


def gpt(dropout=0.0):
    torch.manual_seed(0)
    config = GPTConfig.tiny(vocab_size=29, max_length=37, num_layers=2, hidden_size=24, dropout=dropout)
    return GPT(config).double().to(current_device())


def tokens():
    draws = torch.Generator().manual_seed(1)
    return torch.randint(29, (3, 37), generator=draws).to(current_device())


def gradients(repeat, modules):
    model = gpt(dropout=0.3)
    for module in modules(model):
        module.forward = lambda *x, forward=module.forward: repeat(forward, *x)
    torch.manual_seed(5)
    model(tokens()).square().mean().backward()
    after = torch.rand(3)  # what is drawn next must not notice that some was drawn twice
    return [w.grad for w in model.parameters()], after


@pytest.mark.parametrize("name", REGIONS)
def test_dropout_drops_the_same_elements_again(name):
    found, after = gradients(**REGIONS[name])
    ordinary, next_draws = gradients(lambda forward, *x: forward(*x), recompute.blocks)
    modules = REGIONS[name]["modules"]
    torchs, _ = gradients(lambda f, *x: torch_checkpoint(f, *x, use_reentrant=False), modules)
    for ours, plain, theirs in zip(found, ordinary, torchs, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    torch.testing.assert_close(after, next_draws)


@pytest.mark.parametrize(
    ("name", "runs", "mlp_kept", "scores_kept"),
    [("none", 1, True, True), ("one operation", 2, False, False), ("full", 2, False, False),
     ("selective", 1, True, False)],
)  # fmt: skip
def test_what_is_not_kept_is_gone_before_backward(name, runs, mlp_kept, scores_kept):
    model, mlps, scores = gpt(), [], []

    def attention(q, k, v):
        weights = flash_attention.scores(q, k, slice(0, 37), slice(0, 37)).softmax(-1)
        scores.append(StorageWeakRef(weights.untyped_storage()))
        return weights @ v

    for block in model.blocks:
        block.attention.core = flash_attention.Core(attention)
        keep = lambda _, x, out: mlps.append(StorageWeakRef(out.untyped_storage()))  # noqa: E731
        block.mlp.up.register_forward_hook(keep)
    for module in REGIONS[name]["modules"](model) if name in REGIONS else ():
        module.forward = lambda *x, forward=module.forward: REGIONS[name]["repeat"](forward, *x)
    loss = model(tokens()).square().mean()
    assert [ref.expired() for ref in mlps] == [not mlp_kept] * 2
    assert [ref.expired() for ref in scores] == [not scores_kept] * 2
    loss.backward()
    assert len(mlps) == 2 * runs
    assert len(scores) == (2 if scores_kept else 4)


def test_another_second_forward_is_refused():
    calls = []

    def function(x):
        calls.append(x)
        return x.sin() if len(calls) == 1 else x.sin().exp()

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="the second forward is another one"):
        recompute.checkpoint(function, x).sum().backward()


def attend(attention, n):
    """What it gives, its gradients, and the bytes that it keeps for backward."""
    draws = torch.Generator().manual_seed(3)
    q, k, v, dO = (
        torch.randn(2, 3, n, 8, generator=draws, dtype=torch.float64).mul(3).to(current_device())
        for _ in range(4)
    )
    inputs = [x.requires_grad_() for x in (q, k, v)]
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor  # alive, so that no other gets its place
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        O = attention(*inputs)
    O.backward(dO)
    return [O.detach(), *(x.grad for x in inputs)], sum(t.untyped_storage().nbytes() for t in kept.values())


@pytest.mark.parametrize("n", [1, 16, 37, 64])
@pytest.mark.parametrize("name", flash_attention.RUNGS)
def test_attention_and_its_gradients_equal_pytorchs(name, n):
    expected, _ = attend(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), n)
    found, _ = attend(flash_attention.RUNGS[name]["attention"], n)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_only_the_last_rung_keeps_what_grows_with_the_length():
    for name, rung in flash_attention.RUNGS.items():
        (_, some), (_, more) = attend(rung["attention"], 64), attend(rung["attention"], 256)
        if name == "recomputed":
            assert more == 4 * some == 2 * 3 * 256 * (4 * 8 + 1) * 8  # q, k, v, O and L, in fp64
        else:
            assert more > 8 * some


def gathered_and_kept(keep_shard):
    """How many sequences were gathered in forward, how many of them live on, how many are gathered in backward."""
    model, made, gather = gpt(), [], sequence_parallel.gather
    sequence_parallel.sequence_parallel(model, keep_shard)

    def noted(x):
        whole = gather(x)
        made.append(StorageWeakRef(whole.untyped_storage()))
        return whole

    sequence_parallel.gather = noted
    loss = model(tokens()[:, :36]).square().mean()
    forward, alive = len(made), sum(not ref.expired() for ref in made)
    loss.backward()
    sequence_parallel.gather = gather
    return forward, alive, len(made) - forward


@pytest.mark.parametrize(("keep_shard", "alive", "backward"), [(False, 4, 4), (True, 0, 8)])
def test_sequence_parallelism_keeps_the_shard_and_gathers_it_again(keep_shard, alive, backward):
    assert launch(gathered_and_kept, 2, args=(keep_shard,)) == [(4, alive, backward)] * 2
