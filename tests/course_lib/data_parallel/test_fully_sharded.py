"""What FullyShardedDataParallel adds to FSDP: settings of single units, replicated parameters, checkpoints on disk."""

import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import AdamW

from course_lib.data_parallel.distributed_checkpoint import (
    load_sharded_state_dict,
    make_optimizer_states,
    sharded_state_dict,
)
from course_lib.data_parallel.fully_sharded import FullyShardedDataParallel, MixedPrecision
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import current_device, launch
from course_lib.runtime.fork_server import preload

preload("torch.distributed.checkpoint.state_dict")
LAYERS, VOCAB, BATCH = 3, 16, 12


def make(dtype=torch.float64):
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "max_length": 8, "num_layers": LAYERS, "hidden_size": 32}
    return GPT(GPTConfig.tiny(**sizes)).to(current_device(), dtype)


def batch(step, rank=0, ranks=1):
    g = torch.Generator().manual_seed(step)
    tokens, targets = torch.randint(VOCAB, (2, BATCH, 8), generator=g).to(current_device())
    return tokens.chunk(ranks)[rank], targets.chunk(ranks)[rank]


def train(model, optimizer, steps, rank=0, ranks=1):
    for step in steps:
        optimizer.zero_grad()
        tokens, targets = batch(step, rank, ranks)
        cross_entropy(model(tokens), targets).backward()
        optimizer.step()


def train_sharded(model, optimizer, steps):
    train(model, optimizer, steps, dist.get_rank(), dist.get_world_size())


def one_device(steps, dtype=torch.float64):
    model = make(dtype)
    train(model, AdamW(model.parameters(), lr=1e-2), steps)
    return {name: p.cpu() for name, p in model.state_dict().items()}


def furthest(state, other):
    assert state.keys() == other.keys()
    return max(float((state[name] - other[name].cpu()).abs().max()) for name in other)


# ---- like a module -----------------------------------------------------------------------------------------


def like_a_module(mesh):
    model = FullyShardedDataParallel(make(), ["blocks.*"], mesh)
    plain = make()
    assert isinstance(model, nn.Module)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert not model.eval().module.training
    tokens, _ = batch(0)
    with torch.no_grad():
        same = torch.allclose(model.train()(tokens), plain(tokens))
    plain.load_state_dict(model.state_dict())
    changed = {name: p + 1 for name, p in model.state_dict().items()}
    model.load_state_dict(changed)
    return same, furthest(model.state_dict(), changed)


def test_it_works_like_a_module():
    assert launch(like_a_module, mesh={"dp": 3}) == [(True, 0.0)] * 3


def full_gradients(mesh):
    model, plain = FullyShardedDataParallel(make(), ["blocks.*"], mesh), make()
    for m in (model, plain):
        tokens, targets = batch(0)
        cross_entropy(m(tokens), targets).backward()
    return furthest(model.gradients(), {name: p.grad for name, p in plain.named_parameters()})


@pytest.mark.parametrize("mesh", [{"dp": 3}, {"copies": 2, "shards": 2}], ids=str)
def test_gradients_are_gathered_as_weights_are(mesh):
    assert max(launch(full_gradients, mesh=mesh)) < 1e-9


# ---- units ---------------------------------------------------------------------------------------------------


def bottom_up(mesh):
    by_name = FullyShardedDataParallel(make(), ["blocks.*"], mesh)
    model = make()
    for i, block in enumerate(model.blocks):
        FullyShardedDataParallel(block, mesh=mesh, reshard_after_forward=None if i else False)
    by_hand = FullyShardedDataParallel(model, mesh=mesh)
    for fsdp in (by_name, by_hand):
        train_sharded(fsdp, AdamW(fsdp.parameters(), lr=1e-2), range(2))
    gathers = []
    for fsdp in (by_name, by_hand):
        with record_traffic() as log:
            tokens, targets = batch(0)
            cross_entropy(fsdp(tokens), targets).backward()
        gathers.append(log.traffic.of("all-gather").calls)
    names = [[unit.name for unit in fsdp.units] for fsdp in (by_name, by_hand)]
    return names, gathers, by_name.state_dict(), by_hand.state_dict()


