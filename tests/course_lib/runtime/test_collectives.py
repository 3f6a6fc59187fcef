"""Our collectives against torch.distributed's, and their traffic against the closed forms."""

import math

import pytest
import torch
import torch.distributed as dist

from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import collectives as ours
from course_lib.runtime import current_device, launch
from simulator.inputs.chunks import chunk_sizes
from simulator.predict import collective_traffic as closed

WORLDS = [2, 3, 4, 5]
SHAPES = [(12,), (7,), (1,), (5, 3), (2, 3, 4), (0,)]  # dividing, not dividing, fewer rows than ranks, empty
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


def sample(shape, dtype, rank, seed=0):
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 5, shape, generator=generator).to(
        dtype
    )  # small whole numbers: exact in any order


def strided(t):
    """The same values, not contiguous."""
    return torch.stack([t, t + 1], dim=-1)[..., 0]


CASES = [(shape, DTYPES[0]) for shape in SHAPES] + [(SHAPES[1], dtype) for dtype in DTYPES[1:]]


def inputs(rank):
    for seed, (shape, dtype) in enumerate(CASES):
        t = sample(shape, dtype, rank, seed)
        yield t
        yield strided(t)


def against_torch(algorithms):
    rank, p = dist.get_rank(), dist.get_world_size()
    torch_ops = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN,
                 "product": dist.ReduceOp.PRODUCT}  # fmt: skip
    cases = 0
    for t in inputs(rank):
        before = t.clone()
        whole = [torch.empty_like(t.contiguous()) for _ in range(p)]
        dist.all_gather(whole, t.contiguous())
        chunks = chunk_sizes(t.shape[0], p)
        for root in {0, p - 1}:
            assert torch.equal(ours.broadcast(t, root), whole[root])
            gathered = ours.gather(t, root)
            assert torch.equal(gathered, torch.cat(whole)) if rank == root else gathered is None
            assert torch.equal(ours.scatter(t, root), whole[root].split(chunks)[rank])
        assert torch.equal(ours.all_gather(t), torch.cat(whole))
        mine = t.split(chunks)[rank]
        assert torch.equal(
            ours.all_gather(mine, rows=chunks), torch.cat([w.split(chunks)[r] for r, w in enumerate(whole)])
        )
        assert torch.equal(ours.all_to_all(t), torch.cat([w.split(chunks)[rank] for w in whole]))
        for op, torch_op in torch_ops.items():
            expected = t.contiguous().clone()
            dist.all_reduce(expected, torch_op)
            for algorithm in algorithms:
                assert torch.equal(ours.all_reduce(t, op, algorithm), expected), (
                    op,
                    algorithm,
                    t.shape,
                    t.dtype,
                )
            assert torch.equal(ours.reduce_scatter(t, op), expected.split(chunks)[rank])
            reduced = ours.reduce(t, p - 1, op)
            assert torch.equal(reduced, expected) if rank == p - 1 else reduced is None
        assert torch.equal(t, before), "the input changed"
        cases += 1
    return cases


@pytest.mark.parametrize("ranks", [1, *WORLDS])
def test_equal_to_torch_distributed(ranks):
    assert launch(against_torch, ranks, args=(list(ours.ALL_REDUCE),)) == [2 * len(CASES)] * ranks


def floats():
    """Real numbers: equal within rounding, and bitwise the same on every rank."""
    t = torch.randn(1001, generator=torch.Generator().manual_seed(dist.get_rank()))
    expected = t.clone()
    dist.all_reduce(expected, dist.ReduceOp.AVG)
    results = {name: ours.all_reduce(t, "mean", name) for name in ours.ALL_REDUCE}
    for result in results.values():
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)
    return results


def test_mean_of_floats_is_the_same_bits_on_every_rank():
    per_rank = launch(floats, 4)
    for name in ours.ALL_REDUCE:
        assert all(torch.equal(result[name], per_rank[0][name]) for result in per_rank)


def in_subgroups(mesh):
    """Two groups of two: each reduces among itself, roots counted within the group."""
    group = mesh.get_group("tp")
    t = torch.tensor([float(dist.get_rank())])
    return (
        ours.all_reduce(t, group=group).item(),
        ours.broadcast(t, src=1, group=group).item(),
        ours.all_gather(t, group=group).tolist(),
    )


def test_subgroups():
    assert launch(in_subgroups, mesh={"dp": 2, "tp": 2}) == [
        (1.0, 1.0, [0.0, 1.0]),
        (1.0, 1.0, [0.0, 1.0]),
        (5.0, 3.0, [2.0, 3.0]),
        (5.0, 3.0, [2.0, 3.0]),
    ]


