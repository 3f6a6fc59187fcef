import copy
import pickle

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.resnet import ResNet18
from course_lib.observe.ledgers.memory import record_memory
from course_lib.observe.ledgers.saved import saved_tensors
from course_lib.one_device.adam import AdamW
from course_lib.one_device.recompute import apply_recompute
from course_lib.runtime import launch
from simulator.ledgers.memory import MemoryBreakdown

MODELS = {
    "gpt": lambda: (GPT(GPTConfig.tiny(num_layers=2, hidden_size=32)), torch.zeros(2, 16, dtype=torch.long)),
    "bert": lambda: (Bert(BertConfig.tiny()), torch.zeros(2, 9, dtype=torch.long)),
    "resnet": lambda: (ResNet18(10, width=8), torch.zeros(2, 3, 32, 32)),
}


def size(tensors) -> int:
    return sum(t.numel() * t.itemsize for t in tensors)


def test_of_an_entry_the_moment_with_the_most_bytes_is_kept():
    with record_memory(nn.Linear(1, 1)) as log, torch.no_grad():
        alive = [torch.zeros(100), torch.zeros(1000)]
        del alive[1]
        alive.append(torch.zeros(10))
    assert log.at("update").total == 4 * (2 + 100 + 1000)


def test_by_hand():
    """Two layers of 10 x 10, no bias, a batch of 5: 400 bytes a weight, 200 an activation."""
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Tanh(), nn.Linear(10, 10, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(5, 10)
    with record_memory(model, optimizer) as log:
        y = model(x)
        assert log.mark("forward") == MemoryBreakdown(parameters=800, activations=3 * 200)  # x, tanh, y
        loss = y.sum()
        del y
        loss.backward()
        assert log.mark("backward") == MemoryBreakdown(800, 800, 0, 200 + 4)  # the batch and the loss live on
        optimizer.step()
        assert log.mark("update") == MemoryBreakdown(800, 800, 800, 204)
        optimizer.zero_grad()
    assert log.at("start") == MemoryBreakdown(parameters=800)
    assert log.at("end") == MemoryBreakdown(800, 0, 800, 204)
    # When tanh computes: the batch, the first layer's result (nobody saves it) and its own.
    assert log.at("forward 1").activations == 600
    with pytest.raises(
        ValueError, match="nothing was recorded as 'nowhere'; there is start, forward 0, forward 1"
    ):
        log.at("nowhere")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("recompute", [False, True])
def test_activations_after_the_forward_are_what_autograd_saved(name, recompute):
    model, x = MODELS[name]()
    if recompute:
        apply_recompute(model, "full")
    saved = sum(t.bytes for t in saved_tensors(model, x))
    with record_memory(model) as log:
        output = model(x)
        alive = log.mark("done")
    # Alive, but saved for no one: the output (BERT's is its last norm's), and tokens that BERT counts by itself.
    extra = {"gpt": size([output]), "bert": size([output]), "resnet": size([output])}[name]
    assert alive.activations == saved + extra
    assert alive.buffers == size(model.buffers())


def test_the_same_categories_as_mem_tracker():
    """torch's own tracker, one step of one microbatch, category by category at three moments."""
    model, x = MODELS["gpt"]()
    ours, theirs = [], []
    for found, kind in ((ours, record_memory), (theirs, MemTracker)):
        m = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(m.parameters(), foreach=False)
        if kind is MemTracker:
            tracker = MemTracker()
            tracker.track_external(m, optimizer, x)
        else:
            tracker = kind(m, optimizer)
        with tracker as log:

            def now(label, log=log, found=found, kind=kind):
                if kind is MemTracker:
                    found.append(log.get_tracker_snapshot("current")[torch.device("cpu")])
                else:
                    found.append(log.mark(label))

            loss = m(x).square().mean()
            now("forward")
            loss.backward()
            now("backward")
            optimizer.step()
            now("update")
    for mine, torchs in zip(ours, theirs, strict=True):
        assert mine.parameters == torchs["Parameter"]
        assert mine.gradients == torchs["Gradient"]
        assert mine.optimizer_states == torchs["Optstate"]
        # The batch is an input of the forward to us, and something else to torch.
        assert mine.activations == torchs["Activation"] + torchs["Other"]
        assert mine.buffers == torchs["Buffer"] + torchs["Temp"]
        assert mine.total == torchs["Total"]


@pytest.mark.parametrize("how", ["ours", "torch"])
def test_recomputation_brings_one_block_back_at_a_time(how):
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(num_layers=4, hidden_size=32))
    tokens = torch.zeros(4, 64, dtype=torch.long)
    block = sum(t.bytes for t in saved_tensors(model.blocks[0], torch.zeros(4, 64, 32)))
    peaks = []
    for recompute in (False, True):
        m = copy.deepcopy(model)
        if recompute and how == "ours":
            apply_recompute(m, "full")
        elif recompute:
            for b in m.blocks:
                b.forward = lambda x, f=b.forward: torch.utils.checkpoint.checkpoint(
                    f, x, use_reentrant=False
                )
        with record_memory(m) as log:
            loss = m(tokens).square().mean()
            before = log.mark("forward done").activations
            loss.backward()
        peaks.append(max(held.activations for held in log.held[log.labels.index("forward done") :]))
        if recompute:
            again = [i for i, label in enumerate(log.labels) if label.startswith("recompute blocks")]
            assert {log.labels[i].split(".")[1] for i in again} == set("0123")
            # The block that is back, and what the others keep; but for its input, which it kept anyway.
            inputs = 4 * 4 * 64 * 32
            assert max(log.held[i].activations for i in again) <= before + block
            assert max(log.held[i].activations for i in again) >= block
            assert inputs < block / 10
    assert peaks[1] < peaks[0] / 2


