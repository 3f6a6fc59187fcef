"""FSDP trains as one device does, and as ``fully_shard`` does to the bit; it holds and sends what was predicted."""

import math
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

from course_lib.data_parallel.fully_sharded import FullyShardedDataParallel, MixedPrecision
from course_lib.data_parallel.zero import Zero1
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.timeline import gather_timeline, record_timeline
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.recompute import apply_recompute
from course_lib.runtime import current_device, launch
from simulator.ledgers.memory import MemoryBreakdown
from simulator.ledgers.traffic import Traffic
from simulator.predict.overlap import fsdp_timeline
from simulator.predict.traffic import calls, fsdp_traffic

STEPS, BATCH, VOCAB = 2, 12, 16
LAYERS = 3


class Odd(nn.Module):
    """Sizes that nothing divides; a scalar; frozen, unused and tied parameters, one tie between two units."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 7)
        self.layers = nn.ModuleList(OddLayer() for _ in range(LAYERS))
        self.layers[2].down.weight = self.layers[0].down.weight
        self.head = nn.Linear(7, VOCAB)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.tensor([0.25]))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, residual={"x": x})
        return self.head(x) * self.scale + self.shift


class OddLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(7, 5), nn.Linear(5, 7, bias=False)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.unused = nn.Linear(3, 1)

    def forward(self, x, residual):
        return self.frozen(self.up(torch.relu(self.down(x)))) + residual["x"]


def make(name="gpt", dtype=torch.float32, **changes):
    torch.manual_seed(0)
    if name == "odd":
        return Odd().to(current_device(), dtype)
    sizes = {"vocab_size": VOCAB, "max_length": 16, "num_layers": LAYERS, "hidden_size": 32}
    return GPT(GPTConfig.tiny(**sizes | changes)).to(current_device(), dtype)


def units_of(model):
    return ["layers.*"] if isinstance(model, Odd) else ["blocks.*"]


def batches(rank=0, ranks=1, steps=STEPS):
    g = torch.Generator().manual_seed(1)
    data = [torch.randint(VOCAB, (2, BATCH, 8), generator=g).to(current_device()) for _ in range(steps)]
    return [tuple(part.chunk(ranks)[rank] for part in batch) for batch in data]


def my_batches(steps=STEPS):
    return batches(dist.get_rank(), dist.get_world_size(), steps)


def groups(model):
    """Two groups with settings of their own; weight decay, so that a gradient of zero is not no gradient."""
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if "up" in name or "mlp" in name], "lr": 3e-2},
        {"params": [p for name, p in named if not ("up" in name or "mlp" in name)], "weight_decay": 0.1},
    ]


def run(model, optimizer, data, norm_of=None, pieces=1):
    """Losses and gradient norms of some steps, a batch taken in ``pieces`` one after the other."""
    losses, norms = [], []
    for batch in data:
        optimizer.zero_grad()
        loss = 0
        for x, y in zip(*(part.chunk(pieces) for part in batch), strict=True):
            part = cross_entropy(model(x), y) / pieces
            part.backward()
            loss += part.item()
        norms.append(float(norm_of(model) if norm_of else clip_grad_norm_(model.parameters(), math.inf)))
        optimizer.step()
        losses.append(loss)
    return losses, norms


def one_device(name, dtype=torch.float64, steps=STEPS, **kwargs):
    model = make(name, dtype)
    out = run(model, AdamW(groups(model), lr=1e-2), batches(steps=steps), **kwargs)
    return *out, model.state_dict()


def sharded(mesh, name, settings, dtype=torch.float64, clip=math.inf, pieces=1):
    model = make(name, dtype)
    fsdp = FullyShardedDataParallel(model, units_of(model), mesh, **settings)
    norm_of = lambda _: fsdp.clip_grad_norm(clip)  # noqa: E731
    losses, norms = run(model, AdamW(groups(model), lr=1e-2), my_batches(), norm_of, pieces)
    losses = torch.tensor(losses, dtype=dtype, device=current_device())
    dist.all_reduce(losses)
    return (losses / dist.get_world_size()).tolist(), norms, fsdp.state_dict()


def assert_close(got, expected, tolerance=1e-6):
    assert got[0] == pytest.approx(expected[0], abs=tolerance)
    assert got[1] == pytest.approx(expected[1], rel=tolerance)
    assert list(got[2]) == list(expected[2])
    for name, value in expected[2].items():
        torch.testing.assert_close(got[2][name], value.cpu(), atol=tolerance, rtol=0, msg=name)


# ---- the same as one device --------------------------------------------------------------------------------

MESHES = [{"dp": 3}, {"copies": 2, "shards": 2}, {"copies": 2, "shards": 1}]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_equals_one_device_whatever_the_sharding_factor(mesh):
    def everything(mesh):
        return [sharded(mesh, name, {}) for name in ("odd", "gpt")]

    results = launch(everything, mesh=mesh)
    for name, *ranks in zip(("odd", "gpt"), *results, strict=True):
        expected = one_device(name)
        for got in ranks:
            assert_close(got, expected)


def test_equals_one_device_in_every_setting():
    settings = [{"reshard_after_forward": r} for r in (True, False)]
    settings += [{"prefetch": n} for n in (0, 2, 9)] + [{"offload": True}]

    def everything(mesh):
        return [sharded(mesh, "odd", s) for s in settings] + [
            sharded(mesh, "odd", {}, pieces=2, clip=math.inf)
        ]

    expected = one_device("odd")
    for got in launch(everything, mesh={"dp": 2})[0]:
        assert_close(got, expected)


def clipped(mesh):
    return sharded(mesh, "odd", {}, clip=0.1)


def test_clips_by_the_norm_over_all_shards():
    norm_of = lambda model: clip_grad_norm_(model.parameters(), 0.1)  # noqa: E731
    expected = one_device("odd", norm_of=norm_of)
    assert max(expected[1]) > 0.5
    assert_close(launch(clipped, mesh={"dp": 2})[1], expected)


def accumulate_without_sync(mesh):
    model = make("odd", torch.float64)
    fsdp = FullyShardedDataParallel(model, units_of(model), mesh)
    optimizer = AdamW(groups(model), lr=1e-2)
    with record_traffic() as log:
        for batch in my_batches():
            optimizer.zero_grad()
            (x, more_x), (y, more_y) = (part.chunk(2) for part in batch)
            with fsdp.no_sync():
                (cross_entropy(model(x), y) / 2).backward()
            assert all(p.grad is None for p in model.parameters())
            (cross_entropy(model(more_x), more_y) / 2).backward()
            optimizer.step()
    reduced = sum(row.calls for row in log.traffic.of("reduce-scatter").rows)
    return reduced, fsdp.state_dict()


def test_accumulation_without_sync_reduces_once_a_step():
    *_, expected = one_device("odd")
    for reduced, state in launch(accumulate_without_sync, mesh={"dp": 2}):
        assert reduced == STEPS * (LAYERS + 1)
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value.cpu(), atol=1e-6, rtol=0)


# ---- the same as PyTorch -----------------------------------------------------------------------------------


def beside_fully_shard(mesh, cases):
    """For each case the losses and gradient norms of all steps, ours and PyTorch's, and the parameters after."""
    warnings.simplefilter("ignore", FutureWarning)
    return [(ours(mesh, **case), official(mesh, **case)) for case in cases]


