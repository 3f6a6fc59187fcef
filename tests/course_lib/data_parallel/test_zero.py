"""Every stage trains as one device does, and holds and sends to the byte what the simulator says."""

import copy
import gc
import math
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW
from torch.utils.checkpoint import checkpoint

from course_lib.data_parallel.zero import ShardedUpdate, Zero1, Zero2
from course_lib.data_parallel.zero3 import Zero3
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.timeline import record_timeline
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy, train
from course_lib.runtime import RankError, launch
from simulator.inputs.plan import Plan
from simulator.ledgers.memory import MemoryBreakdown
from simulator.predict.memory import model_states
from simulator.predict.traffic import calls, zero_traffic

STAGES = (Zero1, Zero2, Zero3)
VOCAB, STEPS, BATCH = 11, 2, 12


class Odd(nn.Module):
    """Sizes that nothing divides; a scalar; tied, frozen and unused parameters."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 7)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.norm = nn.LayerNorm(7)
        self.down, self.up = nn.Linear(7, 5), nn.Linear(5, 7, bias=False)
        self.head = nn.Linear(7, VOCAB)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Linear(3, 1)

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.frozen(x)
        x = x + self.up(torch.relu(self.down(self.norm(x))))
        return self.head(x) * self.scale


def make(name, dtype=torch.float64):
    torch.manual_seed(0)
    if name == "odd":
        return Odd().to(dtype)
    config = GPTConfig.tiny(vocab_size=VOCAB, max_length=8, num_layers=2, hidden_size=20)
    return GPT(config if name == "tied gpt" else GPTConfig(**vars(config) | {"tie_embeddings": False})).to(
        dtype
    )


def batches(rank=0, ranks=1):
    g = torch.Generator().manual_seed(1)
    data = [torch.randint(VOCAB, (2, BATCH, 6), generator=g) for _ in range(STEPS)]
    return [tuple(part.chunk(ranks)[rank] for part in batch) for batch in data]


def start_unlike(zero_class):
    """Each rank's own values, of which those of the first count."""
    model = make("odd")
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data += dist.get_rank()
    listed = [p for name, p in model.named_parameters() if "unused" not in name]
    zero = zero_class(model, AdamW, parameters=None if zero_class is Zero3 else listed)
    return zero.model_state_dict()


def test_all_ranks_start_alike_frozen_and_unlisted_parameters_too():
    classes = ShardedUpdate, *STAGES
    for states in launch(lambda: [start_unlike(zero_class) for zero_class in classes], ranks=2):
        for zero_class, state in zip(classes, states, strict=True):
            for name, tensor in make("odd").state_dict().items():
                assert torch.equal(state[name], tensor), (zero_class, name)


def groups(model):
    """Two groups with their own settings, parameters of both interleaved in the model.

    The unused ones have no decay: their gradient of zero is for torch, on one device, no gradient.
    """
    wide = [p for p in model.parameters() if p.numel() > 11]
    narrow = [p for p in model.parameters() if p.numel() <= 11]
    return [{"params": wide, "lr": 3e-2}, {"params": narrow, "weight_decay": 0.0}]


def largest_difference(state, other):
    assert state.keys() == other.keys()
    return max((state[name] - other[name]).abs().max().item() for name in state)


