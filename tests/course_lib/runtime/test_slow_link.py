"""Messages that are delayed on purpose: as late as the link says, and unchanged."""

import time

import pytest
import torch
import torch.distributed as dist

from course_lib.runtime import launch, native
from course_lib.runtime.slow_link import slow_link

SIZE = 100_000  # elements: 400 kB


def timed(call):
    start = time.monotonic()
    call()
    return time.monotonic() - start


def messages():
    p, rank = dist.get_world_size(), dist.get_rank()
    t, out = torch.full((SIZE,), float(rank)), torch.empty(SIZE)
    before = dist.all_reduce
    with slow_link(4e6, latency=0.01):  # 0.1 s for all elements
        seconds = {
            "all-reduce": timed(lambda: dist.all_reduce(t)),
            "all-to-all": timed(lambda: dist.all_to_all_single(out, t)),
            "all-gather": timed(lambda: native.all_gather(torch.empty(p * SIZE), t)),
            "reduce-scatter": timed(lambda: native.reduce_scatter(torch.empty(SIZE // p), t)),
        }
        started = time.monotonic()
        work = dist.all_reduce(t, async_op=True)
        seconds["start"] = time.monotonic() - started
        second = dist.all_reduce(t.clone(), async_op=True)  # waits until the link is free
        work.wait()
        second.wait()
        seconds["two"] = time.monotonic() - started
        operations = [
            dist.P2POp(dist.isend, t, (rank + 1) % p),
            dist.P2POp(dist.irecv, out, (rank - 1) % p),
        ]
        seconds["send"] = timed(lambda: [w.wait() for w in dist.batch_isend_irecv(operations)])
    return seconds, t[0].item(), dist.all_reduce is before


def test_a_message_takes_as_long_as_on_the_link():
    for seconds, value, restored in launch(messages, 2):
        assert value == 2.0, "1, and then twice 1"
        assert restored
        least = {"all-reduce": 0.12, "all-to-all": 0.06, "all-gather": 0.11, "reduce-scatter": 0.06}
        least |= {"two": 0.24, "send": 0.11}
        for name, shortest in least.items():  # how much longer depends on what else the machine does
            assert seconds[name] > shortest - 0.002, name
        assert seconds["start"] < seconds["two"] - 0.1, "the rank goes on while the message travels"


@pytest.mark.parametrize("given", [{"bandwidth": 0}, {"bandwidth": 1e6, "latency": -1}])
def test_an_impossible_link_is_refused(given):
    with pytest.raises(ValueError, match="must be a number"), slow_link(**given):
        pass


def not_slowed(mesh):
    t, node = torch.ones(1), mesh.get_group("gpu")
    with slow_link(1.0, latency=1e6, fast=[node]):
        dist.all_reduce(t, group=node)
        dist.all_reduce(t, group=node, async_op=True).wait()
    return t.item()


def test_groups_with_fast_links_do_not_wait():
    assert launch(not_slowed, mesh={"node": 1, "gpu": 2}, backend="gloo") == [4.0, 4.0]
