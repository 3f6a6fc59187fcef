"""Methods that average weights instead of gradients: decentralised, local SGD, DiLoCo, asynchronous; and 1-bit Adam."""

import copy
import time

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from course_lib.compression.asynchronous import AsynchronousAveraging
from course_lib.compression.bytegrad import MinMax8
from course_lib.compression.decentralised import (
    Decentralised,
    LowPrecisionDecentralised,
    consensus_distance,
)
from course_lib.compression.diloco import DiLoCo
from course_lib.compression.hook import flatten
from course_lib.compression.local_sgd import LocalSGD
from course_lib.compression.onebit import OneBit, OneBitAdam, Signs
from course_lib.compression.streaming_diloco import StreamingDiLoCo
from course_lib.data_parallel.ddp import DDP
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.adam import Adam
from course_lib.runtime import launch
from simulator.inputs.mixing import pair_matrix, ring_matrix
from simulator.predict.compression_traffic import (
    averaging_traffic,
    decentralised_traffic,
    low_precision_decentralised_traffic,
    one_bit_traffic,
)
from simulator.predict.consensus import second_eigenvalue
from simulator.predict.traffic import ddp_traffic

SMALL = 0.002  # MiB, so that the model below fills several buckets


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(13, 31), nn.Tanh(), nn.Linear(31, 17), nn.Tanh(), nn.Linear(17, 5)
    ).double()


def gradient_step(model, step):
    draws = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    inputs = torch.randn(6, 13, generator=draws).double()
    targets = torch.randint(0, 5, (6,), generator=draws)
    F.cross_entropy(model(inputs), targets).backward()


def train(model, optimizer, steps, first=0):
    """The weights after some steps."""
    for step in range(first, first + steps):
        optimizer.zero_grad()
        gradient_step(model, step)
        optimizer.step()
    return flatten(list(model.parameters()))


def ddp(optimizer, steps=6, **named):
    model = DDP(network(), SMALL, **named)
    return train(model, optimizer(model.parameters()), steps)


def sgd(lr=0.1, **settings):
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, **settings)


def local(build, inner=None, steps=6):
    model = network()
    return train(model, build((inner or sgd())(model.parameters())), steps)


def identities():
    """Pairs of weights that must be equal, in float64."""
    p = dist.get_world_size()
    plain, complete = ddp(sgd()), Decentralised(lambda step: [[1 / p] * p] * p)
    pairs = {
        "complete graph, one step, mean of the ranks": (
            mean(ddp(sgd(), 1, comm_hook=complete)),
            ddp(sgd(), 1),
        ),
        "local SGD, H = 1": (local(lambda inner: LocalSGD(inner, 1)), plain),
        "DiLoCo, H = 1, plain outer step": (local(lambda inner: DiLoCo(inner, 1, 1.0, 0.0)), plain),
        "DiLoCo, H = 1, Nesterov": (
            local(lambda inner: DiLoCo(inner, 1, 0.7, 0.9)),
            ddp(sgd(0.1 * 0.7, momentum=0.9, nesterov=True)),
        ),
        "DiLoCo, plain outer step": (
            local(lambda inner: DiLoCo(inner, 3, 1.0, 0.0), torch.optim.AdamW),
            local(lambda inner: LocalSGD(inner, 3), torch.optim.AdamW),
        ),
        "streaming, one fragment": (
            local(lambda inner: StreamingDiLoCo(inner, every=3), torch.optim.AdamW),
            local(lambda inner: DiLoCo(inner, 3), torch.optim.AdamW),
        ),
        "streaming, all local": (
            local(lambda inner: StreamingDiLoCo(inner, every=3, delay=1, mix=1.0)),
            local(lambda inner: LocalSGD(inner, 100)),
        ),
        "1-bit Adam, warm-up": onebit_warm(),
    }
    model = network()
    optimizer, averager = torch.optim.SGD(model.parameters(), lr=0.1), PeriodicModelAverager(period=3)
    for step in range(6):
        optimizer.zero_grad()
        gradient_step(model, step)
        optimizer.step()
        averager.step = 3 if step % 3 == 2 else 1  # it averages at the multiples of its period
        averager.average_parameters(model.parameters())
    pairs["local SGD and PyTorch"] = (
        local(lambda inner: LocalSGD(inner, 3)),
        flatten(list(model.parameters())),
    )
    return {name: (a - b).abs().max().item() for name, (a, b) in pairs.items()}


def mean(weights):
    dist.all_reduce(weights)
    return weights / dist.get_world_size()


def onebit_warm():
    model = DDP(network(), SMALL, comm_hook=lambda bucket: optimizer.hook(bucket))
    optimizer = OneBitAdam(model.parameters(), warmup_steps=10)
    return train(model, optimizer, 6), ddp(Adam)