def test_units_made_one_by_one_from_the_bottom_up():
    expected = one_device(range(2))
    for names, gathers, *states in launch(bottom_up, mesh={"dp": 2}):
        assert names[0] == names[1]
        assert gathers == [2 * LAYERS + 1, 2 * LAYERS]  # the first block stays unsharded after forward
        assert max(furthest(state, expected) for state in states) < 1e-6


def settings(mesh):
    model = FullyShardedDataParallel(make(), ["blocks.*"], mesh)

    def calls(microbatches=1):
        with record_traffic() as log:
            for _ in range(microbatches):
                tokens, targets = batch(0)
                cross_entropy(model(tokens), targets).backward()
        return log.traffic.of("all-gather").calls, log.traffic.of("reduce-scatter").calls

    found = {"default": calls()}
    model.set_reshard_after_forward(False, ["blocks.0"])
    found["block 0 kept after forward"] = calls()
    model.set_reshard_after_forward(True, ["blocks.0"])
    model.set_requires_gradient_sync(False, ["blocks.*"])
    found["only the root is reduced"] = calls()
    model.set_requires_gradient_sync(True)
    model.set_reshard_after_backward(False)
    found["kept after backward"] = calls(2)
    AdamW(model.parameters()).step()
    found["after an update"] = calls()
    with pytest.raises(ValueError, match=r"no unit is called 'block'; there are blocks.0, .*'' \(the root\)"):
        model.set_reshard_after_forward(True, ["block"])
    return found


def test_settings_of_single_units():
    for found in launch(settings, mesh={"dp": 2}):
        assert found["default"] == (2 * LAYERS + 1, LAYERS + 1)
        assert found["block 0 kept after forward"] == (2 * LAYERS, LAYERS + 1)
        assert found["only the root is reduced"] == (2 * LAYERS + 1, 1)
        # both forwards gather nothing that the backward before has left: blocks once each time in backward
        assert found["kept after backward"] == ((2 * LAYERS + 1) + LAYERS, 2 * (LAYERS + 1))
        assert found["after an update"] == (2 * LAYERS + 1, LAYERS + 1)


def ignored(mesh):
    model = FullyShardedDataParallel(
        make(), ["blocks.*"], mesh, ignored=["embedding.positions.weight", "blocks.*.norm_1.*"]
    )
    optimizer = AdamW(model.parameters(), lr=1e-2)
    train_sharded(model, optimizer, range(2))
    model.clip_grad_norm(1.0)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    with pytest.raises(ValueError, match="no parameter is called 'nothing'"):
        FullyShardedDataParallel(make(), ["blocks.*"], mesh, ignored=["nothing"])
    return model.state_dict(), shapes["embedding.positions.weight"], shapes["blocks.1.norm_1.weight"]


@pytest.mark.parametrize("mesh", [{"dp": 3}, {"copies": 2, "shards": 2}], ids=str)
def test_replicated_parameters_are_averaged(mesh):
    expected = one_device(range(2))
    for state, positions, norm in launch(ignored, mesh=mesh):
        assert positions == (8, 32)
        assert norm == (32,)
        assert furthest(state, expected) < 1e-6


# ---- mixed precision ----------------------------------------------------------------------------------------


def beside_fully_shard(mesh, ours, theirs):
    warnings.simplefilter("ignore", FutureWarning)
    model, official = make(torch.float32), make(torch.float32)
    fsdp = FullyShardedDataParallel(model, ["blocks.*"], mesh, precision=ours)
    for block in official.blocks:
        fully_shard(block, mesh=mesh, mp_policy=theirs)
    fully_shard(official, mesh=mesh, mp_policy=theirs)
    for m in (fsdp, official):
        train_sharded(m, torch.optim.SGD(m.parameters(), lr=0.1), range(2))
    dtype = fsdp(batch(0)[0]).dtype
    state = fsdp.state_dict()
    pairs = [(state[name], p.full_tensor().cpu()) for name, p in official.state_dict().items()]
    return max((one - other).abs().max().item() for one, other in pairs), dtype


