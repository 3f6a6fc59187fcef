import copy
import threading

import pytest
import torch
from torch import nn

from course_lib.data_parallel.offload import CopyLane, OffloadedOptimizer
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.timeline import gather_timeline, record_timeline
from course_lib.one_device.adam import Adam, AdamW
from course_lib.one_device.loop import cross_entropy, train
from course_lib.runtime import launch
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.memory import host_bytes


def make_gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(num_layers=2, hidden_size=32))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    tokens = torch.randint(256, (count, 3, 18), generator=torch.Generator().manual_seed(1))
    return [(t[:, :-1], t[:, 1:]) for t in tokens]


def groups(model: nn.Module) -> list[dict]:
    named = list(model.named_parameters())
    return [
        {"params": [(n, p) for n, p in named if p.ndim > 1], "weight_decay": 0.1},
        {"params": [(n, p) for n, p in named if p.ndim == 1], "lr": 1e-2},
    ]


def plain_groups(model: nn.Module) -> list[dict]:
    return [{**group, "params": [p for _, p in group["params"]]} for group in groups(model)]


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_equals_the_plain_optimizer_to_the_bit(kind):
    """Five steps of a GPT with tied and frozen parameters and two groups."""
    plain = make_gpt()
    plain.embedding.positions.requires_grad_(False)
    offloaded = copy.deepcopy(plain)
    a = train(plain, batches(5), kind(plain_groups(plain), lr=3e-3), steps=5)
    optimizer = OffloadedOptimizer(groups(offloaded), kind, lr=3e-3)
    assert train(offloaded, batches(5), optimizer, steps=5) == a
    for p, q in zip(plain.parameters(), offloaded.parameters(), strict=True):
        assert p.equal(q)
        assert q.grad is None


def test_every_byte_moved_and_held():
    model = make_gpt()
    optimizer = OffloadedOptimizer(model.named_parameters())
    train(model, batches(3), optimizer, steps=3)
    size = 4 * sum(p.numel() for p in model.parameters())
    assert optimizer.moved == {"to host": 3 * size, "to device": 3 * size}
    assert optimizer.host_bytes == 4 * size  # master, wire, two moments


def test_mixed_precision_holds_what_the_simulator_says():
    """2 bytes a parameter each way; 14 on the host: fp32 master and moments, 16-bit wire."""
    model = make_gpt().bfloat16()
    optimizer = OffloadedOptimizer(model.named_parameters(), lr=1e-2)
    for inputs, targets in batches(2):
        cross_entropy(model(inputs).float(), targets).backward()
        optimizer.step()
    count = model.config.parameters
    assert optimizer.moved == {"to host": 2 * 2 * count, "to device": 2 * 2 * count}
    shape = ModelShape(2, 32, 4, 256, model.config.max_length)
    assert optimizer.host_bytes == host_bytes(shape, Plan(offload="optimizer")) == 14 * count
    assert all(s.parameter.equal(s.master.bfloat16()) for s in optimizer.slots.values())


def test_fp32_holds_what_the_simulator_says():
    """16 bytes a parameter: the host's copy, its gradient and two moments."""
    model = make_gpt()
    optimizer = OffloadedOptimizer(model.named_parameters())
    train(model, batches(1), optimizer, steps=1)
    shape = ModelShape(2, 32, 4, 256, model.config.max_length)
    plan = Plan(precision="fp32", offload="optimizer")
    assert optimizer.host_bytes == host_bytes(shape, plan) == 16 * model.config.parameters


def test_gradients_add_up_over_several_backwards():
    plain = make_gpt()
    offloaded = copy.deepcopy(plain)
    optimizers = AdamW(plain.parameters()), OffloadedOptimizer(offloaded.parameters())
    for model, optimizer in zip((plain, offloaded), optimizers, strict=True):
        for _ in range(2):
            for inputs, targets in batches(3):
                (cross_entropy(model(inputs), targets) / 3).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(p.equal(q) for p, q in zip(plain.parameters(), offloaded.parameters(), strict=True))