def sent_by_each(elements):
    t = torch.ones(elements, dtype=torch.float32)
    p = dist.get_world_size()
    mine = torch.ones(chunk_sizes(elements, p)[dist.get_rank()])
    calls = {
        "broadcast": lambda: ours.broadcast(t, 1),
        "reduce": lambda: ours.reduce(t, 1),
        "scatter": lambda: ours.scatter(t, 1),
        "gather": lambda: ours.gather(mine, 1, rows=chunk_sizes(elements, p)),
        "all-gather": lambda: ours.all_gather(mine, rows=chunk_sizes(elements, p)),
        "reduce-scatter": lambda: ours.reduce_scatter(t),
        "all-reduce naive": lambda: ours.all_reduce(t, algorithm="naive"),
        "all-reduce tree": lambda: ours.all_reduce(t, algorithm="tree"),
        "all-reduce ring": lambda: ours.all_reduce(t, algorithm="ring"),
        "all-to-all": lambda: ours.all_to_all(t),
        "barrier": lambda: ours.barrier(),
    }
    sent = {}
    for name, call in calls.items():
        with record_traffic() as log:
            call()
        assert {row.collective for row in log.traffic.rows} <= {"send"}, "only point-to-point messages"
        sent[name] = log.traffic.sent
    return sent


@pytest.mark.parametrize("ranks", WORLDS)
def test_traffic_to_the_byte(ranks):
    sizes = 12, 7, 60, 2
    for elements, *per_rank in zip(sizes, *launch(lambda: [*map(sent_by_each, sizes)], ranks), strict=True):
        check_traffic(elements, per_rank)


def check_traffic(elements, per_rank):
    n, p = 4 * elements, len(per_rank)
    chunks = [4 * c for c in chunk_sizes(elements, p)]
    rounds = math.ceil(math.log2(p))
    for rank, sent in enumerate(per_rank):
        assert sent["all-gather"] == n - chunks[(rank + 1) % p]
        assert sent["reduce-scatter"] == n - chunks[rank]
        assert sent["all-reduce ring"] == 2 * n - chunks[rank] - chunks[(rank + 1) % p]
        assert sent["all-to-all"] == n - chunks[rank]
        assert sent["all-reduce naive"] == (n * (p - 1) if rank == 0 else n)
        assert sent["scatter"] == (n - chunks[1] if rank == 1 else 0)
        assert sent["gather"] == (0 if rank == 1 else chunks[rank])
        assert sent["reduce"] == (0 if rank == 1 else n)
        assert sent["barrier"] == rounds
    # The tree: everyone but the root hears the tensor once, so p-1 messages in all.
    assert sum(sent["broadcast"] for sent in per_rank) == n * (p - 1)
    assert sum(sent["all-reduce tree"] for sent in per_rank) == 2 * n * (p - 1)
    if elements % p == 0:
        for collective in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
            measured = per_rank[0].get(collective, per_rank[0].get(f"{collective} ring"))
            assert measured == closed.sent_bytes(collective, n, p)


def complaints():
    t = torch.ones(3)
    said = []
    for call in (
        lambda: ours.broadcast(t, src=2),
        lambda: ours.all_reduce(t, algorithm="star"),
        lambda: ours.all_reduce(t, op="median"),
        lambda: ours.all_reduce(t.long(), op="mean"),
        lambda: ours.scatter(torch.tensor(1.0)),
        lambda: ours.all_gather(t, rows=[1, 2, 3]),
    ):
        with pytest.raises(ValueError) as error:
            call()
        said.append(str(error.value))
    return said


def test_bad_input_gets_a_sentence():
    said = launch(complaints, 2)[0]
    words = ["rank 2", "'star'", "'median'", "int64", "reshape", "one number a rank"]
    for sentence, word in zip(said, words, strict=True):
        assert word in sentence


def both_ways(megabytes):
    """Both ranks exchange with each other; more than any buffer in between could hold."""
    rank = dist.get_rank()
    t = torch.full((megabytes * 2**18,), float(rank), device=current_device())
    other = ours.exchange(t, 1 - rank, t, 1 - rank)
    nothing = ours.exchange(t[:0], 1 - rank, t[:0], 1 - rank)
    return other.unique().tolist(), nothing.numel(), other.device.type


def test_two_ranks_exchange_with_each_other():
    assert launch(both_ways, 2, args=(64,), backend="gloo", timeout=60) == [
        ([1.0], 0, current_device().type),
        ([0.0], 0, current_device().type),
    ]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs a GPU for each rank")
@pytest.mark.parametrize("ranks", range(2, max(3, torch.cuda.device_count() + 1)))
def test_equal_to_torch_distributed_under_nccl(ranks):
    def on_gpus():
        t = torch.arange(7.0, device=current_device()) + dist.get_rank()
        expected = t.clone()
        dist.all_reduce(expected)
        assert torch.equal(ours.all_reduce(t), expected)
        whole = [torch.empty_like(t) for _ in range(dist.get_world_size())]
        dist.all_gather(whole, t)
        assert torch.equal(ours.all_gather(t), torch.cat(whole))
        return dist.get_backend()

    assert all("nccl" in backend for backend in launch(on_gpus, ranks, timeout=60))
    if ranks == 2:
        assert [result[0] for result in launch(both_ways, 2, args=(64,), timeout=60)] == [[1.0], [0.0]]
