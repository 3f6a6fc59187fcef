"""Cases in which FSDP went wrong once: each is held to one device."""

import copy
import math
from dataclasses import dataclass
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, AdamW

from course_lib.data_parallel.fsdp import FSDP
from course_lib.data_parallel.fully_sharded import FullyShardedDataParallel
from course_lib.data_parallel.sharded_gradient import ShardedNorm
from course_lib.data_parallel.zero3 import Zero3
from course_lib.runtime import current_device, launch


def both(run, ranks=2, args=((),)):
    """What ``run(mesh, kind, *more)`` returns, for both kinds and all ``args``, on every rank."""
    cases = list(product((FSDP, FullyShardedDataParallel), args))
    found = launch(lambda mesh: [run(mesh, kind, *more) for kind, more in cases], mesh={"dp": ranks})
    return [result for rank in found for result in rank]


def seeded(build):
    torch.manual_seed(0)
    return build().to(current_device())


def data(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(current_device())


class LoraBlock(nn.Module):
    def __init__(self, h=16):
        super().__init__()
        self.w, self.a = nn.Linear(h, h, bias=False), nn.Linear(h, 4, bias=False)
        self.b = nn.Linear(4, h, bias=False)
        self.w.weight.requires_grad_(False)

    def forward(self, x):
        return torch.relu(self.w(x) + self.b(self.a(x)))


def lora_net():
    return nn.Sequential(nn.Linear(8, 16), LoraBlock(), LoraBlock(), nn.Linear(16, 3))


def lora_step(mesh, kind):
    net, one = seeded(lora_net), seeded(lora_net)
    fsdp = kind(net, ["1", "2"], mesh)
    for m in (fsdp, one):
        m(data(4, 8)).square().sum().backward()
        SGD([p for p in m.parameters() if p.requires_grad], lr=0.1).step()
    got = fsdp.state_dict()
    return max(float((got[n] - p.cpu()).abs().max()) for n, p in one.state_dict().items())


def test_a_frozen_weight_beside_trained_ones_in_a_unit():
    assert max(both(lora_step)) < 1e-6


def reduced_with_the_last_gradient(mesh, kind):
    """For each unit, whether its gradients are on their way as soon as the last of them is there."""
    fsdp, due = kind(seeded(lora_net), ["0", "1"], mesh), {}
    for unit in fsdp.units[:-1]:
        for p in unit.trainable:
            p.unsharded.register_post_accumulate_grad_hook(
                lambda _, unit=unit: due.update({unit.name: unit.due})
            )
    fsdp(data(4, 8).requires_grad_()).square().sum().backward()
    return {name: not waits for name, waits in due.items()}


def test_a_unit_waits_for_the_gradient_of_its_input_only_where_a_weight_is_frozen():
    assert both(reduced_with_the_last_gradient) == [{"0": True, "1": False}] * 4


class MayBeUnused(nn.Module):
    def __init__(self, unused):
        super().__init__()
        self.a = nn.Linear(64, 64, bias=False)
        if unused:
            self.u = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.relu(self.a(x))


def units_alive(mesh, kind, unused):
    """The most units that are unsharded at once while gradients arrive, beside the shards."""
    m = nn.Sequential(*[MayBeUnused(unused) for _ in range(8)]).to(current_device())
    fsdp, seen = kind(m, ["*"], mesh), []
    for unit in fsdp.units[:-1]:
        unit.trainable[-1].unsharded.register_post_accumulate_grad_hook(
            lambda _: seen.append(fsdp.memory().parameters)
        )
    fsdp(data(2, 64).requires_grad_()).sum().backward()
    assert len(seen) == 8
    shards = sum(flat.shard.nbytes for flat in fsdp.flats)
    return (max(seen) - shards) / (64 * 64 * 4)


def test_a_unit_is_resharded_when_its_backward_is_over_also_with_an_unused_parameter():
    assert max(both(units_alive, args=((False,), (True,)))) <= 3


class ViewBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        return self.l(x).view(-1, 8)


class InPlaceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = ViewBlock(), ViewBlock(), ViewBlock()

    def forward(self, x):
        x = self.b(self.a(x))
        x += 1
        return self.c(x).square().mean()


def in_place(mesh, kind, settings):
    net, x = seeded(InPlaceNet), data(4, 8)
    one = copy.deepcopy(net)
    one(x).backward()
    if kind is Zero3:
        zero = Zero3(net, SGD, lr=1.0)
        net(x).backward()
        zero.step()
        after = zero.model_state_dict()
        before = seeded(InPlaceNet).state_dict()
        got = {name: before[name].cpu() - after[name] for name in after}
    else:
        fsdp = kind(net, ["a", "b", "c"], mesh, **settings)
        fsdp(x).backward()
        got = fsdp.gradients()
    return max(float((got[n] - p.grad.cpu()).abs().max()) for n, p in one.named_parameters())


def test_an_output_changed_in_place_has_the_right_gradients():
    cases = (FSDP, {"prefetch": 0}), (FSDP, {}), (FullyShardedDataParallel, {}), (Zero3, {})
    for found in launch(lambda mesh: [in_place(mesh, *case) for case in cases], mesh={"dp": 2}):
        assert max(found) < 1e-6


def half_sum(mesh, kind):
    m = nn.Sequential(nn.Linear(2, 2, bias=False)).half().to(current_device())
    fsdp = kind(m, ["0"], mesh)
    (fsdp(torch.ones(1, 2, device=current_device()).half()).sum() * 40000).backward()
    return fsdp.gradients()["0.weight"].flatten().tolist()


def test_fp16_gradients_are_divided_before_they_are_summed():
    for gradient in both(half_sum):
        assert gradient == pytest.approx([40000] * 4, abs=100)


class MayUseEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.lin = nn.Embedding(4, 2), nn.Linear(2, 2)
        with torch.no_grad():
            self.emb.weight.fill_(1.0)

    def forward(self, x, use):
        return self.lin(self.emb(x) if use else torch.ones(len(x), 2, device=x.device))


def decayed(mesh, kind):
    """Rank 0 uses rows 0 and 1; rank 1 holds rows 2 and 3, does not use the embedding, and must decay them."""
    fsdp = kind(seeded(MayUseEmbedding), ["lin"], mesh)
    x = torch.tensor([0, 1], device=current_device())
    opt = AdamW(fsdp.parameters(), lr=0.1, weight_decay=0.5)
    fsdp(x, use=dist.get_rank() == 0).sum().backward()
    opt.step()
    one = seeded(MayUseEmbedding)
    opt = AdamW(one.parameters(), lr=0.1, weight_decay=0.5)
    ((one(x, True).sum() + one(x, False).sum()) / 2).backward()
    opt.step()
    return fsdp.state_dict()["emb.weight"].tolist(), one.emb.weight.tolist()


def test_whether_a_parameter_has_a_gradient_is_decided_for_the_whole_parameter():
    for got, want in both(decayed):
        assert torch.allclose(torch.tensor(got), torch.tensor(want), atol=1e-5)


def unused_everywhere(mesh, kind):
    fsdp = kind(seeded(MayUseEmbedding), ["lin"], mesh)
    fsdp(torch.tensor([0, 1], device=current_device()), use=False).sum().backward()
    return {name: gradient is not None for name, gradient in fsdp.gradients().items()}


def test_a_parameter_that_no_rank_uses_has_no_gradient():
    expected = {"emb.weight": False, "lin.weight": True, "lin.bias": True}
    assert both(unused_everywhere, ranks=3) == [expected] * 6


@dataclass
class Out:
    logits: torch.Tensor


class DataclassNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return Out(self.head(torch.relu(self.block(x))))


def dataclass_step(mesh):
    one, x = seeded(DataclassNet), data(4, 8)
    one(x).logits.sum().backward()
    want = {name: p.grad.cpu() for name, p in one.named_parameters()}
    fsdp = FSDP(seeded(DataclassNet), ["block"], mesh)
    fsdp(x).logits.sum().backward()
    net = seeded(DataclassNet)
    zero = Zero3(net, SGD, lr=1.0, units=[net])
    net(x).logits.sum().backward()
    zero.step()
    after, before = zero.model_state_dict(), seeded(DataclassNet).state_dict()
    got = fsdp.gradients()
    by_fsdp = max(float((got[n] - g).abs().max()) for n, g in want.items())
    by_zero = max(float((before[n].cpu() - after[n] - g).abs().max()) for n, g in want.items())
    return by_fsdp, by_zero


def test_a_model_that_returns_a_dataclass_trains():
    for by_fsdp, by_zero in launch(dataclass_step, mesh={"dp": 2}):
        assert by_fsdp < 1e-6
        assert by_zero < 1e-6


def groups_by_dimension(mesh):
    """The usual rule: matrices decay, vectors do not."""
    net, one = seeded(lora_net), seeded(lora_net)
    fsdp = FSDP(net, ["1", "2"], mesh)
    for m in (fsdp, one):
        trained = [p for p in m.parameters() if p.requires_grad]
        matrices, vectors = ([p for p in trained if (p.dim() >= 2) == which] for which in (True, False))
        opt = AdamW(
            [{"params": matrices, "weight_decay": 0.5}, {"params": vectors, "weight_decay": 0.0}], lr=0.1
        )
        m(data(4, 8)).square().sum().backward()
        opt.step()
    got = fsdp.state_dict()
    return max(float((got[n] - p.cpu()).abs().max()) for n, p in one.state_dict().items())


def test_weight_decay_groups_chosen_by_dim_are_those_of_one_device():
    assert max(launch(groups_by_dimension, mesh={"dp": 3})) < 1e-5


def clipped_by_torch(mesh, ord):
    net, one = seeded(lora_net), seeded(lora_net)
    fsdp = FSDP(net, ["1", "2"], mesh)
    norms = []
    for m in (fsdp, one):
        m(data(4, 8)).square().sum().backward()
        norms.append(float(nn.utils.clip_grad_norm_(m.parameters(), 0.1, norm_type=ord)))
    got = fsdp.gradients()
    worst = max(
        float((got[n] - p.grad.cpu()).abs().max()) for n, p in one.named_parameters() if p.grad is not None
    )
    return norms, worst


def test_torchs_clip_grad_norm_takes_the_norm_over_all_shards():
    every = launch(lambda mesh: [clipped_by_torch(mesh, p) for p in (2.0, 1.0, math.inf)], mesh={"dp": 3})
    for (norm, expected), worst in (found for rank in every for found in rank):
        assert norm == pytest.approx(expected, rel=1e-5)
        assert worst < 1e-6


def muon(mesh):
    fsdp = FSDP(nn.Sequential(nn.Linear(4, 4, bias=False)).to(current_device()), ["0"], mesh)
    optimizer = torch.optim.Muon(fsdp.parameters())
    fsdp(data(2, 4)).sum().backward()
    with pytest.raises(ValueError, match="Muon does not update each element by itself"):
        optimizer.step()


def test_an_optimizer_that_is_not_elementwise_is_refused_at_its_step():
    launch(muon, mesh={"dp": 2})


def norms_that_are_not_alike(mesh):
    group, me = mesh.get_group("dp"), dist.get_rank()
    alone = [dist.new_group([rank]) for rank in range(2)][me]
    over_both = ShardedNorm.of(torch.tensor(3.0 + me), 2.0, group)  # 3 and 4: 5 together
    others = torch.tensor(2.0), ShardedNorm.of(torch.tensor(2.0), 2.0, alone)
    return [float(torch.linalg.vector_norm(torch.stack([over_both, other]))) for other in others]


def test_a_sharded_norm_is_summed_over_its_own_group_beside_another_and_beside_a_plain_one():
    for norms in launch(norms_that_are_not_alike, mesh={"dp": 2}):
        assert norms == pytest.approx([math.sqrt(25 + 4)] * 2)