class Clipped(AdamW):
    """On one device: torch's own clipping, then the update."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.3)
        super().step(closure)


# ---- equal to one device ----------------------------------------------------------------------------------


def train_in_all_ways():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine, results = batches(rank, ranks), {}
    for name in ("tied gpt", "odd"):
        for zero_class in (ShardedUpdate, *STAGES):
            model = make(name)
            zero = zero_class(model, Adam, lr=1e-2)
            losses = train(model, mine, zero, steps=STEPS)
            state = zero.model_state_dict()
            results[name, zero_class.__name__] = losses, state
        model = make(name)
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        losses = train(ddp, mine, Adam(model.parameters(), lr=1e-2), steps=STEPS)
        results[name, "torch DDP"] = losses, model.state_dict()
    for zero_class in STAGES:
        model = make("odd")
        settings = {"lr": 1e-2, "weight_decay": 0.1, "max_norm": 0.3, "bucket_cap_mb": 3e-4}
        zero = zero_class(model, AdamW, parameters=groups(model), **settings)
        losses = train(model, mine, zero, steps=STEPS)
        results["groups, clipped", zero_class.__name__] = losses, zero.model_state_dict()
    return results


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_stage_equals_one_device_and_torch_ddp(ranks):
    oracle = {}
    for name in ("tied gpt", "odd"):
        model = make(name)
        losses = train(model, batches(), Adam(model.parameters(), lr=1e-2), steps=STEPS)
        oracle[name] = losses, model.state_dict()
    model = make("odd")
    clipped = Clipped(groups(model), lr=1e-2, weight_decay=0.1)
    oracle["groups, clipped"] = train(model, batches(), clipped, steps=STEPS), model.state_dict()

    everyone = launch(train_in_all_ways, ranks=ranks)
    for (name, way), (_, state) in everyone[0].items():
        losses = [sum(result[name, way][0][i] for result in everyone) / ranks for i in range(STEPS)]
        assert losses == pytest.approx(oracle[name][0], abs=1e-9), (name, way)
        for result in everyone:
            assert largest_difference(result[name, way][1], oracle[name][1]) < 1e-9, (name, way)
        if way.startswith("Zero") and (name, "torch DDP") in everyone[0]:
            assert largest_difference(state, everyone[0][name, "torch DDP"][1]) < 1e-9


def train_in_pairs(mesh):
    """Each data-parallel pair of a 2 x 2 mesh trains a model of its own, on other data."""
    pair, group = mesh["tp"].get_local_rank(), mesh["dp"].get_group()
    mine = batches(mesh["dp"].get_local_rank(), 2)
    mine = mine if pair == 0 else mine[::-1]
    states = []
    for zero_class in STAGES:
        model = make("odd")
        zero = zero_class(model, Adam, lr=1e-2, group=group)
        train(model, mine, zero, steps=STEPS)
        states.append(zero.model_state_dict())
    return pair, states


def test_a_group_of_the_ranks():
    for pair, states in launch(train_in_pairs, mesh={"dp": 2, "tp": 2}):
        model, data = make("odd"), batches() if pair == 0 else batches()[::-1]
        train(model, data, Adam(model.parameters(), lr=1e-2), steps=STEPS)
        assert max(largest_difference(state, model.state_dict()) for state in states) < 1e-9


def zero_redundancy(cases):
    """In fp32: torch's stage 1, on torch's DDP, and ours."""
    mine, far = batches(dist.get_rank(), dist.get_world_size()), []
    for optimizer_class, settings in cases:
        theirs, ours = make("tied gpt", torch.float32), make("tied gpt", torch.float32)
        official = ZeroRedundancyOptimizer(theirs.parameters(), optimizer_class, **settings)
        train(DistributedDataParallel(theirs), mine, official, steps=STEPS)
        train(ours, mine, Zero1(ours, optimizer_class, **settings), steps=STEPS)
        far.append(largest_difference(ours.state_dict(), theirs.state_dict()))
    return far


def test_stage_1_equals_zero_redundancy_optimizer():
    cases = (AdamW, {"lr": 1e-3, "weight_decay": 0.1}), (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True})
    for adamw, sgd in launch(zero_redundancy, ranks=2, args=(cases,)):
        assert adamw <= 1e-6
        assert sgd <= 1e-6


def accumulate():
    """Three microbatches to a step, with no_sync and without, then one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    results = {}
    for zero_class in STAGES:
        for wait in (True, False):
            model = make("odd")
            zero = zero_class(model, Adam, lr=1e-2)
            with record_traffic() as log:
                for tokens, targets in batches(rank, ranks):
                    parts = list(zip(tokens.chunk(3), targets.chunk(3), strict=True))
                    for i, (x, y) in enumerate(parts):
                        with zero.no_sync() if wait and i < 2 else nullcontext():
                            (cross_entropy(model(x), y) / 3).backward()
                    zero.step()
            reductions = log.traffic.of("reduce-scatter").calls / len(zero.missing) / STEPS
            results[zero_class.__name__, wait] = zero.model_state_dict(), reductions
    return results