def ours(mesh, low=False, **settings):
    model = make()
    fsdp = FullyShardedDataParallel(
        model,
        ["blocks.*"],
        mesh,
        precision=MixedPrecision(torch.bfloat16, torch.float32) if low else None,
        **settings,
    )
    optimizer = AdamW(model.parameters(), lr=1e-3)
    return *run(model, optimizer, my_batches(), lambda _: fsdp.clip_grad_norm()), fsdp.state_dict()


def official(mesh, low=False, reshard_after_forward=None, prefetch=1):
    model = make()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if low else MixedPrecisionPolicy()
    settings = {"mesh": mesh, "mp_policy": policy}
    for block in model.blocks:
        fully_shard(block, **settings, reshard_after_forward=reshard_after_forward is not False)
    fully_shard(model, **settings, reshard_after_forward=reshard_after_forward)
    norm = lambda m: clip_grad_norm_(m.parameters(), math.inf).full_tensor()  # noqa: E731
    out = run(model, AdamW(model.parameters(), lr=1e-3), my_batches(), norm)
    return *out, {name: p.full_tensor().cpu() for name, p in model.state_dict().items()}


CASES = [
    {},
    {"low": True},
    {"reshard_after_forward": False},
    {"reshard_after_forward": True, "prefetch": 0},
]


