"""Every collective and send is counted once, whoever issues it, with the bytes that one can work out by hand."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import launch
from simulator.ledgers.traffic import Traffic, TrafficRow


def plain_collectives():
    """Each collective once, on 5 floats per rank (20 bytes), in a group of 3."""
    x, rank = torch.ones(5), dist.get_rank()
    many = [torch.ones(5) for _ in range(3)]
    with record_traffic() as log:
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        dist.broadcast(x, 0)
        dist.reduce(x, 0)
        dist.all_gather(many, x)
        dist.all_gather_into_tensor(torch.empty(15), x)
        dist.reduce_scatter_tensor(x.clone(), torch.ones(15))
        dist.gather(x, many if rank == 0 else None)
        dist.scatter(x, many if rank == 0 else None)
        dist.barrier()
        # rank r keeps r + 1 of its 6 numbers for itself
        splits = [1, 2, 3]
        dist.all_to_all_single(torch.empty(3 * (rank + 1)), torch.ones(6), [rank + 1] * 3, splits)
    dist.all_reduce(x)  # after the with: not counted
    return log.traffic


def test_plain_collectives():
    for rank, traffic in enumerate(launch(plain_collectives, ranks=3)):
        assert traffic == Traffic(
            [
                TrafficRow("all-reduce", 3, 2, 40, 2 * 40 * 2 / 3),
                TrafficRow("broadcast", 3, 1, 20, 20 * 2 / 3),
                TrafficRow("reduce", 3, 1, 20, 20 * 2 / 3),
                TrafficRow("all-gather", 3, 2, 120, 120 * 2 / 3),
                TrafficRow("reduce-scatter", 3, 1, 60, 60 * 2 / 3),
                TrafficRow("gather", 3, 1, 60, 60 * 2 / 3 / 3),
                TrafficRow("scatter", 3, 1, 60, 60 * 2 / 3 / 3),
                TrafficRow("barrier", 3, 1, 0, 0),
                TrafficRow("all-to-all", 3, 1, 24, 24 - 4 * (rank + 1)),
            ]
        )


def sends():
    """A ring step made of batched sends and receives, then a chain whose first rank only sends."""
    rank, size = dist.get_rank(), dist.get_world_size()
    out, incoming = torch.ones(7, dtype=torch.bfloat16), torch.empty(7, dtype=torch.bfloat16)
    with record_traffic() as log:
        ring = [
            dist.P2POp(dist.isend, out, (rank + 1) % size),
            dist.P2POp(dist.irecv, incoming, (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(ring):
            work.wait()
        if rank > 0:
            dist.recv(incoming, rank - 1)
        if rank < size - 1:
            dist.send(out[:3].contiguous(), rank + 1)
    return [(row.collective, row.group_size, row.payload, row.sent) for row in log.events]


def test_sends_are_counted_where_they_leave():
    ring, chain = ("send", 2, 14, 14), ("send", 2, 6, 6)
    assert launch(sends, ranks=3) == [[ring, chain], [ring, chain], [ring]]


def from_threads():
    with record_traffic() as log:
        thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(4)))
        thread.start()
        thread.join()
        dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(4))
    return log.traffic.calls


def test_other_threads_are_counted_once():
    assert launch(from_threads, ranks=2) == [2, 2]


def subgroups(mesh):
    with record_traffic() as outer:
        dist.all_reduce(torch.ones(2), group=mesh.get_group("dp"))
        with record_traffic() as inner:
            dist.all_reduce(torch.ones(2), group=mesh.get_group("tp"))
    return outer.traffic.rows, inner.traffic.rows


def test_group_size_is_the_groups_and_recordings_nest():
    dp, tp = TrafficRow("all-reduce", 2, 1, 8, 8.0), TrafficRow("all-reduce", 1, 1, 8, 0.0)
    assert launch(subgroups, mesh={"dp": 2, "tp": 1}) == [((tp, dp), (tp,))] * 2


def torch_ddp():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    with record_traffic() as construction:
        ddp = nn.parallel.DistributedDataParallel(model)
    steps = []
    for _ in range(3):
        with record_traffic() as log:
            ddp(torch.randn(3, 4)).sum().backward()
        steps.append(log.traffic)
    with record_traffic() as quiet, ddp.no_sync():
        ddp(torch.randn(3, 4)).sum().backward()
    return construction.events, steps, quiet.traffic


def test_torch_ddp():
    """48 parameters in one bucket (192 bytes); BatchNorm's two means and a counter are broadcast before forward."""
    parameters, buffers = 4 * (16 + 4 + 4 + 4 + 16 + 4), 2 * 4 * 4 + 8
    for construction, steps, quiet in launch(torch_ddp, ranks=2):
        for step in (steps[0], steps[2]):  # the second step also tells the order in which gradients came
            assert step.of("all-reduce") == Traffic([TrafficRow("all-reduce", 2, 1, parameters, parameters)])
            (row,) = step.of("broadcast").rows
            assert (row.payload, row.sent) == (buffers, buffers / 2)
        assert quiet.of("all-reduce").calls == 0
        assert quiet.of("broadcast").rows[0].payload == buffers
        shapes, floats, counter = [row for row in construction if row.collective == "broadcast"]
        assert (
            shapes.payload == 8 * 2 * 8
        )  # each dimension's size and stride as int64, to check that ranks agree
        assert floats.payload + counter.payload == parameters + buffers


