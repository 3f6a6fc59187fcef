"""Compressed gradients through DDP's hook: against plain DDP, PyTorch's PowerSGD, the bounds, and the ledger."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from course_lib.compression.bytegrad import ByteGrad
from course_lib.compression.hook import AllReduce
from course_lib.compression.powersgd import PowerSGD
from course_lib.compression.sparsify import RandomK, TopK
from course_lib.data_parallel.ddp import DDP
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import launch
from simulator.predict.compression_traffic import (
    bytegrad_traffic,
    power_sgd_traffic,
    random_k_traffic,
    top_k_traffic,
)
from simulator.predict.traffic import ddp_traffic

SMALL = 0.002  # MiB, so that the model below fills several buckets


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(13, 31), nn.Tanh(), nn.Linear(31, 17), nn.Tanh(), nn.Linear(17, 5))


def data(step):
    """Other samples on every rank and in every step."""
    draws = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(6, 13, generator=draws), torch.randint(0, 5, (6,), generator=draws)


def gradients(wrapped, steps, learn=0.1):
    """The flat gradient that the optimizer got in every step, and the traffic of the last backward pass."""
    optimizer, flat = torch.optim.SGD(wrapped.parameters(), lr=learn), []
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = data(step)
        loss = F.cross_entropy(wrapped(inputs), targets)
        with record_traffic() as log:
            loss.backward()
        flat.append(torch.cat([p.grad.flatten() for p in wrapped.parameters()]).clone())
        optimizer.step()
    return torch.stack(flat), log.traffic


def hooks():
    return {
        "off": AllReduce(),
        "bytegrad": ByteGrad(),
        "top-k": TopK(0.05),
        "random-k": RandomK(0.05),
        "power": PowerSGD(2, min_compression=1.1),
    }


def ledger():
    """Measured and predicted traffic of every hook; the sizes are odd, and no bucket is divided by 3 ranks."""
    p = dist.get_world_size()
    found = {}
    for name, hook in hooks().items():
        model = DDP(network(), SMALL, comm_hook=hook)
        sizes = [len(bucket.buffer) for bucket in model.buckets]
        shapes = [[tuple(v.shape) for v in bucket.views] for bucket in model.buckets]
        predicted = {
            "off": ddp_traffic(sizes, p),
            "bytegrad": bytegrad_traffic(sizes, p),
            "top-k": top_k_traffic(sizes, p, 0.05),
            "random-k": random_k_traffic(sizes, p, 0.05),
            "power": power_sgd_traffic(shapes, p, 2, min_compression=1.1),
        }
        found[name] = gradients(model, 2)[1], predicted[name], len(sizes)
    return found


def residual_sum(hook):
    """What is missing on all ranks together, as one vector in the order of the buckets."""
    total = torch.cat([hook.feedback.residuals[name] for name in sorted(hook.feedback.residuals)])
    dist.all_reduce(total)
    return total


def feedback_identity():
    """Without learning every step's true average is known, so what is missing can be counted."""
    missing = {}
    plain = gradients(DDP(network(), SMALL), 4, learn=0)[0].sum(0)
    for name in ("top-k", "random-k", "power"):
        hook = hooks()[name]
        model = DDP(network(), SMALL, comm_hook=hook)
        given = gradients(model, 4, learn=0)[0].sum(0)
        order = [p for bucket in model.buckets for p in bucket.parameters]
        places = dict(
            zip(
                model.parameters(),
                (plain - given).split([p.numel() for p in model.parameters()]),
                strict=True,
            )
        )
        expected = torch.cat([places[p] for p in order])
        missing[name] = (residual_sum(hook) - expected).abs().max().item(), expected.abs().max().item()
    return missing


def against_plain():
    """Each hook's gradients beside plain DDP's, in a first step from the same weights."""
    plain = gradients(DDP(network(), SMALL), 3)[0]
    found = {"plain": plain}
    for name, hook in {
        "off": AllReduce(),
        "warm": TopK(0.01, warmup_steps=3),
        "all": TopK(1.0),
        "random": RandomK(1.0),
    }.items():
        found[name] = gradients(DDP(network(), SMALL, comm_hook=hook), 3)[0]
    return found