@pytest.mark.parametrize(
    ("mesh", "cases"), [({"dp": 2}, CASES), ({"copies": 2, "shards": 2}, CASES[1:2])], ids=str
)
def test_equals_fully_shard_to_the_bit(mesh, cases):
    """Of two shards: among more, the order of sums depends on where in a message a number lies."""
    for results in launch(beside_fully_shard, mesh=mesh, args=(cases,)):
        for (losses, norms, state), (their_losses, their_norms, their_state) in results:
            assert losses == their_losses
            assert norms == pytest.approx(
                their_norms, rel=1e-6
            )  # their squares are added up in another order
            assert all(torch.equal(state[name], value) for name, value in their_state.items())


# ---- memory ------------------------------------------------------------------------------------------------


def bytes_at_boundaries(mesh, prefetch, dtype):
    """Bytes of parameters and gradients at each boundary of each block; bytes of shards, a block and the root."""
    model = make()
    fsdp = FullyShardedDataParallel(
        model, ["blocks.*"], mesh, prefetch=prefetch, precision=dtype and MixedPrecision(dtype, torch.float32)
    )
    alive, gradients = {}, {}

    def note(when):
        alive[when] = fsdp.memory().parameters
        gradients[when] = fsdp.memory().gradients

    for i, block in enumerate(model.blocks):

        def outside(module, args, i=i):
            x = args[0].clone()  # the output of the block before, but with hooks of its own
            x.register_hook(lambda _: note(f"backward {i} is over"))
            return x

        def before(module, args, i=i):
            note(f"forward {i} begins")

        def after(module, args, output, i=i):
            note(f"forward {i} is over")
            output.register_hook(lambda _: note(f"backward {i} begins"))

        block.register_forward_pre_hook(outside, prepend=True)
        block.register_forward_pre_hook(before)
        block.register_forward_hook(after)
    x, y = my_batches(1)[0]
    alive["before"] = fsdp.memory().parameters
    cross_entropy(model(x), y).backward()
    alive["after"] = fsdp.memory().parameters
    block, *_, root = ([flat.full.nbytes for flat in unit.flats] for unit in fsdp.units)
    shards = sum(flat.shard.nbytes for unit in fsdp.units for flat in unit.flats)
    return alive, shards, sum(block), sum(root), gradients


def test_parameters_alive_are_the_shards_and_the_units_in_use():
    def everything(mesh):
        return [bytes_at_boundaries(mesh, prefetch, None) for prefetch in range(3)]

    for prefetch, (alive, shards, block, root, gradients) in enumerate(launch(everything, mesh={"dp": 2})[1]):
        assert shards == make().config.parameters * 4 / 2
        expected = {"before": shards, "after": shards}
        for i in range(LAYERS):
            ahead, behind = min(prefetch, LAYERS - 1 - i), min(prefetch, i)
            expected |= {
                f"forward {i} begins": shards + root + (1 + ahead) * block,
                f"forward {i} is over": shards + root + ahead * block,
                f"backward {i} begins": shards + root + (1 + behind) * block,
                f"backward {i} is over": shards + root + behind * block,
            }
        assert alive == expected
        norm = 2 * 32 * 4  # the last norm belongs to the root, whose backward goes on
        for i in range(LAYERS):  # one block's gradient is under way, those behind it are shards already
            under_way, done = block + block / 2, (LAYERS - 1 - i) * block / 2
            assert gradients[f"backward {i} is over"] == norm + under_way + done