def test_master_weights_and_a_shard_are_the_optimizers():
    model = nn.Linear(8, 8, bias=False).to(torch.bfloat16)
    master = nn.Parameter(model.weight.detach().float())
    optimizer = AdamW([master])
    with record_memory(model, optimizer) as log:
        model(torch.randn(2, 8, dtype=torch.bfloat16)).sum().backward()
        master.grad = model.weight.grad.float()
        model.weight.grad = None
        optimizer.step()
        held = log.mark("updated")
    assert held.parameters == 2 * 64
    assert held.gradients == 4 * 64
    assert held.optimizer_states == 12 * 64 + 4  # master, exp_avg, exp_avg_sq; and the step's number


def test_the_hooks_go_and_the_model_stays():
    model, x = MODELS["bert"]()
    before = model(x)
    with record_memory(model) as log:
        inside = model(x)
    assert inside.equal(before)
    count = len(log.labels)
    model(x).sum().backward()
    assert len(log.labels) == count
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_a_storage_counts_with_the_bytes_that_it_has_now():
    model = nn.Linear(10, 10, bias=False)
    resize = torch.UntypedStorage.resize_
    with record_memory(model) as log, torch.no_grad():
        model.weight.untyped_storage().resize_(0)  # as FSDP frees a unit
        assert log.mark("freed") == MemoryBreakdown()
        model.weight.untyped_storage().resize_(400)
        assert log.mark("back") == MemoryBreakdown(400)
        found = torch.empty(5)
        found.resize_(50)  # an operator
        assert log.mark("larger") == MemoryBreakdown(400, buffers=200)
        del found
        elsewhere = torch.empty(50, device="meta")
        assert log.mark("gone") == MemoryBreakdown(400)
    assert (torch.UntypedStorage.resize_, len(elsewhere)) == (resize, 50)


def test_history_of_every_rank():
    def step(rows):
        import torch
        import torch.distributed as dist
        from torch import nn

        from course_lib.observe.ledgers.memory import record_memory

        model = nn.Linear(10, 10, bias=False)
        x = torch.zeros(rows[dist.get_rank()], 10)
        with record_memory(model) as log:
            with torch.no_grad():
                whole = [torch.empty(10, 10) for _ in range(2)]
            dist.all_gather(whole, model.weight.detach())
            model(x).sum().backward()
        return log.history(dist.get_rank())

    histories = launch(step, ranks=2, args=([5, 7],))
    assert [h.rank for h in histories] == [0, 1]
    assert [h.held[-1].activations for h in histories] == [200, 280]
    assert [h.held[-1].buffers for h in histories] == [800, 800], "what is gathered is a buffer"
    assert all(
        h.times[0] == 0 and list(h.times) == sorted(h.times) and h.end >= h.times[-1] for h in histories
    )
    assert histories[0].peak.bytes == max(held.total for held in histories[0].held)


def test_a_snapshot_needs_a_gpu():
    with (
        pytest.raises(ValueError, match="a snapshot is taken of a GPU's memory, not of cpu's"),
        record_memory(nn.Linear(1, 1), snapshot="memory.pickle"),
    ):
        pass


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_allocator_agrees(tmp_path):
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(hidden_size=256, dropout=0.1)).cuda()
    optimizer = AdamW(model.parameters())
    tokens = torch.zeros(8, 128, dtype=torch.long, device="cuda")
    for _ in range(2):  # the first step allocates the workspace of the matrix products
        optimizer.zero_grad()
        foreign = torch.cuda.memory_allocated()
        with record_memory(model, optimizer, snapshot=tmp_path / "memory.pickle") as log:
            model(tokens).square().mean().backward()
            optimizer.step()
        foreign -= log.held[0].total + size([tokens])
    assert any(label.startswith("backward blocks.0") for label in log.labels)
    assert log.peak.total + foreign <= log.allocator_peak <= 1.25 * (log.peak.total + foreign)
    assert pickle.loads((tmp_path / "memory.pickle").read_bytes())["segments"]