def power_against_torch():
    draw = int(np.random.RandomState(0).randint(1_000_000_000))
    differences = {}
    for r in (1, 4):
        ours = PowerSGD(r, min_compression=1.1, warmup_steps=2, seed=draw)
        state = PowerSGDState(None, r, start_powerSGD_iter=2, min_compression_rate=1.1)
        official = DistributedDataParallel(network().double(), bucket_cap_mb=1000)
        official.register_comm_hook(state, powerSGD_hook)
        mine = DDP(network().double(), 1000, comm_hook=ours)
        a, b = gradients_double(mine, 4), gradients_double(official, 4)
        differences[r] = (a - b).abs().max().item(), b.abs().max().item()
    return differences


def gradients_double(wrapped, steps):
    optimizer, flat = torch.optim.SGD(wrapped.parameters(), lr=0.1), []
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = data(step)
        F.cross_entropy(wrapped(inputs.double()), targets).backward()
        flat.append(torch.cat([p.grad.flatten() for p in wrapped.parameters()]).clone())
        optimizer.step()
    return torch.stack(flat)


def bytegrad_bound():
    """Measured error of each element, and the bound: half a step of every rank's row and of the row of sums."""
    p, rank = dist.get_world_size(), dist.get_rank()
    worst = []
    for n in (1, 2, 5, 1001):
        draws = torch.Generator().manual_seed(n)
        parts = torch.randn(p, n, generator=draws) ** 3
        bucket = Alone(parts[rank].clone())
        ByteGrad()(bucket).wait()
        columns = -(-n // p)
        padded = torch.cat([parts, parts[:, -1:].expand(p, p * columns - n)], 1).view(p, p, columns)
        half = (padded.amax(2) - padded.amin(2)) / 510  # (source, row)
        sums = padded.sum(0)
        second = (sums.amax(1) - sums.amin(1) + 2 * half.sum(0)) / 510
        bound = (half.sum(0) + second)[:, None].expand(p, columns).flatten()[:n] + 1e-5
        error = (bucket.buffer - parts.sum(0)).abs()
        worst.append((error / bound).max().item())
    return worst


class Alone:
    """A bucket without DDP."""

    def __init__(self, buffer):
        self.name, self.buffer, self.group = "bucket 0", buffer, None
        self.parameters = self.views = [buffer]


def everything():
    return {
        "ledger": ledger(),
        "missing": feedback_identity(),
        "plain": against_plain(),
        "power": power_against_torch(),
        "bound": bytegrad_bound(),
    }


@pytest.fixture(scope="module")
def found():
    return launch(everything, 3, timeout=600)


def test_traffic_is_predicted_to_the_byte(found):
    for rank in found:
        for name, (measured, predicted, buckets) in rank["ledger"].items():
            assert buckets > 1
            assert predicted.sent > 0
            assert measured == predicted, name


def test_switched_off_it_is_ddp_bit_for_bit(found):
    for rank in found:
        runs = rank["plain"]
        for name in ("off", "warm"):
            assert torch.equal(runs[name], runs["plain"]), name
        for name in ("all", "random"):  # everything is sent, but added up in another order
            torch.testing.assert_close(runs[name], runs["plain"], rtol=1e-5, atol=1e-7)
        assert torch.equal(runs["all"], found[0]["plain"]["all"]), "all ranks get the same"


def test_residuals_add_up_to_the_missing_gradient(found):
    for rank in found:
        for name, (difference, size) in rank["missing"].items():
            assert size > 1e-3, "something was left out"
            assert difference < 1e-6, name


def test_power_sgd_equals_pytorch(found):
    for rank in found:
        for r, (difference, size) in rank["power"].items():
            assert difference < 1e-12 * max(size, 1), r


def test_bytegrad_is_as_exact_as_its_steps(found):
    for rank in found:
        assert max(rank["bound"]) <= 1
        assert max(rank["bound"]) > 0.1, "and the bound is not empty"