def torch_fsdp():
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    with record_traffic() as log:
        model(torch.randn(3, 4)).sum().backward()
    return log.traffic


def test_torch_fsdp():
    """Each of two blocks (64 bytes): gathered for forward and for backward, its gradient scattered once."""
    expected = [TrafficRow("all-gather", 2, 4, 256, 128), TrafficRow("reduce-scatter", 2, 2, 128, 64)]
    assert launch(torch_fsdp, ranks=2) == [Traffic(expected)] * 2


def dtensor(mesh):
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    with record_traffic() as log:
        rows = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])  # a scatter
        product = rows @ rows  # gathers the right factor inside one operator
        product.redistribute(mesh, [Replicate()])
        total = product.sum()
        assert total.placements == (Partial(),)
        total.full_tensor()
    return log.traffic


def test_dtensor_collectives_inside_operators():
    expected = [
        TrafficRow("scatter", 2, 1, 64, 16),
        TrafficRow("all-gather", 2, 2, 128, 64),
        TrafficRow("all-reduce", 2, 1, 4, 4),
    ]
    assert launch(dtensor, mesh={"dp": 2}) == [Traffic(expected)] * 2


def functional():
    from torch.distributed import _functional_collectives as fc

    x, group = torch.ones(4, requires_grad=True), dist.group.WORLD
    with record_traffic() as log:
        fc.all_gather_tensor_autograd(x, 0, group).sum().backward()
        fc.wait_tensor(fc.all_reduce(x.detach(), "sum", group))
        fc.wait_tensor(fc.all_to_all_single(x.detach(), None, None, group))
    return log.traffic.rows


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_functional_collectives_and_their_backward():
    for rows in launch(functional, ranks=2):
        assert TrafficRow("all-gather", 2, 1, 32, 16) in rows
        assert TrafficRow("reduce-scatter", 2, 1, 32, 16) in rows
        assert TrafficRow("all-reduce", 2, 1, 16, 16) in rows
        assert TrafficRow("all-to-all", 2, 1, 16, 8) in rows


def test_an_operator_it_does_not_know_is_not_passed_over():
    def work():
        import torch  # the module's own torch would be sent along, and torch.ops cannot be pickled

        library = torch.library.Library("c10d", "FRAGMENT")
        library.define("shout(Tensor x) -> Tensor")
        library.impl("shout", lambda x: x.clone(), "CompositeExplicitAutograd")
        with record_traffic(), pytest.raises(NotImplementedError, match="c10d::shout"):
            torch.ops.c10d.shout(torch.ones(2))
        return True

    assert launch(work, ranks=1) == [True]


def test_the_process_group_is_as_before_afterwards():
    before = {name: getattr(dist.ProcessGroup, name) for name in dir(dist.ProcessGroup)}
    with record_traffic():
        assert dist.ProcessGroup.allreduce is not before["allreduce"]
    assert {name: getattr(dist.ProcessGroup, name) for name in dir(dist.ProcessGroup)} == before


def send_along_each_axis(mesh):
    world = torch.ones(3)
    with record_traffic() as log:
        dist.all_reduce(torch.ones(10), group=mesh["tp"].get_group())
        dist.all_reduce(torch.ones(20), group=mesh["dp"].get_group())
        dist.all_reduce(world)
    return {axis: traffic.sent for axis, traffic in log.along(mesh).items()}


def test_traffic_is_told_apart_by_axis_where_groups_have_one_size():
    for sent in launch(send_along_each_axis, mesh={"pp": 1, "dp": 2, "tp": 2}):
        assert sent == {"all": 2 * 3 / 4 * 12, "pp": 0, "dp": 80, "tp": 40}