BF16, FP32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize("policy", [(BF16, None), (BF16, FP32), (None, BF16)])
def test_param_dtype_and_reduce_dtype_equal_fully_shard_to_the_bit(policy):
    """After two steps. From torch 2.14 on, fully_shard adds gradients in 16 bits in another order."""
    args = MixedPrecision(*policy), MixedPrecisionPolicy(*policy)
    most = 0 if torch.__version__ < "2.14" or policy[1] == FP32 else 1e-3
    for apart, dtype in launch(beside_fully_shard, mesh={"dp": 2}, args=args):
        assert apart <= most
        assert dtype == (policy[0] or FP32)


def policies(mesh):
    precision = {"blocks.0": MixedPrecision(BF16, FP32, output_dtype=FP32)}
    fsdp = FullyShardedDataParallel(make(FP32), ["blocks.*"], mesh, precision=precision)
    seen = []
    fsdp.module.blocks[1].norm_1.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    fsdp(batch(0)[0])
    assert seen == [FP32]
    return {flat.name: flat.full.dtype for flat in fsdp.flats}


def test_a_policy_for_one_unit():
    expected = {"blocks.0": BF16, "blocks.1": FP32, "blocks.2": FP32, "root": FP32}
    assert launch(policies, mesh={"dp": 2}) == [expected] * 2


# ---- torch.distributed.checkpoint ---------------------------------------------------------------------------


def save(mesh, folder):
    model = FullyShardedDataParallel(make(), ["blocks.*"], mesh)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    train_sharded(model, optimizer, range(1))
    dcp.save(sharded_state_dict(model, optimizer), checkpoint_id=folder)


def load(mesh, folder):
    model = make()
    for p in model.parameters():
        nn.init.ones_(p)
    model = FullyShardedDataParallel(model, ["blocks.*"], mesh)
    optimizer = AdamW(model.parameters(), lr=7.0)
    make_optimizer_states(optimizer)
    state = sharded_state_dict(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    load_sharded_state_dict(model, state, optimizer)
    train_sharded(model, optimizer, range(1, 2))
    return model.state_dict()


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor, self.linear = nn.Parameter(torch.tensor(factor)), nn.Linear(5, 3)

    def forward(self, x):
        return self.factor * self.linear(x)


def save_one_number(mesh, folder):
    model = FullyShardedDataParallel(Scaled(2.5), [], mesh)
    dcp.save(sharded_state_dict(model), checkpoint_id=folder)


def load_one_number(mesh, folder):
    model = FullyShardedDataParallel(Scaled(0.0), [], mesh)
    state = sharded_state_dict(model)
    dcp.load(state, checkpoint_id=folder)
    load_sharded_state_dict(model, state)
    return model.state_dict()["factor"].item()


def test_a_distributed_checkpoint_holds_a_parameter_without_dimensions(tmp_path):
    launch(save_one_number, mesh={"dp": 2}, args=(str(tmp_path),))
    assert launch(load_one_number, mesh={"dp": 3}, args=(str(tmp_path),)) == [2.5] * 3


@pytest.mark.parametrize("before", [{"dp": 2}, {"copies": 2, "shards": 2}], ids=str)
def test_a_distributed_checkpoint_is_loaded_on_other_numbers_of_ranks(tmp_path, before):
    folder, expected = str(tmp_path), one_device(range(2))
    launch(save, mesh=before, args=(folder,))
    for state in launch(load, mesh={"dp": 3}, args=(folder,)):
        assert furthest(state, expected) < 1e-6
    plain = make()
    state = {"model": plain.state_dict()}
    dcp.load(state, checkpoint_id=folder)  # without ranks, into a model that knows nothing of FSDP
    assert furthest(state["model"], one_device(range(1))) < 1e-6
