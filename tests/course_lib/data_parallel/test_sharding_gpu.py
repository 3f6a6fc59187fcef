"""ZeRO and FSDP on GPUs beside PyTorch's: under NCCL where there are several, and on one GPU that ranks share."""

import math
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from course_lib.data_parallel.fully_sharded import FullyShardedDataParallel, MixedPrecision
from course_lib.data_parallel.zero import Zero1, Zero2
from course_lib.data_parallel.zero3 import Zero3
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import current_device, launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BACKENDS = [
    pytest.param("gloo", id="one shared GPU or more, gloo"),
    pytest.param(
        "nccl",
        id="a GPU for each rank, nccl",
        marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    ),
]
STEPS, VOCAB = 4, 32
CONFIG = GPTConfig.tiny(vocab_size=VOCAB, max_length=16, num_layers=3, hidden_size=64)


def make():
    torch.manual_seed(0)
    return GPT(CONFIG).to(current_device())


def my_batch(step):
    g = torch.Generator().manual_seed(step)
    data = torch.randint(VOCAB, (2, 4 * dist.get_world_size(), 16), generator=g).to(current_device())
    return tuple(part.chunk(dist.get_world_size())[dist.get_rank()] for part in data)


def train(model, optimizer, norm_of=lambda: 0.0):
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        tokens, targets = my_batch(step)
        loss = cross_entropy(model(tokens).float(), targets)
        loss.backward()
        norms.append(float(norm_of()))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def furthest(state, other):
    assert state.keys() == other.keys()
    return max(float((state[name].cpu().float() - other[name].cpu().float()).abs().max()) for name in other)


def zero_beside_torch():
    theirs = make()
    official = ZeroRedundancyOptimizer(theirs.parameters(), AdamW, lr=1e-3)
    expected, _ = train(DistributedDataParallel(theirs), official)
    results = []
    for kind in (Zero1, Zero2, Zero3):
        model = make()
        zero = kind(model, AdamW, lr=1e-3, bucket_cap_mb=0.05)
        losses, _ = train(model, zero)
        far = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
        results.append((far, furthest(zero.model_state_dict(), theirs.state_dict())))
    return results


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_stage_equals_zero_redundancy_optimizer(backend):
    for results in launch(zero_beside_torch, ranks=2, backend=backend):
        for losses, parameters in results:
            assert losses < 1e-4
            assert parameters < 1e-4


def fsdp_beside_torch(mesh, low, offload):
    warnings.simplefilter("ignore", FutureWarning)
    policy = (torch.bfloat16, torch.float32) if low else (None, None)
    ours = FullyShardedDataParallel(
        make(), ["blocks.*"], mesh, precision=MixedPrecision(*policy), offload=offload
    )
    theirs = make()
    for block in theirs.blocks:
        fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(*policy))
    fully_shard(theirs, mesh=mesh, mp_policy=MixedPrecisionPolicy(*policy))
    losses, norms = train(ours, AdamW(ours.parameters(), lr=1e-3), lambda: ours.clip_grad_norm(1.0))
    norm_of = lambda: clip_grad_norm_(theirs.parameters(), 1.0).full_tensor()  # noqa: E731
    their_losses, their_norms = train(theirs, AdamW(theirs.parameters(), lr=1e-3), norm_of)
    full = {name: p.full_tensor() for name, p in theirs.state_dict().items()}
    places = {p.device.type for p in ours.parameters()}
    return losses, norms, their_losses, their_norms, furthest(ours.state_dict(), full), places


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("low", "offload"), [(False, False), (True, False), (False, True)])
def test_fsdp_equals_fully_shard(backend, low, offload):
    tolerance = 2e-2 if low else 1e-4
    results = launch(fsdp_beside_torch, mesh={"dp": 2}, args=(low, offload), backend=backend)
    for losses, norms, their_losses, their_norms, far, places in results:
        assert losses == pytest.approx(their_losses, abs=tolerance)
        assert norms == pytest.approx(their_norms, rel=tolerance)
        assert all(math.isfinite(norm) for norm in norms)
        assert far < (
            5e-3 if low else 1e-3
        )  # Adam divides by small numbers: a step may differ by its learning rate
        assert places == {"cpu" if offload else "cuda"}


def parameters_between_uses(mesh):
    model = FullyShardedDataParallel(make(), ["blocks.*"], mesh)
    tokens, targets = my_batch(0)
    cross_entropy(model(tokens), targets).backward()
    torch.cuda.synchronize()
    return model.memory().parameters, sum(flat.shard.nbytes for flat in model.flats)


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_shards_are_left_after_backward(backend):
    for alive, shards in launch(parameters_between_uses, mesh={"dp": 2}, backend=backend):
        assert alive == shards == pytest.approx(4 * CONFIG.parameters / 2, rel=0.01)
