"""Muon in production: PyTorch's on one device, and under every plan that of one device; bytes as the simulator says."""

import pytest
import torch
from on_one_device import differences, step_from_each_checkpoint, train_in_parallel, train_on_one_device
from torch import nn

from course_lib.data_parallel.fully_sharded import FullyShardedDataParallel
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.mixtral import Mixtral, MixtralConfig
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.muon import MuonWithAdamW, muon_groups
from course_lib.parallelize import mesh_axes, parallelize
from course_lib.parallelize.refusals import refuse
from course_lib.parallelize.shape import model_shape
from course_lib.runtime import launch
from course_lib.runtime.fork_server import preload
from course_lib.runtime.mesh import make_mesh
from simulator.inputs.plan import Plan
from simulator.predict.memory import rank_memory
from simulator.predict.muon import elements_on, matrix_owners, mean_muon_traffic, muon_traffic

preload("course_lib.parallelize")
STEPS, BATCH, SEQ, VOCAB, CLIP, LR = 3, 8, 12, 31, 0.1, 1e-2


def gpt():
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(vocab_size=VOCAB, max_length=16, num_layers=3, num_heads=4, hidden_size=16))
    for p in model.parameters():
        nn.init.normal_(p, std=0.3 if p.dim() == 1 else 0.1)
    return model.double()


