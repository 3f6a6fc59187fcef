"""Two levels give the average of all ranks, the network carries one message for each node, and sizes are tried."""

import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from course_lib.compression.bucket_size import fastest
from course_lib.compression.bytegrad import ByteGrad
from course_lib.compression.hierarchical import Hierarchical
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import launch
from course_lib.runtime.slow_link import slow_link
from simulator.predict.collective_traffic import sent_bytes

SIZE = 1001  # odd, so that no chunk is even


def exchanged(hook):
    """The sum of all ranks' parts, what this rank sent, and how long it took."""
    part = torch.randn(SIZE, generator=torch.Generator().manual_seed(dist.get_rank()))
    bucket = SimpleNamespace(name="bucket 0", parameters=[], buffer=part, views=[], group=None)
    with record_traffic() as log:
        start = time.monotonic()
        hook(bucket).wait()
        seconds = time.monotonic() - start
    return part, {(row.collective, row.group_size): row.sent for row in log.traffic.rows}, seconds


def both_levels(mesh):
    node, across = mesh.get_group("gpu"), mesh.get_group("node")
    with slow_link(1e9, latency=0.1, fast=[node]):
        plain = exchanged(Hierarchical(node, across))
    return plain, exchanged(Hierarchical(node, across, ByteGrad()))


def test_the_average_of_all_ranks_and_one_message_a_node():
    parts = [torch.randn(SIZE, generator=torch.Generator().manual_seed(rank)) for rank in range(6)]
    whole, found = sum(parts), launch(both_levels, mesh={"node": 2, "gpu": 3}, backend="gloo")
    for rank, ((plain, _, seconds), (coded, _, _)) in enumerate(found):
        torch.testing.assert_close(plain, whole)
        error = (coded - whole).abs().max().item()
        assert 0 < error < 3 * (whole.max() - whole.min()).item() / 255
        assert seconds > 0.19 or rank % 3, "between two nodes, two latencies of 0.1 s"


def test_only_a_nodes_first_rank_sends_over_the_network():
    for rank, ((_, sent, _), _) in enumerate(launch(both_levels, mesh={"node": 2, "gpu": 3}, backend="gloo")):
        # groups of two: one rank of each node
        network = {key: size for key, size in sent.items() if 2 in key}
        expected = {("all-reduce", 2): sent_bytes("all-reduce", 4 * SIZE, 2)} if rank % 3 == 0 else {}
        assert network == expected


def tuned():
    noise = iter([0.0, 0.9, 0.9, 0.9, 0.0, 0.0] if dist.get_rank() else [0.0] * 6)
    return fastest([1, 4, 16], lambda size: abs(size - 4) + 1 + next(noise), rounds=2)


def test_the_best_size_is_kept_and_all_ranks_agree():
    assert [best for best, _ in launch(tuned, 2, backend="gloo")] == [4, 4]
    for _, seconds in launch(tuned, 2, backend="gloo"):
        assert seconds == pytest.approx({1: 4, 4: 1, 16: 13}), "noise only adds, so the shortest counts"


def test_nothing_to_try_is_refused():
    with pytest.raises(ValueError, match="0 sizes"):
        fastest([], time.monotonic)