def decentralised_step():
    """D-PSGD against its formula, with other weights on every rank: x_i <- sum_j W_ij x_j - lr g_i."""
    p, rank = dist.get_world_size(), dist.get_rank()
    differences = {}
    for name, matrix in {"ring": ring_matrix(p), "pairs": pair_matrix(p, 0, seed=3)}.items():
        model = DDP(network(), SMALL, comm_hook=Decentralised(lambda step, matrix=matrix: matrix))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + rank)
        before = flatten(list(model.parameters()))
        alone = copy.deepcopy(model.module)
        gradient_step(alone, 0)
        everyone = [torch.empty_like(before) for _ in range(p)]
        dist.all_gather(everyone, before)
        expected = sum(share * x for share, x in zip(matrix[rank], everyone, strict=True))
        expected -= 0.1 * flatten([parameter.grad for parameter in alone.parameters()])
        found = train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
        differences[name] = (found - expected).abs().max().item()
    return differences


def agreement():
    """Consensus distances without learning, in full precision and in 8 bits."""
    p, rank = dist.get_world_size(), dist.get_rank()
    matrix, found = ring_matrix(p), {}
    for name in ("exact", "8 bits"):
        hook = Decentralised(lambda step: matrix) if name == "exact" else LowPrecisionDecentralised(matrix)
        model = DDP(network(), SMALL, comm_hook=hook)
        if name == "8 bits":  # replicas are made while all ranks are equal
            train(model, torch.optim.SGD(model.parameters(), lr=0.0), 1)
        torch.manual_seed(rank)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        start = flatten(list(model.parameters()))
        rows = [torch.empty_like(start) for _ in range(p)]
        dist.all_gather(rows, start)
        mean = sum(rows) / p
        measured = [consensus_distance(model.parameters())]
        for step in range(8):
            train(model, torch.optim.SGD(model.parameters(), lr=0.0), 1, step)
            measured.append(consensus_distance(model.parameters()))
        end = flatten(list(model.parameters()))
        dist.all_reduce(end)
        moved = (end / p - mean).abs().max().item()
        found[name] = measured, moved
    return found


def sent_in_steps(wrap, steps):
    model = network()
    optimizer = wrap(model)
    with record_traffic() as log:
        train(model, optimizer, steps)
    return log.traffic


def sent_by_hook(hook, optimizer=None):
    model = DDP(network(), SMALL, comm_hook=hook)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 2)
    with record_traffic() as log:
        train(model, optimizer, 1)
    return log.traffic, [len(bucket.buffer) for bucket in model.buckets]


def ledger():
    p, rank = dist.get_world_size(), dist.get_rank()
    ring, pairs = ring_matrix(p), pair_matrix(p, 2)
    total = sum(parameter.numel() for parameter in network().parameters())
    found = {}
    traffic, sizes = sent_by_hook(Decentralised(lambda step: ring))
    found["ring"] = traffic, decentralised_traffic(sizes, ring, rank, itemsize=8)
    traffic, sizes = sent_by_hook(Decentralised(lambda step: pair_matrix(p, step)))
    found["pairs"] = traffic, decentralised_traffic(sizes, pairs, rank, itemsize=8)
    traffic, sizes = sent_by_hook(LowPrecisionDecentralised(ring))
    found["low precision"] = traffic, low_precision_decentralised_traffic(sizes, ring, rank)
    traffic, sizes = sent_by_hook(OneBit())
    found["one bit"] = traffic, one_bit_traffic(sizes, p)
    for name, wrap, fragments in (
        ("local SGD", lambda m: LocalSGD(sgd()(m.parameters()), 3), [total]),
        ("DiLoCo", lambda m: DiLoCo(sgd()(m.parameters()), 3), [total]),
        (
            "streaming",
            lambda m: StreamingDiLoCo(sgd()(m.parameters()), halves(m), 3, delay=1),
            sizes_of(halves(network())),
        ),
    ):
        traffic = sent_in_steps(wrap, 8)
        found[name] = traffic, averaging_traffic(fragments, p, 3, 8, itemsize=8)
    found["DDP"] = sent_by_hook(None)[0], ddp_traffic(sizes, p, itemsize=8)
    return found


def halves(model):
    parameters = list(model.parameters())
    return [parameters[::2], parameters[1::2]]


def sizes_of(fragments):
    return [sum(parameter.numel() for parameter in fragment) for fragment in fragments]