def test_gradient_accumulation():
    model = make("odd")
    train(model, batches(), Adam(model.parameters(), lr=1e-2), steps=STEPS)
    for (name, wait), (state, reductions) in launch(accumulate, ranks=2)[0].items():
        assert largest_difference(state, model.state_dict()) < 1e-9
        assert reductions == (1 if name == "Zero1" and wait else 3)


# ---- the ledgers ------------------------------------------------------------------------------------------


def padded(elements, ranks):
    return math.ceil(elements / ranks) * ranks


def one_step_of_traffic(name):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    results = []
    for zero_class in STAGES:
        model = make(name, torch.float32)
        zero = zero_class(model, Adam, lr=1e-2)
        with record_traffic() as log:
            train(model, batches(rank, ranks), zero, steps=1)
        results.append(log.traffic)
    return results


@pytest.mark.parametrize("ranks", [2, 3])
def test_traffic_is_2_2_and_3_psi_to_the_byte(ranks):
    model = make("gpt")
    psi = sum(p.numel() for p in model.parameters())
    by_module = [sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules()]
    norm = calls("all-reduce", [1], 8, ranks)  # the squares of a gradient's shards, added up
    for traffic in launch(one_step_of_traffic, ranks=ranks, args=("gpt",)):
        for stage in (1, 2):
            assert traffic[stage - 1] == zero_traffic(stage, [padded(psi, ranks)], ranks) + norm
        units = [padded(n, ranks) for n in by_module if n]
        assert traffic[2] == zero_traffic(3, units, ranks) + norm
        padding = 3 * 4 * sum(units) * (ranks - 1) / ranks - 3 * 4 * psi * (ranks - 1) / ranks
        assert traffic[2].sent == pytest.approx(3 * 4 * psi * (ranks - 1) / ranks + padding + norm.sent)
        assert 0 <= padding <= 3 * 4 * len(units) * (ranks - 1) ** 2 / ranks


def test_stage_3_gathers_for_each_use():
    """Tied weights for two modules, frozen ones without a reduction, unused ones not at all."""
    embedding, frozen, norm, down, up, bias, scale, unused = 78, 57, 15, 42, 36, 12, 3, 6  # padded to 3
    gathered = [embedding, embedding, bias, frozen, norm, down, up, scale]
    reduced = [embedding, bias, norm, down, up, scale, unused]
    expected = calls("all-gather", gathered, 4, 3, times=2) + calls("reduce-scatter", reduced, 4, 3)
    for traffic in launch(one_step_of_traffic, ranks=3, args=("odd",)):
        assert traffic[2] == expected + calls("all-reduce", [1], 8, 3)


