"""A rank is killed, or misses the end of a sum: the others go on, and the result is that of one device."""

import os
import signal

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.by_hand.elastic import train
from course_lib.observe.by_hand.elastic import those_left
from course_lib.one_device.loop import cross_entropy

STEPS, BATCH, RANKS, GRACE = 6, 10, 3, 8.0  # 10 samples are dealt out unevenly


def new_model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)).double()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def batches():
    draws = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, 7, generator=draws, dtype=torch.float64)
        yield inputs, torch.randint(3, (BATCH,), generator=draws)


def one_device():
    model, losses, norms = new_model(0), [], []
    optimizer = sgd(model.parameters())
    for inputs, targets in batches():
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        norms.append(float(nn.utils.get_total_norm([p.grad for p in model.parameters()])))
        losses.append(loss.item())
        optimizer.step()
    return losses, norms, model.state_dict()


def dies(name, number):
    """Rank 1, while the others wait for it in the third step's sum."""
    if (name, number) == (1, 3):
        os.kill(os.getpid(), signal.SIGKILL)


def nobody_dies(name, number):
    pass


def breaks_after_a_sum(name, number):
    """For rank 1 the third step's sum fails after it has ended for the others, who have taken the step."""
    if (name, number) == (1, 3):
        all_reduce = dist.all_reduce

        def broken(*args, **kwargs):
            dist.all_reduce = all_reduce
            all_reduce(*args, **kwargs)
            raise RuntimeError("connection closed")

        dist.all_reduce = broken


def on_a_rank(store, name, fault):
    model = new_model(name)  # only rank 0 has the weights of one device

    def faulty():
        for number, batch in enumerate(batches(), 1):
            fault(name, number)
            yield batch

    place = {"store": dist.FileStore(store, -1), "name": name, "ranks": RANKS, "grace": GRACE}
    told = [tuple(map(number, step)) for step in train(model, faulty(), sgd, cross_entropy, **place)]
    return told, model.state_dict(), dist.get_world_size()


def number(value):
    return None if value is None else float(value)


@pytest.mark.parametrize(
    ("fault", "left", "missed"), [(nobody_dies, 3, 0), (dies, 2, 0), (breaks_after_a_sum, 3, 1)]
)
def test_those_who_are_left_have_the_state_of_one_device(fault, left, missed):
    losses, norms, state = one_device()
    found = those_left(on_a_rank, RANKS, fault)
    assert [size for _, _, size in found] == [left] * left
    assert sum(step == (None, None) for told, _, _ in found for step in told) == missed
    for told, their_state, _ in found:
        assert len(told) == STEPS
        for (loss, norm), expected in zip(told, zip(losses, norms, strict=True), strict=True):
            if loss is not None:
                assert (loss, norm) == pytest.approx(expected, abs=1e-9)
        for name, tensor in state.items():
            torch.testing.assert_close(their_state[name], tensor, rtol=0, atol=1e-9)
