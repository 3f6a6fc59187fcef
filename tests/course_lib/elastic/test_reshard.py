"""Flat shards for another number of ranks; checkpoints beside training; a lost rank's shard from a peer's memory."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.elastic.checkpoints import Checkpoints, PeerMemory
from course_lib.elastic.reshard import reshard_flat
from course_lib.runtime import launch


@pytest.mark.parametrize("numel", [0, 1, 12, 13, 100])
def test_a_flat_shard_for_any_number_of_ranks(numel):
    full = torch.arange(1.0, numel + 1)

    def shards(ranks):
        size = -(-numel // ranks)
        return list(nn.functional.pad(full, (0, size * ranks - numel)).view(ranks, size))

    for old in (1, 2, 3, 4, 7):
        for new in (1, 2, 3, 4, 7):
            found = reshard_flat(shards(old), numel, new)
            assert all(torch.equal(a, b) for a, b in zip(found, shards(new), strict=True))
    with pytest.raises(ValueError, match="ranks is 0"):
        reshard_flat(shards(2), numel, 0)
    with pytest.raises(ValueError, match="2 shards of 3 elements have 2 each, not"):
        reshard_flat([torch.zeros(2), torch.zeros(1)], 3, 2)


def test_checkpoints_synchronous_and_asynchronous(tmp_path, monkeypatch):
    written = Checkpoints(tmp_path, keep=2)
    with pytest.raises(ValueError, match="none of any step"):
        written.load()
    state = {"w": torch.zeros(5), "step": 1}
    written.save(state, 1)
    allowed, slow = threading.Event(), Checkpoints._write

    def write(self, state, step):
        allowed.wait(100)
        slow(self, state, step)

    monkeypatch.setattr(Checkpoints, "_write", write)
    state["w"] += 1
    written.save_async(state, 2)
    state["w"] += 1  # the next step runs while the copy is not yet written
    assert written.steps() == [1]
    allowed.set()
    written.wait()
    assert torch.equal(written.load()["w"], torch.ones(5))
    written.save(state, 3)
    assert written.steps() == [2, 3]
    assert torch.equal(written.load()["w"], torch.full((5,), 2.0))
    assert torch.equal(written.load(2)["w"], torch.ones(5))
    (newest,) = tmp_path.glob("step-00000003-*/state.pt")
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.warns(
        UserWarning, match=r"skipped: .*step-00000003-.* is damaged: state.pt has 100 bytes, and"
    ):
        assert torch.equal(written.load()["w"], torch.ones(5)), "the one before it"
    assert written.steps() == [2]
    with pytest.raises(ValueError, match=r"state\.pt has 100 bytes"):
        written.load(3)

    def fail(self, state, step):
        raise OSError("the disk is full")

    monkeypatch.setattr(Checkpoints, "_write", fail)
    written.save_async(state, 4)
    with pytest.raises(OSError, match="the disk is full"):
        written.wait()


def peers():
    rank, memory = dist.get_rank(), PeerMemory()
    for step in (10, 20, 30):
        memory.exchange(torch.full((3,), 100.0 * step + rank), step)
    if rank == 1:
        del memory.kept[30]  # it was killed, or stopped, before its exchange of step 30 was done
    if rank == 2:
        del memory.kept[30]
    groups = [dist.new_group(ranks) for ranks in ([0, 2, 3], [0, 3])]
    found = None
    if rank != 1:
        step, shards = memory.recover(groups[0])
        found = step, [shard.tolist() for shard in shards]
    lost = ""
    if rank in (0, 3):
        try:
            memory.recover(groups[1])
        except ValueError as error:
            lost = str(error)
    return found, lost, len(memory.kept)


def test_a_shard_is_recovered_from_a_peer():
    results = launch(peers, 4)
    expected = (20, [[2000.0 + r] * 3 for r in range(4)])
    assert [found for found, _, _ in results] == [expected, None, expected, expected]
    assert results[0][1] == results[3][1]
    assert results[0][1].startswith("no copy is left of the shards of ranks [1]")
    assert results[0][2] == 2


def a_step_done_twice():
    """Four ranks do step 10, then three of them do it again; rank 0 is stopped before it has the new copies."""
    rank, memory = dist.get_rank(), PeerMemory()
    three = dist.new_group([0, 1, 2])
    memory.exchange(torch.tensor([100.0 + rank]), 10, about="four ranks")
    if rank < 3:
        before = memory.kept[10]
        memory.exchange(torch.tensor([200.0 + rank]), 10, three, about="three ranks")
        if rank == 0:
            memory.kept[10], memory.ranks[10], memory.about[10] = before, 4, "four ranks"
    step, shards = memory.recover()
    about = memory.about[step]
    memory.forget_after(9)
    return step, torch.cat(shards).tolist(), about, memory.kept


def test_shards_of_one_step_that_belong_to_different_numbers_of_ranks_are_not_mixed():
    assert launch(a_step_done_twice, 4) == [(10, [200.0, 201.0, 202.0], "three ranks", {})] * 4