def tensors_alive():
    """Bytes of all tensors that Python knows, however they are held."""
    gc.collect()
    found = [o for o in gc.get_objects() if isinstance(o, torch.Tensor)]
    storages = [
        t.untyped_storage() for t in found + [t.grad for t in found if t.is_leaf and t.grad is not None]
    ]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def states_after_backward(stage, optimizer_class, settings):
    """Model states when gradients are there and optimizer states too."""
    tokens, targets = batches(dist.get_rank(), dist.get_world_size())[0]
    before = tensors_alive()
    model = make("gpt", torch.float32)
    if stage == 0:
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = optimizer_class(model.parameters(), **settings)
    else:
        wrapped, optimizer = model, STAGES[stage - 1](model, optimizer_class, bucket_cap_mb=0.01, **settings)
    for step in range(2):
        cross_entropy(wrapped(tokens), targets).backward()
        if step == 0:
            optimizer.step()
            optimizer.zero_grad()
    if stage == 0:
        return None, tensors_alive() - before, None, []
    alive, everything = optimizer.memory(), tensors_alive() - before
    return alive, everything, optimizer.grad_norm.nbytes, [flat.full.numel() for flat in optimizer.flats]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_model_states_to_the_byte(stage):
    ranks, psi = 3, sum(p.numel() for p in make("gpt").parameters())
    plan = Plan(dp=ranks, zero=stage, precision="fp32", optimizer="adam")
    results = launch(states_after_backward, ranks=ranks, args=(stage, Adam, {"lr": 1e-3}))
    for alive, everything, norm_bytes, sizes in results:
        predicted = model_states(sum(sizes) or psi, plan)
        if stage == 0:
            # torch keeps for each parameter the number of steps; and DDP's buckets are its gradients
            counters = 4 * len(list(make("gpt").parameters()))
            assert everything == predicted.total + counters
            continue
        assert psi <= sum(sizes) < psi + ranks * len(sizes)
        counters = MemoryBreakdown(optimizer_states=4 * len(sizes))
        assert alive == predicted + counters
        assert everything == alive.total + norm_bytes, "nothing else is alive on this rank"


def gradients_during_backward(zero_class):
    """The most gradient bytes alive whenever autograd has just added one."""
    model = make("gpt", torch.float32)
    zero = zero_class(model, Adam, lr=1e-3, bucket_cap_mb=0.002)
    seen = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda _: seen.append(zero.memory().gradients))
    tokens, targets = batches()[0]
    with record_timeline() as log:
        cross_entropy(model(tokens), targets).backward()
    names = [mark.name for mark in log.marks if mark.name.startswith("reduce-scatter")]
    return max(seen), [4 * flat.full.numel() for flat in zero.flats], names


def test_stage_2_holds_two_buckets_at_most_while_stage_1_holds_all():
    (peak_1, buckets, names), *_ = launch(gradients_during_backward, ranks=2, args=(Zero1,))
    (peak_2, *_), *_ = launch(gradients_during_backward, ranks=2, args=(Zero2,))
    assert names == [f"reduce-scatter bucket {i}" for i in range(len(buckets))]
    assert len(buckets) > 5
    assert peak_1 >= sum(buckets) - max(buckets)
    assert peak_2 <= sum(buckets) / 2 + 2 * max(buckets) < peak_1


# ---- saving and loading -----------------------------------------------------------------------------------


def begin_training(zero_class, steps):
    model = make("odd")
    zero = zero_class(model, AdamW, parameters=groups(model), lr=1e-2)
    train(model, batches(dist.get_rank(), dist.get_world_size()), zero, steps=steps)
    return {"model": zero.model_state_dict(), "optimizer": zero.state_dict()}


def continue_training(zero_class, state):
    model = make("odd")
    for p in model.parameters():
        nn.init.ones_(p)
    zero = zero_class(model, AdamW, parameters=groups(model), lr=7.0)
    zero.load_model_state_dict(state["model"])
    zero.load_state_dict(state["optimizer"])
    train(model, batches(dist.get_rank(), dist.get_world_size())[1:], zero, steps=1)
    return {"model": zero.model_state_dict(), "optimizer": zero.state_dict()}


@pytest.mark.parametrize(("before", "after"), [(Zero1, Zero3), (Zero3, Zero2), (Zero2, Zero1)])
def test_another_stage_on_another_world_size_goes_on(before, after):
    uninterrupted = launch(begin_training, ranks=2, args=(Zero1, STEPS))[0]
    saved = launch(begin_training, ranks=3, args=(before, 1))
    assert largest_difference(saved[0]["model"], saved[2]["model"]) == 0, "every rank has all of it"
    resumed = launch(continue_training, ranks=2, args=(after, saved[0]))[0]
    assert largest_difference(resumed["model"], uninterrupted["model"]) < 1e-9
    assert resumed["optimizer"]["param_groups"] == uninterrupted["optimizer"]["param_groups"]
    moments, expected = resumed["optimizer"]["state"], uninterrupted["optimizer"]["state"]
    assert moments.keys() == expected.keys()
    for name in expected:
        assert moments[name]["step"] == STEPS
        assert torch.allclose(moments[name]["exp_avg_sq"], expected[name]["exp_avg_sq"], atol=1e-12)