def test_gradients_can_be_clipped_or_dropped():
    plain = make_gpt()
    offloaded = copy.deepcopy(plain)
    (inputs, targets), (other, _) = batches(2)
    optimizer = OffloadedOptimizer(offloaded.parameters())
    offloaded(other).sum().backward()
    optimizer.zero_grad()
    for model in (plain, offloaded):
        cross_entropy(model(inputs), targets).backward()
    norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    AdamW(plain.parameters()).step()
    gradients = optimizer.gradients()
    assert nn.utils.get_total_norm(gradients).equal(norm)
    for gradient in gradients:
        gradient.mul_(0.1 / (norm + 1e-6))
    optimizer.step()
    assert all(p.equal(q) for p, q in zip(plain.parameters(), offloaded.parameters(), strict=True))


def test_a_gradient_set_by_hand_is_taken_and_an_absent_one_is_not():
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = OffloadedOptimizer([used, unused], lr=0.1)
    used.grad = torch.full((3,), 2.0)
    optimizer.step()
    expected = nn.Parameter(torch.ones(3))
    expected.grad = torch.full((3,), 2.0)
    AdamW([expected], lr=0.1).step()
    assert used.equal(expected)
    assert unused.tolist() == [1, 1, 1]
    assert used.grad is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_leaves_everything_as_it_was(bad):
    model = make_gpt()
    optimizer = OffloadedOptimizer(model.named_parameters(), lr=1e-2)
    train(model, batches(1), optimizer, steps=1)
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    inputs, targets = batches(1)[0]
    (cross_entropy(model(inputs), targets) * bad).backward()
    with pytest.raises(
        ValueError, match=r"^the gradient of \S+ is not finite; all parameters are as before the step$"
    ):
        optimizer.step()
    assert all(v.equal(before[0][k]) for k, v in model.state_dict().items())
    for number, state in optimizer.state_dict()["state"].items():
        assert all(v.equal(before[1]["state"][number][k]) for k, v in state.items())
    assert all(m.equal(before[1]["masters"][k]) for k, m in optimizer.state_dict()["masters"].items())
    assert all(torch.isfinite(torch.tensor(train(model, batches(2), optimizer, steps=2)))), "training goes on"


def test_a_scheduler_and_resuming_with_and_without_offloading():
    def run(model, optimizer, steps):
        for inputs, targets in batches(6)[steps]:
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    whole, half = make_gpt(), make_gpt()
    a, b = OffloadedOptimizer(whole.parameters()), OffloadedOptimizer(half.parameters())
    for optimizer in (a, b):
        torch.optim.lr_scheduler.LambdaLR(optimizer.host, lambda _: 0.5)
    run(whole, a, slice(0, 6))
    run(half, b, slice(0, 3))
    assert b.host.param_groups[0]["lr"] == 0.5e-3
    saved = copy.deepcopy(b.state_dict())
    again, plain = make_gpt(), copy.deepcopy(half)
    c, d = OffloadedOptimizer(again.parameters()), AdamW(plain.parameters())
    c.load_state_dict(copy.deepcopy(saved))
    d.load_state_dict(saved)
    run(again, c, slice(3, 6))
    run(plain, d, slice(3, 6))
    for p, q, r in zip(whole.parameters(), again.parameters(), plain.parameters(), strict=True):
        assert p.equal(q)
        assert p.equal(r)


# ---- overlap ----------------------------------------------------------------------------------------------


