"""ZeRO, FSDP, tensor and pipeline parallelism go on with 3 ranks where 4 have stopped, then with 4: as one device."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.data.sharding import batches
from course_lib.data_parallel.distributed_checkpoint import make_optimizer_states
from course_lib.data_parallel.fsdp import FSDP
from course_lib.data_parallel.zero import Zero1
from course_lib.elastic.checkpoints import Checkpoints, PeerMemory
from course_lib.elastic.reshard import (
    Piece,
    flat_pieces,
    load_pieces,
    overlap,
    parameter_pieces,
    reshard_flat,
    save_pieces,
)
from course_lib.runtime import launch
from course_lib.runtime.mesh import make_mesh
from course_lib.tensor_parallel.apply import apply_tensor_parallel
from course_lib.tensor_parallel.full_tensors import shards_of
from simulator.inputs.chunks import chunk_sizes

STEPS, WIDTH, LAYERS = 2, 12, ["0", "1.0", "1.1", "2", "3"]


def network():
    """Five layers: 4 stages have 2, 1, 1, 1 of them, and 3 stages 2, 2, 1. 629 parameters: no shard divides evenly."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    return nn.Sequential(nn.Linear(7, WIDTH), inner, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5))


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(48, 7, generator=generator), torch.randn(48, 5, generator=generator)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def steps_of(first, rank=0, ranks=1):
    found = batches(data(), 12, rank=rank, ranks=ranks)
    for _ in range(first):
        next(found)
    return [next(found) for _ in range(STEPS)]


def train(model, optimizer, slices):
    for x, y in slices:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def part(folder, first):
    """Two steps of each technique on these ranks, from the checkpoint of step ``first`` to one of step first + 2."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own, everything = steps_of(first, rank, ranks), steps_of(first)
    results = {}

    def run(name, model, optimizer, pieces, slices, loaded=lambda: None):
        if first:
            make_optimizer_states(getattr(optimizer, "optimizer", optimizer))
            assert load_pieces(f"{folder}/{name}-{first}", pieces())["step"] == first
            loaded()
        train(model, optimizer, slices)
        save_pieces(f"{folder}/{name}-{first + STEPS}", pieces(), step=first + STEPS)

    model = network()
    zero = Zero1(model, torch.optim.AdamW, lr=1e-2)
    run("zero", model, zero, lambda: flat_pieces(zero.flats, zero), own, zero.gather_parameters)
    results["zero"] = {name: p.detach().clone() for name, p in model.named_parameters()}

    fsdp = FSDP(network(), ["1", "2"], make_mesh({"dp": ranks}))
    optimizer = adamw(fsdp.parameters())
    run("fsdp", fsdp, optimizer, lambda: flat_pieces(fsdp.flats, optimizer), own)
    results["fsdp"] = fsdp.state_dict()

    model = network()
    table = {"1": "enter", "1.0": "column", "1.1": "row", **dict.fromkeys("023", "replicated")}
    apply_tensor_parallel(model, make_mesh({"tp": ranks}), table)
    cut = adamw(model.parameters())
    run(
        "tp",
        model,
        cut,
        lambda: parameter_pieces(model.named_parameters(), cut, shards_of(model)),
        everything,
    )
    results["tp"] = {name: p.detach() for name, p in model.named_parameters() if name not in shards_of(model)}

    whole = network()
    sizes = chunk_sizes(len(LAYERS), ranks)
    held = LAYERS[sum(sizes[:rank]) :][: sizes[rank]]
    stage = [(name, p) for name, p in whole.named_parameters() if name.rpartition(".")[0] in held]
    states = adamw([p for _, p in stage])
    if first:
        make_optimizer_states(states)
        load_pieces(f"{folder}/pp-{first}", parameter_pieces(stage, states))
    for x, y in everything:
        pipeline_step(whole, held, states, x, y)
    save_pieces(f"{folder}/pp-{first + STEPS}", parameter_pieces(stage, states), step=first + STEPS)
    results["pp"] = {name: p.detach() for name, p in stage}
    return results


def pipeline_step(whole, held, optimizer, x, y):
    """Naive: one rank after the other, forward and then backward."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layers = [whole.get_submodule(name) for name in held]
    if rank:
        x = torch.empty(len(x), layers[0].in_features)
        dist.recv(x, rank - 1)
        x.requires_grad_()
    out = nn.Sequential(*layers)(x)
    optimizer.zero_grad()
    if rank == ranks - 1:
        nn.functional.mse_loss(out, y).backward()
    else:
        dist.send(out.detach(), rank + 1)
        gradient = torch.empty_like(out)
        dist.recv(gradient, rank + 1)
        out.backward(gradient)
    if rank:
        dist.send(x.grad, rank - 1)
    optimizer.step()


def test_four_ranks_three_ranks_four_ranks_as_one_device(tmp_path):
    model = network()
    optimizer = adamw(model.parameters())
    for first, ranks in ((0, 4), (2, 3), (4, 4)):
        train(model, optimizer, steps_of(first))
        expected = dict(model.named_parameters())
        results = launch(part, ranks, args=(str(tmp_path), first), timeout=250)
        for technique in ("zero", "fsdp", "tp", "pp"):
            seen = set()
            for result in results:
                seen |= result[technique].keys()
                for name, value in result[technique].items():
                    same = torch.allclose(value, expected[name], rtol=1e-4, atol=1e-5)
                    assert same, f"{technique} on {ranks} ranks: {name}"
            cut = {"1.0.weight", "1.0.bias", "1.1.weight"} if technique == "tp" else set()
            assert seen == expected.keys() - cut


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


def test_overlap_of_boxes():
    assert overlap((0, 4), (3, 4), (2, 0), (5, 6)) == (
        (slice(2, 3), slice(0, 2)),
        (slice(0, 1), slice(4, 6)),
    )
    assert overlap((0,), (3,), (3,), (2,)) is None
    assert overlap((), (), (), ()) == ((), ())


def test_what_is_missing_or_of_another_shape_is_told(tmp_path):
    save_pieces(tmp_path / "one", [Piece("a", torch.ones(3), (2,), (10,))])
    for piece, said in (
        (Piece("a", torch.ones(4), (3,), (10,)), "has 2 of the 4 elements of a"),
        (Piece("a", torch.ones(3), (2,), (11,)), r"a has the shape \(10,\)"),
        (Piece("b", torch.ones(3), (2,), (10,)), "has 0 of the 3 elements of b"),
    ):
        with pytest.raises(ValueError, match=said):
            load_pieces(tmp_path / "one", [piece])
    with pytest.raises(ValueError, match="no complete checkpoint"):
        load_pieces(tmp_path / "two", [])


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