def test_one_device_reads_it_with_torch_alone():
    state = launch(begin_training, ranks=3, args=(Zero3, 1))[0]
    model = make("odd")
    optimizer = AdamW(groups(model), lr=7.0)
    model.load_state_dict(state["model"])
    set_optimizer_state_dict(
        model, optimizer, state["optimizer"], options=StateDictOptions(full_state_dict=True)
    )
    train(model, batches()[1:], optimizer, steps=1)
    oracle = make("odd")
    train(oracle, batches(), AdamW(groups(oracle), lr=1e-2), steps=STEPS)
    assert largest_difference(model.state_dict(), oracle.state_dict()) < 1e-9


# ---- what goes wrong --------------------------------------------------------------------------------------


def poisoned():
    """On one rank one number of the gradient, so in one shard, is not finite; then comes a good batch."""
    tokens, targets = batches(dist.get_rank(), dist.get_world_size())[0]
    results = []
    for zero_class in STAGES:
        model = make("odd")
        zero = zero_class(model, Adam, lr=1e-2)
        train(model, [(tokens, targets)], zero, steps=1)
        before = {"model": zero.model_state_dict(), "optimizer": zero.state_dict()}
        factor = math.nan if dist.get_rank() == 1 else 1.0
        poison = model.scale.register_hook(lambda gradient, factor=factor: gradient * factor)
        cross_entropy(model(tokens), targets).backward()
        poison.remove()
        with pytest.raises(ValueError, match=r"the norm of the gradient is nan.*no parameter was updated"):
            zero.step()
        after = {"model": zero.model_state_dict(), "optimizer": zero.state_dict()}
        moments = [state["optimizer"]["state"]["up.weight"] for state in (before, after)]
        unchanged = largest_difference(before["model"], after["model"]) + largest_difference(*moments)
        train(model, [(tokens, targets)], zero, steps=1)
        results.append((unchanged, zero.model_state_dict()["up.weight"].isfinite().all().item()))
    return results


def test_a_gradient_that_is_not_finite_leaves_everything_as_it_was():
    assert launch(poisoned, ranks=2) == [[(0.0, True)] * 3] * 2