def test_low_precision_units_take_half_and_shards_do_not():
    alive, shards, block, root, _ = launch(bytes_at_boundaries, mesh={"dp": 2}, args=(0, torch.bfloat16))[0]
    n = make().config.parameters
    assert shards == 4 * n / 2
    assert root + LAYERS * block == 2 * n
    assert alive["after"] == shards
    mine = block // 2  # the shard in bf16, there until the gather is over
    assert shards + root + block <= max(alive.values()) <= shards + root + block + mine


def model_states(mesh):
    model = make()
    fsdp = FullyShardedDataParallel(model, ["blocks.*"], mesh)
    optimizer = AdamW(model.parameters())
    run(model, optimizer, my_batches(1))
    return fsdp.memory(optimizer), len(optimizer.state)


@pytest.mark.parametrize("mesh", [{"dp": 2}, {"copies": 2, "shards": 2}], ids=str)
def test_model_states_to_the_byte(mesh):
    n, factor = make().config.parameters, 2
    measured = launch(model_states, mesh=mesh)
    for memory, pieces in measured:
        assert memory.parameters == memory.gradients == 4 * n / factor
        assert memory.optimizer_states == 8 * n / factor + 4 * pieces  # and a step count for each
    assert isinstance(measured[0][0], MemoryBreakdown)


# ---- traffic -----------------------------------------------------------------------------------------------


def traffic_of_a_step(mesh, name, microbatches=1, **settings):
    """What a step sends, and the elements of the buffers of trainable and of frozen parameters."""
    model = make(name)
    fsdp = FullyShardedDataParallel(model, units_of(model), mesh, **settings)
    x, y = my_batches(1)[0]
    with record_traffic() as log:
        for _ in range(microbatches):
            cross_entropy(model(x), y).backward()
    sizes = {True: [], False: []}
    for unit in fsdp.units:
        for flat in unit.flats:
            sizes[flat.trainable].append(flat.full.numel())
    return Traffic(row for row in log.traffic.rows if row.group_size > 1), sizes


@pytest.mark.parametrize("mesh", [{"dp": 3}, {"copies": 2, "shards": 2}, {"copies": 2, "shards": 1}], ids=str)
def test_traffic_to_the_byte(mesh):
    def everything(mesh):
        return [
            traffic_of_a_step(mesh, "gpt", reshard_after_forward=True),
            traffic_of_a_step(mesh, "gpt", reshard_after_forward=False),
            traffic_of_a_step(mesh, "gpt", microbatches=2, prefetch=0),
            traffic_of_a_step(mesh, "gpt", precision=MixedPrecision(torch.bfloat16, torch.float32)),
        ]

    ranks, shard = math.prod(mesh.values()), mesh.get("shards")
    for results in launch(everything, mesh=mesh):
        units = results[0][1][True]
        assert [traffic for traffic, _ in results] == [
            fsdp_traffic(units, ranks, shard=shard),
            fsdp_traffic(units, ranks, shard=shard, reshard=False),
            fsdp_traffic(units, ranks, shard=shard, keep_last=True, accumulation=2),  # the root is kept
            fsdp_traffic(units, ranks, 2, shard=shard, keep_last=True, gradient_itemsize=4),
        ]


def test_traffic_is_three_models_and_frozen_parameters_are_not_reduced():
    def everything(mesh):
        return [traffic_of_a_step(mesh, name, reshard_after_forward=True) for name in ("gpt", "odd")]

    (traffic, _), (mixed, sizes) = launch(everything, mesh={"dp": 2})[0]
    assert traffic.sent == 3 * (4 * make().config.parameters) * (2 - 1) / 2
    assert len(sizes[False]) == LAYERS
    assert mixed == fsdp_traffic(sizes[True], 2) + calls("all-gather", sizes[False], 4, 2, times=2)


# ---- time --------------------------------------------------------------------------------------------------


def spans_of_a_step(mesh, prefetch):
    model = make(hidden_size=64)
    FullyShardedDataParallel(model, ["blocks.*"], mesh, reshard_after_forward=True, prefetch=prefetch)
    x, y = my_batches(1)[0]
    with record_timeline() as log:
        cross_entropy(model(x), y).backward()
    return gather_timeline(log)