def one_bit_identity():
    """Signs: the error of the codec, and what is missing after some steps, on both sides."""
    p, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(rank)
    hook, given, true = OneBit(), 0, 0
    for _ in range(5):
        part = torch.randn(101)
        total = part.clone()
        dist.all_reduce(total)
        true = true + total
        bucket = Alone(part)
        hook(bucket).wait()
        given = given + bucket.buffer
    senders = hook.sender.residuals["bucket 0"].clone()  # (p, c)
    dist.all_reduce(senders)
    reducers = torch.empty(p, senders.shape[1])
    dist.all_gather_into_tensor(reducers, hook.reducer.residuals["bucket 0"])
    missing = (senders + reducers).flatten()[:101]
    return (true - given - missing).abs().max().item(), missing.abs().max().item()


class Alone:
    """A bucket without DDP."""

    def __init__(self, buffer):
        self.name, self.buffer, self.group = "bucket 0", buffer, None
        self.parameters = self.views = [buffer]


def asynchronous():
    """The ranks make different numbers of steps, and rank 0 none at all; at the end all have the same weights."""
    model = network()
    optimizer = AsynchronousAveraging(torch.optim.SGD(model.parameters(), lr=0.1))
    start = flatten(list(model.parameters()))
    for step in range(4 * dist.get_rank()):
        optimizer.zero_grad()
        gradient_step(model, step)
        optimizer.step()
        time.sleep(0.002)
    optimizer.finish()
    end = flatten(list(model.parameters()))
    return end, (end - start).abs().max().item(), optimizer.rounds


def everything():
    return {
        "identities": identities(),
        "agreement": agreement(),
        "ledger": ledger(),
        "one bit": one_bit_identity(),
        "asynchronous": asynchronous(),
    }


@pytest.fixture(scope="module")
def found():
    return launch(everything, 3, timeout=600)


def on_a_ring():
    return {"step": decentralised_step(), "agreement": agreement()}


@pytest.fixture(scope="module")
def ring():
    """Of four ranks: among three, all are neighbours."""
    return launch(on_a_ring, 4, timeout=600)


def test_settings_that_give_ddp_or_local_sgd_again(found):
    for rank in found:
        for name, difference in rank["identities"].items():
            assert difference < 1e-12, name


def test_a_decentralised_step_follows_its_formula(ring):
    for rank in ring:
        for name, difference in rank["step"].items():
            assert difference < 1e-12, name


@pytest.mark.parametrize("ranks", ["found", "ring"])
def test_ranks_agree_as_fast_as_the_second_eigenvalue_says(ranks, request):
    ranks = request.getfixturevalue(ranks)
    shrink = second_eigenvalue(ring_matrix(len(ranks)))
    for rank in ranks:
        measured, moved = rank["agreement"]["exact"]
        assert moved < 1e-12, "the mean stays"
        assert len(measured) == 9
        for k, distance in enumerate(measured):
            assert distance <= measured[0] * shrink**k + 1e-9
        if shrink > 1e-9:  # with four ranks; three agree after one step
            assert measured[8] / measured[7] == pytest.approx(shrink, rel=0.05)
        measured, moved = rank["agreement"]["8 bits"]
        assert moved < 1e-6, "the mean stays in 8 bits, too"
        assert measured[8] < 0.01 * measured[0]


def test_traffic_is_predicted_to_the_byte(found):
    for rank in found:
        for name, (measured, predicted) in rank["ledger"].items():
            assert measured == predicted, name


def test_one_bit_residuals_are_the_missing_gradient(found):
    for rank in found:
        difference, size = rank["one bit"]
        assert size > 0.1
        assert difference < 1e-4


def test_asynchronous_ranks_end_with_equal_weights(found):
    for weights, moved, rounds in (rank["asynchronous"] for rank in found):
        assert torch.equal(weights, found[0]["asynchronous"][0])
        assert moved > 1e-3
        assert rounds == found[0]["asynchronous"][2]


def test_codecs_lose_what_their_bounds_say():
    torch.manual_seed(0)
    for columns in (1, 7, 8, 9, 1000):
        rows = torch.randn(3, columns) ** 3
        decoded = MinMax8().decode(MinMax8().encode(rows), columns)
        span = rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)
        assert ((decoded - rows).abs() <= span / 510 * (1 + 1e-4) + 1e-6).all()
        message = Signs().encode(rows)
        assert message.shape == (3, 4 + -(-columns // 8))
        decoded = Signs().decode(message, columns)
        lost = (decoded - rows).square().sum(1)
        exact = rows.square().sum(1) - rows.abs().sum(1) ** 2 / columns
        torch.testing.assert_close(lost, exact, rtol=1e-4, atol=1e-4)
    equal = torch.full((2, 5), 3.25)
    assert torch.equal(MinMax8().decode(MinMax8().encode(equal), 5), equal)