def test_gradients_move_while_backward_goes_on_and_parameters_while_others_are_updated(monkeypatch):
    """Each copy waits for something that comes after its own start: without overlap it would wait in vain."""
    first_layer, second_update = threading.Event(), threading.Event()
    in_time = {}

    class Spied(AdamW):
        updates = 0

        def update(self, *args):
            self.updates += 1
            if self.updates == 2:
                second_update.set()
            super().update(*args)

    real = CopyLane._copy

    def slow(lane, target, source, direction, name, *rest):
        if name == "gradient 2.weight":  # the last layer's, ready first
            in_time[name] = first_layer.wait(10)
        if name == "parameter 0.weight":
            in_time[name] = second_update.wait(10)
        real(lane, target, source, direction, name, *rest)

    monkeypatch.setattr(CopyLane, "_copy", slow)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    optimizer = OffloadedOptimizer(model.named_parameters(), Spied)
    model[0].weight.register_hook(lambda _: first_layer.set())
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    assert in_time == {"gradient 2.weight": True, "parameter 0.weight": True}


def test_the_timeline_shows_copies_and_updates():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    optimizer = OffloadedOptimizer(model.named_parameters())
    with record_timeline() as log:
        model(torch.randn(1, 2)).sum().backward()
        optimizer.step()
    timeline = gather_timeline(log)
    assert [s.name for s in timeline.of(lane="copy")] == [
        "gradient 1.weight", "gradient 0.weight", "parameter 0.weight", "parameter 1.weight"
    ]  # fmt: skip
    assert [s.name for s in timeline.of(lane="compute")] == ["update 0.weight", "update 1.weight"]


def test_on_ranks_each_moves_its_own():
    def step():
        import torch
        import torch.distributed as dist
        from torch import nn

        from course_lib.data_parallel.offload import OffloadedOptimizer
        from course_lib.one_device.adam import AdamW
        from course_lib.runtime import current_device

        def shard(make):
            """Sharded update: 10 numbers over 2 ranks, 5 + 5 after a reduction; here each makes its own part."""
            weight = nn.Parameter(
                torch.arange(10.0, device=current_device()).chunk(2)[dist.get_rank()].clone()
            )
            optimizer = make([weight])
            for i in range(3):
                weight.grad = weight.detach() * (i + 1)
                optimizer.step()
            return weight.detach().cpu(), optimizer

        offloaded, optimizer = shard(OffloadedOptimizer)
        return offloaded.tolist(), shard(AdamW)[0].tolist(), optimizer.moved

    for ours, plain, moved in launch(step, ranks=2):
        assert ours == pytest.approx(plain, abs=0 if not torch.cuda.is_available() else 1e-6)
        assert moved == {"to host": 3 * 5 * 4, "to device": 3 * 5 * 4}


def test_bad_parameters():
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="head is the same parameter as embedding; give it once"):
        OffloadedOptimizer([("embedding", weight), ("head", weight)])
    elsewhere = nn.Parameter(torch.ones(2, device="meta"))
    with pytest.raises(ValueError, match="far is on meta, the others are on cpu: all must be on one device"):
        OffloadedOptimizer([("near", weight), ("far", elsewhere)])
    with pytest.raises(ValueError, match="lr must be at least 0, not -1"):
        OffloadedOptimizer([weight], lr=-1)
    with pytest.raises(ValueError, match="nothing to offload"):
        OffloadedOptimizer([nn.Parameter(torch.ones(2), requires_grad=False)])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_states_are_on_the_host_and_copies_are_pinned():
    plain = make_gpt().cuda()
    offloaded = copy.deepcopy(plain)
    data = [(x.cuda(), y.cuda()) for x, y in batches(5)]
    a = train(plain, data, AdamW(plain.parameters(), lr=3e-3), steps=5)
    before = torch.cuda.memory_allocated()
    optimizer = OffloadedOptimizer(offloaded.parameters(), lr=3e-3)
    b = train(offloaded, data, optimizer, steps=5)
    assert b == pytest.approx(a, abs=1e-4)
    assert torch.cuda.memory_allocated() <= before + 10_000, "nothing of the optimizer stays on the GPU"
    assert all(slot.wire.is_pinned() and not slot.master.is_cuda for slot in optimizer.slots.values())