def all_spans(mesh):
    return [spans_of_a_step(mesh, prefetch) for prefetch in range(3)]


def test_spans_follow_the_predicted_order():
    for prefetch, measured in enumerate(launch(all_spans, mesh={"dp": 2})[0]):
        check_spans(measured, prefetch)


def check_spans(measured, prefetch):
    predicted = fsdp_timeline(
        [1] * LAYERS, [2] * LAYERS, [1] * LAYERS, ranks=2, bandwidth=4, prefetch=prefetch
    )
    for lane in ("compute", "communication"):
        for rank in (0, 1):
            names = [span.name.replace("blocks.", "block ") for span in measured.of(rank, lane)]
            names = [name for name in names if not name.endswith("root")]
            assert names == [span.name for span in predicted.of(rank, lane)]
    first = {span.name: span for span in reversed(measured.of(0))}
    overlaps = first["all-gather blocks.1"].start < first["forward blocks.0"].end
    assert overlaps == (prefetch > 0)


# ---- saving ------------------------------------------------------------------------------------------------


def save(fsdp, optimizer):
    return {"model": fsdp.state_dict(), "optimizer": fsdp.optimizer_state_dict(optimizer)}


def load(fsdp, optimizer, state):
    fsdp.load_optimizer_state_dict(optimizer, state["optimizer"])
    fsdp.load_state_dict(state["model"])


def train_and_save(mesh, steps, state=None, name="odd"):
    model = make(name, torch.float64)
    fsdp = FullyShardedDataParallel(model, units_of(model), mesh)
    optimizer = AdamW(groups(model), lr=1e-2)
    if state is not None:
        load(fsdp, optimizer, state)
    run(model, optimizer, my_batches()[steps])
    return save(fsdp, optimizer)


def test_a_state_dict_is_taken_up_by_other_numbers_of_ranks():
    _, _, expected = one_device("odd")
    saved = launch(train_and_save, mesh={"dp": 3}, args=(slice(0, 1),))[2]
    alone = make("odd", torch.float64)
    alone.load_state_dict(saved["model"])  # names and shapes are the model's own
    assert [g["lr"] for g in saved["optimizer"]["param_groups"]] == [3e-2, 1e-2]
    for mesh in ({"dp": 2}, {"copies": 2, "shards": 1}):
        for state in launch(train_and_save, mesh=mesh, args=(slice(1, STEPS), saved)):
            for name, value in expected.items():
                torch.testing.assert_close(state["model"][name], value.cpu(), atol=1e-6, rtol=0)
            assert all(float(s["step"]) == STEPS for s in state["optimizer"]["state"].values())


def go_on_with_zero(mesh, state):
    model = make("gpt", torch.float64)
    zero = Zero1(model, AdamW, parameters=groups(model), lr=1e-2)
    zero.load_model_state_dict(state["model"])
    zero.load_state_dict(state["optimizer"])
    for x, y in my_batches()[1:]:
        cross_entropy(model(x), y).backward()
        zero.step()
    return zero.model_state_dict()


def test_zero_takes_up_the_state():
    *_, expected = one_device("gpt")
    saved = launch(train_and_save, mesh={"dp": 3}, args=(slice(0, 1), None, "gpt"))[0]
    for name, value in launch(go_on_with_zero, mesh={"dp": 2}, args=(saved,))[0].items():
        torch.testing.assert_close(value, expected[name].cpu(), atol=1e-6, rtol=0)


def load_bad_states(mesh):
    model = make("odd")
    fsdp = FullyShardedDataParallel(model, units_of(model), mesh)
    optimizer = AdamW(groups(model), lr=1e-2)
    run(model, optimizer, my_batches(1))
    before = save(fsdp, optimizer)
    complaints = []
    for change in ("name", "shape", "groups"):
        state = {
            "model": {k: v + 1 for k, v in before["model"].items()},
            "optimizer": dict(before["optimizer"]),
        }
        if change == "name":
            state["model"]["stranger"] = state["model"].pop("scale")
        if change == "shape":
            state["model"]["scale"] = torch.zeros(2)
        if change == "groups":
            state["optimizer"]["param_groups"] = state["optimizer"]["param_groups"][::-1]
        with pytest.raises(ValueError) as error:
            load(fsdp, optimizer, state)
        complaints.append(str(error.value))
    after = save(fsdp, optimizer)
    same = all(torch.equal(after["model"][k], v) for k, v in before["model"].items())
    return complaints, same