class Branches(nn.Module):
    """Ranks take different branches."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(3))

    def forward(self, x):
        return self.branches[dist.get_rank()](x)


def different_branches(zero_class):
    torch.manual_seed(0)
    model = Branches()
    start = copy.deepcopy(model.state_dict())
    zero = zero_class(model, SGD, lr=1.0, bucket_cap_mb=1e-6)
    model(torch.ones(1, 3)).sum().backward()
    zero.step()
    return [start[name] - value for name, value in zero.model_state_dict().items()]


def test_ranks_that_use_different_parameters():
    [found, _] = launch(lambda: [different_branches(zero_class) for zero_class in (Zero1, Zero2)], ranks=2)
    for first, second, third in found:
        assert torch.allclose(first, torch.full((3, 3), 0.5))  # one of two ranks has a gradient, of ones
        assert torch.allclose(second, torch.full((3, 3), 0.5))
        assert not third.any()


def bad_input():
    messages = []
    for call in (
        lambda: Zero1(nn.Linear(2, 2), torch.optim.LBFGS),
        lambda: ShardedUpdate(nn.Linear(2, 2), torch.optim.Adafactor),
        lambda: Zero2(nn.Linear(2, 2).requires_grad_(False), Adam),
        lambda: Zero1(nn.Linear(2, 2), Adam, parameters=nn.Linear(2, 3).parameters()),
        lambda: Zero1(nn.Linear(2, 2), Adam, bucket_cap_mb=0),
        lambda: Zero1(nn.Linear(2, 2), Adam, max_norm=-1.0),
        lambda: Zero3(nn.Linear(2, 2), Adam, units=[nn.ReLU()]),
        lambda: Zero1(nn.Linear(2, 2), Adam).step(),
        lambda: Zero3(nn.Linear(2, 2), Adam).load_model_state_dict(
            Zero1(nn.Linear(2, 3), Adam).model_state_dict()
        ),
        lambda: Zero1(nn.Linear(2, 2), Adam).load_model_state_dict(
            Zero1(nn.Bilinear(1, 1, 1), Adam).model_state_dict()
        ),
        lambda: Zero1(nn.Linear(2, 2, bias=False), Adam).load_model_state_dict(
            Zero1(nn.Linear(2, 2), Adam).model_state_dict()
        ),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        messages.append(str(caught.value))
    return messages


def test_bad_input_gets_a_sentence():
    expected = (
        "LBFGS does not update each element by itself",
        "use an elementwise optimizer such as Adam, AdamW or SGD",
        "no parameter requires a gradient",
        "a parameter of shape (3, 2) is not one of the model's",
        "bucket_cap_mb must be positive, not 0",
        "max_norm must be positive, or None to clip nothing, not -1.0",
        "units must be modules of the model, not a ReLU outside it",
        "call backward on a loss first",
        "weight must have the model's shape (2, 2), not (3, 2)",
        "weight must have the model's shape (2, 2), not (1, 1, 1)",
        "only one of them has bias",
    )
    for message, words in zip(launch(bad_input, ranks=2)[0], expected, strict=True):
        assert words in message
        assert "\n" not in message


# ---- stage 3: parameters come and go ----------------------------------------------------------------------


class Attends(nn.Module):
    """``MultiheadAttention`` reads its ``out_proj`` without calling it; the block is recomputed in backward."""

    def __init__(self):
        super().__init__()
        self.input = nn.Linear(3, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.output = nn.Linear(6, 3)

    def block(self, x):
        x = self.input(x)
        return self.output(x + self.attention(x, x, x)[0])

    def forward(self, x):
        return x + checkpoint(self.block, x, use_reentrant=False)


def comes_and_goes():
    torch.manual_seed(0)
    plain = Attends().double()
    model = copy.deepcopy(plain)
    zero = Zero3(model, SGD, lr=0.1, units=[model.attention])
    x = torch.randn(4, 5, 3, dtype=torch.float64)

    def gathered():
        return [flat.name for flat in zero.flats if flat.storage.nbytes()]

    def bytes_left():
        return sum(p.numel() for p in model.parameters())

    with torch.no_grad():
        assert torch.allclose(model(x), plain(x))
    assert (gathered(), bytes_left()) == ([], 0)
    with pytest.raises(RuntimeError):
        model(x[..., :2])  # a wrong shape: the forward stops half-way
    assert (gathered(), bytes_left()) == ([], 0)
    alive = []
    model.attention.register_forward_hook(lambda *_: alive.append(gathered()))
    for training in (model, plain):
        training(x).square().mean().backward()
    assert (gathered(), bytes_left()) == ([], 0)
    assert alive[0] == [], "a module is empty again as soon as its own forward is over"
    optimizer = SGD(plain.parameters(), lr=0.1)
    optimizer.step()
    zero.step()
    return largest_difference(zero.model_state_dict(), plain.state_dict())


def test_stage_3_gathers_around_uses_also_when_recomputed_or_stopped():
    assert max(launch(comes_and_goes, ranks=2)) < 1e-12


def use_without_calling():
    model = Attends()
    Zero3(model, SGD, lr=0.1)
    model(torch.randn(1, 2, 3))


def test_a_parameter_used_outside_of_its_module_is_an_error_not_freed_memory():
    with pytest.raises(RankError, match="RuntimeError"):
        launch(use_without_calling, ranks=2)