def mixtral():
    """Stacks of experts' matrices, of which a rank's shard may be several, or a part of one."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "num_local_experts": 6}
    model = Mixtral(MixtralConfig.tiny(vocab_size=VOCAB, **sizes))
    for p in model.parameters():
        nn.init.normal_(p, std=0.3 if p.dim() == 1 else 0.1)
    return model.double()


def data():
    g = torch.Generator().manual_seed(1)
    return tuple(torch.randint(VOCAB, (2, STEPS * BATCH, SEQ), generator=g))


def one_device(make):
    model = make()
    return train_on_one_device(
        model, data(), BATCH, CLIP, MuonWithAdamW(muon_groups(model.named_parameters()), lr=LR)
    )


def test_its_groups_are_the_matrices_of_the_layers():
    named = dict(gpt().named_parameters())
    matrices, others = (group["params"] for group in muon_groups(named.items()))
    assert {n for n, p in named.items() if any(p is m for m in matrices)} == {
        f"blocks.{i}.{part}.weight"
        for i in range(3)
        for part in (
            *("attention.query", "attention.key", "attention.value", "attention.output"),
            *("mlp.up", "mlp.down"),
        )
    }
    assert len(matrices) + len(others) == len(named)


@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
def test_a_step_is_that_of_pytorchs_muon_and_adamw_bit_for_bit(adjust):
    ours, theirs = gpt().float(), gpt().float()
    optimizer = MuonWithAdamW(muon_groups(ours.named_parameters()), lr=LR, adjust_lr_fn=adjust)
    matrices, others = (group["params"] for group in muon_groups(theirs.named_parameters()))
    official = (
        torch.optim.Muon(matrices, lr=LR, adjust_lr_fn=adjust),
        torch.optim.AdamW(others, lr=LR, weight_decay=0.1),
    )
    for _ in range(3):
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            p.grad = torch.randn(p.shape)
            q.grad = p.grad.clone()
        optimizer.step()
        for one in official:
            one.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)


def test_each_matrix_of_a_stack_is_turned_as_pytorchs_muon_does():
    stack = nn.Parameter(torch.randn(3, 8, 5))
    alone = [nn.Parameter(one.clone()) for one in stack.detach()]
    optimizer = MuonWithAdamW(muon_groups([("layers.0.mlp.experts.down_proj", stack)]), lr=LR)
    official = torch.optim.Muon(alone, lr=LR, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        stack.grad = torch.randn(stack.shape)
        for p, gradient in zip(alone, stack.grad, strict=True):
            p.grad = gradient.clone()
        optimizer.step()
        official.step()
    assert torch.equal(stack, torch.stack(alone))


PLANS = {
    2: [
        {"dp": 2},
        {"dp": 2, "zero": 1},
        {"dp": 2, "zero": 1, "overlap": (), "microbatches": 2},
        {"dp": 2, "zero": 2},
        {"dp": 2, "zero": 3},
        {"dp": 2, "zero": 3, "offload": "parameters", "recompute": "full"},
        {"cp": 2, "zero": 2},
        {"pp": 2, "microbatches": 2},
    ],
    3: [{"dp": 3, "zero": 1}, {"dp": 3, "zero": 3}],
    4: [
        {"dp": 4, "zero": 3, "shard": 2},
        {"dp": 2, "cp": 2, "zero": 3},
        {"dp": 2, "pp": 2, "zero": 1, "microbatches": 3, "schedule": "zb-h1"},
    ],
}
OF_EXPERTS = [{"dp": 4, "zero": 1}, *({"dp": 4, "ep": 2, "zero": zero} for zero in (0, 1, 3))]
CASES = [pytest.param(gpt, plans, id=f"{ranks} ranks") for ranks, plans in PLANS.items()]


def run(make, settings):
    plan = Plan(**settings, precision="fp32", optimizer="muon")
    model, optimizer = parallelize(make(), plan, make_mesh(mesh_axes(plan)), lr=LR)
    return train_in_parallel(model, optimizer, data(), BATCH, CLIP)


@pytest.mark.parametrize(("make", "plans"), [*CASES, pytest.param(mixtral, OF_EXPERTS, id="experts")])
def test_every_plan_trains_as_one_device(make, plans):
    expected = one_device(make)
    for ranks in launch(lambda: [run(make, plan) for plan in plans], Plan(**plans[0]).ranks):
        for plan, found in zip(plans, ranks, strict=True):
            assert max(differences(found, expected)) < 1e-9, plan


def resumed(folder):
    """A step under each plan, each from the checkpoint of the one before."""
    rows = [t[:BATCH] for t in data()]
    axes = {"dp": 2, "zero": 3}, {"pp": 2}, {"dp": 2, "zero": 1}, {"dp": 2}, {"cp": 2, "zero": 2}
    plans = [Plan(**each, precision="fp32", optimizer="muon") for each in axes]
    return step_from_each_checkpoint(folder, gpt, rows, plans, lr=LR)


def test_training_goes_on_from_the_checkpoint_of_another_plan(tmp_path):
    model, (tokens, targets) = gpt(), (t[:BATCH] for t in data())
    optimizer = MuonWithAdamW(muon_groups(model.named_parameters()), lr=LR)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    for state in launch(resumed, 2, args=(str(tmp_path),)):
        assert max(float((state[n] - t).abs().max()) for n, t in model.state_dict().items()) < 1e-9


# ---- ledgers ---------------------------------------------------------------------------------------------------


def sent(make, settings):
    """By a step's update; the bytes of states; what is in each flat buffer."""
    plan = Plan(**settings, precision="fp32", optimizer="muon")
    model, optimizer = parallelize(make().float(), plan, make_mesh(mesh_axes(plan)), lr=LR)
    model.forward_backward(*(t[: BATCH // plan.dp] for t in data()))
    with record_traffic() as log:
        optimizer.step()
    rows = [row for row in log.traffic.rows if row.collective == "all-to-all"]
    flats = model.data.fsdp.flats if plan.zero == 3 else optimizer.flats
    names = [flat.names for flat in flats]
    return sum(row.sent for row in rows), sum(row.calls for row in rows), model.memory(optimizer), names


SENT = {  # ranks -> model, zero, ep. (3, 1): a layer each
    2: [(gpt, 3, 1), (mixtral, 3, 1)],
    3: [(gpt, 3, 1), (gpt, 1, 1)],
    4: [(gpt, 2, 1), (mixtral, 3, 2)],
}


@pytest.mark.parametrize("ranks", SENT)
def test_an_update_sends_what_the_simulator_says(ranks):
    cases = SENT[ranks]
    ways = [(make, {"dp": ranks, "zero": zero, "ep": ep}) for make, zero, ep in cases]
    all_found = launch(lambda: [sent(*way) for way in ways], ranks)
    for case, found in zip(cases, zip(*all_found, strict=True), strict=True):
        check_sent(*case, found)


def check_sent(make, zero, ep, found):
    ranks = len(found)
    named, shapes, held = (
        dict(make().named_parameters()),
        ([], []),
        ([], []),
    )  # experts are turned among fewer
    for names in found[0][-1]:
        dealt = ep if any("experts" in name for name in names) else 1
        whole = [(n, [*named[n]][: 6 // dealt] if named[n].ndim == 3 else [named[n]]) for n in names]
        tensors = [(n, one) for n, several in whole for one in several]
        parts = elements_on([one.numel() for _, one in tensors], ranks // dealt)
        for (name, one), each in zip(tensors, parts, strict=True):
            if one.ndim == 2 and ("blocks" in name or "layers" in name):
                shapes[dealt > 1].append(tuple(one.shape))
                held[dealt > 1].append(each)
    for rank, (bytes, calls, memory, _) in enumerate(found):
        predicted = muon_traffic(shapes[0], held[0], rank) + muon_traffic(shapes[1], held[1], rank // ep)
        assert (bytes, calls) == (predicted.sent, predicted.calls)
        plan = Plan(dp=ranks, ep=ep, zero=zero, precision="fp32", optimizer="muon", microbatches=1)
        states = rank_memory(model_shape(make(), 16), plan).optimizer_states
        assert memory.optimizer_states == pytest.approx(states, rel=0.02)  # padding, steps
    mean = sum(bytes for bytes, *_ in found) / ranks
    dense, experts = (sum(rows * columns for rows, columns in part) for part in shapes)
    most = mean_muon_traffic(dense, ranks) + mean_muon_traffic(experts, ranks // ep)
    assert (0 if zero == 1 else 1) <= mean <= most.sent


def test_owners_have_equally_much_to_do_and_own_what_they_hold():
    shapes = [(64, 64)] * 4 + [(64, 256)] * 2
    held = elements_on([64 * 64] * 4 + [256 * 64] * 2, 2)
    owners = matrix_owners(shapes, held)
    assert sorted(owners[:4]) == [0, 0, 1, 1]
    assert sorted(owners[4:]) == [0, 1]
    assert matrix_owners([(64, 64)] * 6, elements_on([64 * 64] * 6, 3)) == [0, 0, 1, 1, 2, 2]
    assert matrix_owners([], []) == []


# ---- what is refused -------------------------------------------------------------------------------------------


def test_a_part_of_a_matrix_is_refused():
    with pytest.raises(ValueError, match="tp must be 1 with the optimizer muon, not 2"):
        refuse(Plan(tp=2, optimizer="muon"))
    with pytest.raises(ValueError, match="adjust_lr_fn must be"):
        MuonWithAdamW([], adjust_lr_fn="none")


def unplaced(mesh):
    fsdp = FullyShardedDataParallel(gpt(), ["blocks.*"], mesh)
    optimizer = MuonWithAdamW(muon_groups(fsdp.named_parameters()))
    fsdp(data()[0][:2]).sum().backward()
    with pytest.raises(ValueError, match="its places must be ShardedMatrices"):
        optimizer.step()


def test_shards_that_are_not_placed_are_refused():
    launch(unplaced, mesh={"dp": 2})