def test_a_state_of_another_model_is_refused_and_changes_nothing():
    complaints, same = launch(load_bad_states, mesh={"dp": 2})[0]
    assert same
    assert "only one of them has scale, stranger" in complaints[0]
    assert "scale must have the model's shape (), not (2,)" in complaints[1]
    assert "parameter groups" in complaints[2]


# ---- with others -------------------------------------------------------------------------------------------


def recomputed(mesh, how):
    model = make("gpt", torch.float64)
    if how == "ours":
        apply_recompute(model, "full")
    if how == "around the unit":
        for i, block in enumerate(model.blocks):
            model.blocks[i] = Recomputed(block)
    fsdp = FullyShardedDataParallel(
        model, ["blocks.*.block"] if how == "around the unit" else ["blocks.*"], mesh
    )
    out = run(model, SGD(model.parameters(), lr=0.1), my_batches(2))
    return out[0], [unit.name for unit in fsdp.units], fsdp.memory().parameters


class Recomputed(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def test_recomputation_inside_and_around_units():
    def everything(mesh):
        return [recomputed(mesh, how) for how in ("not", "ours", "around the unit")]

    plain, *others = launch(everything, mesh={"dp": 2})[0]
    for losses, _, parameters in others:
        assert losses == pytest.approx(plain[0], abs=1e-12)
        assert parameters == plain[2]


def interrupted(mesh, reshard):
    """Evaluation, a forward that raises, a backward that raises: training goes on as if nothing had been."""
    model = make("gpt", torch.float64)
    fsdp = FullyShardedDataParallel(model, ["blocks.*"], mesh, reshard_after_forward=reshard)
    optimizer = AdamW(groups(model), lr=1e-2)
    losses = []
    for x, y in my_batches():
        optimizer.zero_grad()
        with torch.no_grad():
            losses.append(cross_entropy(model(x), y))
        assert all(0 in p.shape or p.shape[0] == 1 or p.dim() == 1 for p in model.parameters())  # shards
        with pytest.raises(ValueError, match="positions"):
            model(torch.zeros(1, 17, dtype=torch.long, device=x.device))
        hook = model.blocks[1].mlp.down.register_full_backward_hook(stumble)
        with pytest.raises(ArithmeticError):
            model(x).sum().backward()
        hook.remove()
        cross_entropy(model(x), y).backward()
        model(x)  # a forward without a backward: it may keep what the step puts out of date
        optimizer.step()
    return losses, fsdp.state_dict()


def stumble(*_):
    raise ArithmeticError


def test_goes_on_after_evaluation_and_failures():
    def everything(mesh):
        return [interrupted(mesh, reshard) for reshard in (None, False)]

    expected_losses, _, expected = one_device("gpt")
    first, second = launch(everything, mesh={"dp": 2})
    for (losses, state), (others, _) in zip(first, second, strict=True):
        means = [(a + b).item() / 2 for a, b in zip(losses, others, strict=True)]
        assert means == pytest.approx(expected_losses, abs=1e-6)
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value.cpu(), atol=1e-6, rtol=0)


def two_losses(mesh):
    """Two forwards before a backward, and a block that runs twice in each forward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh())).double()
    model.append(model[1])
    twin = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh())).double()
    twin.append(twin[1])
    twin.load_state_dict(model.state_dict())
    model.to(current_device())
    fsdp = FullyShardedDataParallel(model, ["1"], mesh)
    x = torch.randn(4, 6, dtype=torch.float64)
    (twin(x).sum() + twin(2 * x).square().sum()).backward()
    xd = x.to(current_device())
    (model(xd).sum() + model(2 * xd).square().sum()).backward()
    SGD(twin.parameters(), lr=0.1).step()
    SGD(model.parameters(), lr=0.1).step()
    return fsdp.state_dict(), twin.state_dict()


def test_units_that_run_several_times_before_a_backward():
    for state, expected in launch(two_losses, mesh={"dp": 2}):
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value)


def different_seeds(mesh):
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to(current_device())
    model[1].running_mean.fill_(dist.get_rank())
    return FullyShardedDataParallel(model, ["0"], mesh).state_dict()


def test_all_begin_as_the_first_rank():
    first, *others = launch(different_seeds, mesh={"copies": 2, "shards": 2})
    assert first["1.running_mean"].tolist() == [0, 0, 0]
    for state in others:
        assert all(torch.equal(state[name], value) for name, value in first.items())


# ---- bad input ---------------------------------------------------------------------------------------------


def bad_settings(mesh):
    complaints = []
    for model, units, settings in [
        (make(), ["block.*"], {}),
        (make(), ["blocks"], {}),
        (make(), ["blocks.*", "blocks.1.mlp"], {}),
        (make(), lambda name, module: False, {}),
        (make(), ["blocks.*"], {"prefetch": -1}),
    ]:
        before = {name: p for name, p in model.named_parameters()}
        with pytest.raises(ValueError) as error:
            FullyShardedDataParallel(model, units, mesh, **settings)
        assert all(p is before[name] for name, p in model.named_parameters())
        complaints.append(str(error.value))
    return complaints


def test_units_that_cannot_be_say_why():
    complaints = launch(bad_settings, mesh={"dp": 1})[0]
    for said, words in zip(
        complaints,
        [
            "no module of GPT is called 'block.*'; its modules are called embedding, ",
            "unit blocks is a ModuleList, which is never called: name what it holds, blocks.*",
            "blocks.1 and blocks.1.mlp share a MLP",
            "chooses none of embedding, ",
            "prefetch must be 0 or more units, not -1",
        ],
        strict=True,
    ):
        assert words in said


def three_axes(mesh):
    with pytest.raises(ValueError, match=r"axes \('pp', 'dp', 'tp'\)"):
        FullyShardedDataParallel(make(), ["blocks.*"], mesh)


def test_a_mesh_has_one_axis_or_two():
    launch(three_axes, mesh={"pp": 1, "dp": 1, "tp": 1})


def not_finite(mesh):
    model = make()
    fsdp = FullyShardedDataParallel(model, ["blocks.*"], mesh)
    optimizer = AdamW(model.parameters())
    before = fsdp.state_dict()
    x, y = my_batches(1)[0]
    loss = cross_entropy(model(x), y)
    (loss * (math.inf if dist.get_rank() == 1 else 1)).backward()
    with pytest.raises(ValueError, match="not finite on some rank") as error:
        fsdp.clip_grad_norm(1.0)
    optimizer.zero_grad()
    after = fsdp.state_dict()
    return str(error.value), all(torch.equal(after[name], value) for name, value in before.items())


def test_a_loss_that_is_not_finite_is_told_to_every_rank():
    for said, same in launch(not_finite, mesh={"dp": 2}):
        assert "the norm of the gradient is nan" in said or "is inf" in said
        assert same


def offloaded(mesh):
    model = make()
    fsdp = FullyShardedDataParallel(model, ["blocks.*"], mesh, offload=True)
    optimizer = AdamW(model.parameters())
    losses, _ = run(model, optimizer, my_batches(), lambda _: fsdp.clip_grad_norm())
    places = {p.device.type for p in model.parameters()} | {p.grad.device.type for p in model.parameters()}
    places |= {s["exp_avg"].device.type for s in optimizer.state.values()}
    whole = {flat.full.device.type for unit in fsdp.units for flat in unit.flats}
    return losses, places, whole


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_offload_keeps_shards_gradients_and_states_on_the_cpu():
    for losses, places, whole in launch(offloaded, mesh={"dp": 2}):
        assert losses[-1] < losses[0]
        assert places == {"cpu"}
        assert whole == {"cuda"}
