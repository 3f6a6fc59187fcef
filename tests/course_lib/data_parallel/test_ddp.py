"""DDP against two oracles: torch's DistributedDataParallel, and one device that sees the whole batch."""

import copy
import gc
import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.data.digits import load_digits
from course_lib.data.sharding import batches
from course_lib.data_parallel.ddp import DDP, MEBIBYTE, FlatDDP, NaiveDDP, assign_buckets
from course_lib.data_parallel.ddp_unused_parameters import DDPWithUnusedParameters, parameters_in_graph
from course_lib.data_parallel.sync_batchnorm import SyncBatchNorm, synchronise_batchnorm
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.resnet import ResNet18
from course_lib.observe.ledgers.timeline import gather_timeline, record_timeline
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import RankError, current_device, launch
from simulator.predict.overlap import ddp_timeline

STEPS = 3  # in the second, torch's DDP lays its buckets out anew, and the ranks tell each other how


def resnet(dtype=torch.float32):
    torch.manual_seed(0)
    return ResNet18(10, 1, small_images=True, width=16).to(current_device(), dtype)


def gpt():
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(num_layers=2, hidden_size=32)).to(current_device())


def digit_batches(rank, ranks, dtype=torch.float32):
    for images, labels in batches(load_digits(), 48, rank=rank, ranks=ranks):
        yield images.to(current_device(), dtype), labels.to(current_device())


def token_batches(rank, ranks, batch=12):
    generator = torch.Generator().manual_seed(1)
    while True:
        tokens = torch.randint(0, 256, (batch, 17), generator=generator).to(current_device())
        part = tokens.chunk(ranks)[rank]
        yield part[:, :-1], part[:, 1:]


def loss_of(model, inputs, targets):
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def run(model, data, steps=STEPS, by_hand=False):
    """Losses, parameters and buffers after some steps, and the traffic of the last."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _, (inputs, targets) in zip(range(steps), data, strict=False):
        optimizer.zero_grad()
        with record_traffic() as log:
            loss = loss_of(model, inputs, targets)
            loss.backward()
            if by_hand:
                model.average_gradients()
        optimizer.step()
        losses.append(loss.item())
    inner = getattr(model, "module", model)
    return losses, {k: v.cpu() for k, v in inner.state_dict().items()}, log.traffic


def all_ways(build, data):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = build()
    if rank > 0:  # construction must make everyone equal to rank 0
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.data.mul_(2)
    wrapped = {
        "naive": NaiveDDP(copy.deepcopy(model)),
        "flat": FlatDDP(copy.deepcopy(model)),
        "one bucket": DDP(copy.deepcopy(model), bucket_cap_mb=1000),
        "small buckets": DDP(copy.deepcopy(model), bucket_cap_mb=0.05),
        "torch": DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=1),
    }
    results = {
        name: run(model, data(rank, ranks), by_hand=name in ("naive", "flat"))
        for name, model in wrapped.items()
    }
    if rank == 0:
        results["one device"] = run(build(), data(0, 1))
    return results


def difference(a, b, only=""):
    return max((a[k].double() - b[k].double()).abs().max().item() for k in a if only in k)


@pytest.mark.parametrize("ranks", [2, 3])
def test_gpt_equals_torch_and_one_device(ranks):
    results = launch(all_ways, ranks, args=(gpt, token_batches))
    one_device = results[0]["one device"]
    for rank in results:
        losses, state, traffic = rank["torch"]
        for name in ("naive", "flat", "one bucket", "small buckets"):
            ours = rank[name]
            assert ours[0] == pytest.approx(losses, abs=1e-6)
            assert difference(ours[1], state) < 1e-6
            assert difference(ours[1], one_device[1]) < 1e-6
            assert ours[2].sent == pytest.approx(traffic.sent), "the same bytes a step as torch's DDP"
    whole = [sum(rank["one bucket"][0][step] for rank in results) / ranks for step in range(STEPS)]
    assert whole == pytest.approx(one_device[0], abs=1e-5)


# Of two ranks: among more, the order of a sum depends on where a gradient lies in its bucket, and on this ResNet a last
# digit grows.
def test_resnet_equals_torch_but_not_one_device():
    results = launch(all_ways, 2, args=(resnet, digit_batches))
    for rank in results:
        for name in ("naive", "flat", "one bucket", "small buckets"):
            assert difference(rank[name][1], rank["torch"][1]) < 1e-6
            assert rank[name][2].sent == pytest.approx(rank["torch"][2].sent)
    # The honest exception: BatchNorm's statistics are those of a rank's own images.
    assert difference(results[0]["torch"][1], results[0]["one device"][1], "running_var") > 1e-3


def with_synchronised_batchnorm():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dtype = torch.float64
    model = synchronise_batchnorm(resnet(dtype))
    assert sum(isinstance(m, SyncBatchNorm) for m in model.modules()) == 20
    state = run(DDP(model), digit_batches(rank, ranks, dtype))[1]
    return state, (run(resnet(dtype), digit_batches(0, 1, dtype))[1] if rank == 0 else None)


def test_synchronised_batchnorm_is_one_device_again():
    results = launch(with_synchronised_batchnorm, 2)
    for state, _ in results:
        assert difference(state, results[0][1]) < 1e-9


def norms_against_torch():
    torch.manual_seed(dist.get_rank())
    x = torch.randn(5 + dist.get_rank(), 4, 3, 3, device=current_device())  # unequal parts of the batch
    weights = torch.randn_like(x)
    parts = [torch.empty(5 + r, 4, 3, 3, device=x.device) for r in range(dist.get_world_size())]
    weight_parts = [torch.empty_like(p) for p in parts]
    for r in range(dist.get_world_size()):
        parts[r] = x.clone() if r == dist.get_rank() else parts[r]
        weight_parts[r] = weights.clone() if r == dist.get_rank() else weight_parts[r]
        dist.broadcast(parts[r], r)
        dist.broadcast(weight_parts[r], r)
    whole = nn.BatchNorm2d(4).to(x.device)
    ours = SyncBatchNorm(copy.deepcopy(whole))
    x.requires_grad_()
    everything = torch.cat(parts).requires_grad_()
    expected = whole(everything)
    (expected * torch.cat(weight_parts)).sum().backward()
    result = ours(x)
    (result * weights).sum().backward()
    first = sum(5 + r for r in range(dist.get_rank()))
    mine = slice(first, first + len(x))
    torch.testing.assert_close(result, expected[mine], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad, everything.grad[mine], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.running_mean, whole.running_mean)
    torch.testing.assert_close(ours.running_var, whole.running_var)
    ours.eval()
    whole.eval()
    torch.testing.assert_close(ours(x), whole(x))
    return True


def half_precision_norms():
    torch.manual_seed(0)
    whole = (3 * torch.randn(4, 2, 24, 25) + 5).bfloat16()
    mine = whole.chunk(2)[dist.get_rank()]
    plain = nn.BatchNorm2d(2)
    ours = synchronise_batchnorm(copy.deepcopy(plain))
    result = ours(mine)
    expected = plain(whole).chunk(2)[dist.get_rank()]
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(ours.running_var, plain.running_var)
    return type(ours).__name__, result.dtype


def test_synchronised_batchnorm_adds_up_in_more_than_half_precision():
    assert launch(half_precision_norms, 2) == [("SyncBatchNorm", torch.bfloat16)] * 2


def one_value_in_all():
    rank = dist.get_rank()
    alone = [dist.new_group([r]) for r in range(2)][rank]
    answers = []
    for x, group in (
        (torch.ones(1, 2), alone),  # one value in a group of one rank
        (torch.ones(1 - rank, 2), None),  # one value in a group of two, of which one has none
        (torch.arange(2.0) + torch.full((1, 2), 2.0 * rank), None),  # one on each of two ranks
    ):
        norm = SyncBatchNorm(nn.BatchNorm1d(2), group)
        try:
            norm(x)
        except ValueError as error:
            answers.append(str(error))
        answers.append((norm.running_var.tolist(), norm.num_batches_tracked.item()))
    return answers


def test_synchronised_batchnorm_refuses_a_single_value():
    for rank, answers in enumerate(launch(one_value_in_all, 2)):
        refusal = "BatchNorm needs more than one value per channel in training, not [{}, 2]"
        untouched = ([1.0, 1.0], 0)
        assert answers[:4] == [refusal.format(1), untouched, refusal.format(1 - rank), untouched]
        assert answers[4:] == [(pytest.approx([0.9 + 0.1 * 2] * 2), 1)]  # 0 and 2: the unbiased variance is 2


@pytest.mark.parametrize("training", [False, True])
def test_synchronised_batchnorm_refuses_an_input_without_channels(training):
    norm = SyncBatchNorm(nn.BatchNorm1d(4)).train(training)
    with pytest.raises(ValueError, match=r"an input of shape \(batch, channels, …\), not \[4\]"):
        norm(torch.zeros(4))


def test_synchronised_batchnorm_values_gradients_and_statistics():
    assert launch(norms_against_torch, 3) == [True] * 3


class Odd(nn.Module):
    """Tied, frozen and unused parameters, and odd sizes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 5)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.never = nn.Linear(3, 3)
        self.output = nn.Linear(5, 7, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens, branch):
        h = self.frozen(self.embedding(tokens))
        return self.output((self.first if branch == 0 else self.second)(h))


def odd_ways():
    rank = dist.get_rank()
    states = {}
    for name, wrap in {
        "ours": lambda m: DDPWithUnusedParameters(m, bucket_cap_mb=1e-4),
        "torch": lambda m: DistributedDataParallel(m, find_unused_parameters=True),
    }.items():
        model = Odd()
        before = {k: v.clone() for k, v in model.state_dict().items()}
        wrapped = wrap(model)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
        for step in range(STEPS):
            tokens = torch.arange(step, step + 4).view(1, 4) % 7
            optimizer.zero_grad()
            # Ranks take different branches, so each leaves out parameters that another uses.
            loss = F.cross_entropy(wrapped(tokens, (rank + step) % 2).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
        assert model.never.weight.grad is None
        assert torch.equal(model.never.weight, before["never.weight"]), "nobody used it: nobody may change it"
        assert torch.equal(model.frozen.weight, before["frozen.weight"])
        states[name] = model.state_dict()
    return states


def test_tied_frozen_and_unused_parameters():
    results = launch(odd_ways, 3)
    for states in results:
        assert difference(states["ours"], states["torch"]) < 1e-6
        assert difference(states["ours"], results[0]["ours"]) == 0


def accumulate():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sent, states = {}, {}
    for name in ("ours", "torch"):
        model = gpt()
        wrapped = DDP(model) if name == "ours" else DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = token_batches(rank, ranks)
        for _ in range(STEPS):
            optimizer.zero_grad()
            with record_traffic() as log:
                with wrapped.no_sync():
                    for _ in range(2):
                        (loss_of(wrapped, *next(data)) / 3).backward()
                assert name == "torch" or log.traffic.calls == 0, "no_sync talks to nobody"
                (loss_of(wrapped, *next(data)) / 3).backward()
            optimizer.step()
        sent[name], states[name] = log.traffic.sent, model.state_dict()
    return difference(states["ours"], states["torch"]), sent


def test_gradient_accumulation():
    for distance, sent in launch(accumulate, 2):
        assert distance < 1e-6
        assert sent["ours"] == pytest.approx(sent["torch"])


def forward_decides():
    rank = dist.get_rank()
    sent = []
    for wrap in (DDP, DistributedDataParallel):
        model = wrap(nn.Linear(3, 1))
        model(torch.ones(1, 3)).sum().backward()
        for forward_inside in (True, False):
            with model.no_sync() if forward_inside else nullcontext():
                loss = (rank + 1) * model(torch.ones(1, 3)).sum()
            model.zero_grad()
            with record_traffic() as log, nullcontext() if forward_inside else model.no_sync():
                loss.backward()
            sent.append((log.traffic.calls, model.module.weight.grad[0, 0].item()))
    return sent


def test_the_forward_pass_decides_whether_its_backward_communicates():
    for rank, sent in enumerate(launch(forward_decides, 2)):
        assert sent == [(0, rank + 1), (1, 1.5)] * 2, "ours, then torch's"


@dataclass
class Heads:
    first: torch.Tensor
    second: torch.Tensor | None = None


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x, head=None):
        h = self.body(x).tanh()
        outputs = [self.first(h) if head != 1 else None, self.second(h) if head != 0 else None]
        return Heads(*outputs)


def part(seed):
    generator = torch.Generator().manual_seed(10 * dist.get_rank() + seed)
    return torch.randn(3, 4, generator=generator)


def two_forwards_one_backward(model):
    (model(part(1), 0).first.sum() + model(part(2), 1).second.square().sum()).backward()


def two_forwards_two_backwards(model):
    losses = [model(part(1), 0).first.sum(), model(part(2)).second.square().sum()]
    for loss in losses:
        loss.backward()


def the_same_graph_twice(model):
    loss = model(part(1), 1).second.square().sum()
    loss.backward(retain_graph=True)
    loss.backward()


def a_head_without_a_loss(model):
    model(part(1)).first.sum().backward()


def a_head_of_an_earlier_microbatch(model):
    with model.no_sync() if isinstance(model, DDP) else nullcontext():
        model(part(1), dist.get_rank()).first.sum().backward() if dist.get_rank() == 0 else None
    model(part(2), 1).second.sum().backward()


def a_backward_that_broke_off(model):
    x = part(1).requires_grad_()
    x.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(x, 0).first.sum().backward()
    model.zero_grad()
    model(part(2)).second.sum().backward()


WAYS = [
    two_forwards_one_backward,
    two_forwards_two_backwards,
    the_same_graph_twice,
    a_head_without_a_loss,
    a_head_of_an_earlier_microbatch,
    a_backward_that_broke_off,
]


def unusual_ways(bucket_cap_mb):
    """Largest distance from the mean over ranks of what each gets alone, by way."""
    distances = {}
    for way in WAYS:
        alone, ours = TwoHeads(), DDPWithUnusedParameters(TwoHeads(), bucket_cap_mb)
        way(alone)
        way(ours)
        for p, q in zip(alone.parameters(), ours.parameters(), strict=True):
            mean = torch.zeros_like(p) if p.grad is None else p.grad.clone()
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
            got = torch.zeros_like(q) if q.grad is None else q.grad
            distances[way.__name__] = max(distances.get(way.__name__, 0), (got - mean).abs().max().item())
    return distances


@pytest.mark.parametrize("bucket_cap_mb", [25, 1e-5])
def test_unusual_orders_of_forward_and_backward_average_all_the_same(bucket_cap_mb):
    for distances in launch(unusual_ways, 2, args=(bucket_cap_mb,)):
        assert max(distances.values()) < 1e-6, distances


class Hidden(TwoHeads):
    def forward(self, x):
        return SimpleNamespace(output=super().forward(x))


def hides_its_output():
    model = DDPWithUnusedParameters(Hidden())
    model(part(1)).output.first.sum().backward()


def test_an_output_that_cannot_be_searched_is_no_silent_mistake():
    with pytest.raises(RankError, match=r"the gradient of .* came after its bucket was sent: let forward"):
        launch(hides_its_output, 2)


def overlapped():
    model = DDP(gpt(), bucket_cap_mb=0.02)
    inputs, targets = next(token_batches(dist.get_rank(), dist.get_world_size()))
    loss_of(model, inputs, targets).backward()
    with record_timeline() as log:
        loss = loss_of(model, inputs, targets)
        from course_lib.runtime import trace

        with trace.span("compute", "backward"):
            loss.backward()
    return gather_timeline(log)


def test_buckets_leave_before_backward_ends():
    timeline = launch(overlapped, 2)[0]
    for rank in timeline.ranks:
        backward = timeline.of(rank, "compute")[0]
        buckets = [s for s in timeline.of(rank, "communication") if s.name.startswith("bucket")]
        assert len(buckets) > 3
        assert buckets[0].start < backward.start + 0.8 * backward.duration
        assert [s.name for s in buckets] == [f"bucket {i}" for i in range(len(buckets))], (
            "the same order everywhere"
        )


def torchs_buckets(parameters, *limits):
    """What torch's DDP does with parameters whose gradients come from the last to the first."""
    order = list(reversed(list(dict.fromkeys(parameters))))
    indices = list(range(len(order)))  # with indices, torch keeps the order in which buckets are closed
    assigned = dist._compute_bucket_assignment_by_size(order, list(limits), [False] * len(order), indices)[0]
    return [[order[i] for i in bucket] for bucket in assigned]


def same_buckets(ours, theirs):
    return [[id(p) for p in bucket] for bucket in ours] == [[id(p) for p in bucket] for bucket in theirs]


@pytest.mark.parametrize("limits", [(25 * MEBIBYTE,), (MEBIBYTE, 25 * MEBIBYTE), (2000,), (500, 3000)])
@pytest.mark.parametrize("seed", range(5))
def test_buckets_are_torchs(limits, seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 600, (40,), generator=generator).tolist()
    parameters = [torch.empty(n * (1 if limits[-1] < 10_000 else 5000), device="meta") for n in sizes]
    parameters += parameters[:3]  # tied
    ours = assign_buckets(parameters, limits[-1], limits[0])
    assert same_buckets(ours, torchs_buckets(parameters, *limits))
    assert len(ours) > 3


def test_buckets_of_two_dtypes_are_torchs():
    parameters = [
        torch.empty(n, dtype=dtype, device="meta")
        for _ in range(24)
        for n, dtype in ((1024, torch.float32), (MEBIBYTE, torch.bfloat16))
    ]
    ours, theirs = (f(parameters, 25 * MEBIBYTE) for f in (assign_buckets, torchs_buckets))
    # The buckets that are still open at the end: torch takes them from a hash table, in any order.
    place = {id(p): i for i, p in enumerate(parameters)}
    ours_sorted, theirs_sorted = (sorted(b, key=lambda bucket: place[id(bucket[0])]) for b in (ours, theirs))
    assert same_buckets(ours_sorted, theirs_sorted)
    assert sorted(len(bucket) for bucket in ours) == [11, 13, 24]


@pytest.mark.parametrize("limits", [(), (100_000,), (100_000, 5_000)])
def test_the_simulator_predicts_the_same_buckets(limits):
    sizes = [3000, 400_000, 70_000, 8, 30_000, 9000, 250_000, 11]
    parameters = [torch.empty(n, device="meta") for n in sizes]
    layers = dict(forward=[1] * len(sizes), backward=[1] * len(sizes), gradient_bytes=[4 * n for n in sizes])
    timeline = ddp_timeline(
        **layers,
        ranks=2,
        bandwidth=1,
        **dict(zip(("bucket_bytes", "first_bucket_bytes"), limits, strict=False)),
    )
    predicted = [s.duration for s in timeline.of(0, "communication")]  # 2 (p-1)/p bytes at 1 byte a second
    ours = assign_buckets(parameters, *(limits or (25 * MEBIBYTE, MEBIBYTE)))
    assert predicted == pytest.approx([sum(p.nbytes for p in bucket) for bucket in ours])
    assert len(ours) > 1


def bucket_sizes_of_ddp():
    model = DDP(nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(30))))
    return [bucket.buffer.nbytes // MEBIBYTE for bucket in model.buckets]


def test_the_first_bucket_is_small_by_default():
    assert launch(bucket_sizes_of_ddp, 2)[0] == [1, 25, 4]


def mixed_synchronisation():
    gradients = []
    for wrap in (DistributedDataParallel, DDP):
        torch.manual_seed(0)
        model = wrap(nn.Linear(2, 1, bias=False))
        x = torch.full((1, 2), float(dist.get_rank() + 1))
        first = model(x).sum()
        with model.no_sync():
            second = model(x).sum()
        (first + second).backward()
        together = model.module.weight.grad.tolist()
        model.zero_grad()
        with model.no_sync():  # the next one alone is not averaged
            model(x).sum().backward()
        gradients.append((together, model.module.weight.grad.tolist()))
    return gradients


def test_a_synchronised_and_an_unsynchronised_forward_in_one_backward():
    for rank, (theirs, ours) in enumerate(launch(mixed_synchronisation, 2)):
        assert ours == theirs == ([[3.0, 3.0]], [[rank + 1.0] * 2])


def dropped():
    model = nn.Linear(4, 4)
    alive = []
    for wrap in (DDP, DDPWithUnusedParameters):
        wrapped = wrap(model)
        wrapped(torch.ones(1, 4)).sum().backward()
        reference = weakref.ref(wrapped)
        del wrapped
        gc.collect()
        alive.append(reference() is not None)
    model(torch.ones(1, 4)).sum().backward()  # a plain model again
    hooks = [len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()]
    return alive, hooks


def test_a_wrapper_that_is_dropped_leaves_no_hook_behind():
    assert launch(dropped, 2) == [([False, False], [0, 0])] * 2


class TwoTypes(nn.Module):
    """Layers in 32 and in 16 bits, one after the other."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Linear(8, 8, dtype=torch.bfloat16 if i % 2 else torch.float32) for i in range(6)
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype)).tanh()
        return x.float()


def two_types():
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
    gradients = []
    for wrap in (
        lambda m: DDP(m, bucket_cap_mb=2e-4),
        lambda m: DistributedDataParallel(m, bucket_cap_mb=2e-4),
        FlatDDP,
    ):
        model = wrap(TwoTypes())
        model(x).square().sum().backward()
        if isinstance(model, FlatDDP):
            model.average_gradients()
        gradients.append([p.grad for p in model.parameters()])
    return gradients


def test_two_dtypes_in_one_model():
    for ours, theirs, flat in launch(two_types, 2):
        assert all(map(torch.equal, ours, theirs))
        for a, b in zip(flat, theirs, strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b)


def bits():
    """Gradients of three steps, ours and torch's, with the same buckets."""
    gradients = []
    for wrap in (DDP, DistributedDataParallel):
        model = wrap(gpt(), bucket_cap_mb=0.02)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _, (inputs, targets) in zip(
            range(3), token_batches(dist.get_rank(), dist.get_world_size()), strict=False
        ):
            optimizer.zero_grad()
            loss_of(model, inputs, targets).backward()
            optimizer.step()
        gradients.append([p.grad for p in model.parameters()])
    return sum(map(torch.equal, *gradients)), len(gradients[0])


def test_gradients_equal_torchs_bit_for_bit():
    # Of two ranks: among three the order of a sum depends on where a gradient lies in its bucket, and torch's
    # DDP lays its buckets out anew after the first step.
    for equal, all_of_them in launch(bits, 2):
        assert equal == all_of_them


def test_the_graph_tells_which_parameters_were_used():
    model = Odd()
    used = parameters_in_graph({"logits": [model(torch.zeros(1, 2, dtype=torch.long), 0)]})
    names = {name for name, p in model.named_parameters() if p in used}
    assert names == {"embedding.weight", "first.weight", "first.bias"}


def forgets_a_branch():
    model = DDP(Odd())
    model(torch.zeros(1, 2, dtype=torch.long), 0).sum().backward()


def test_an_unused_parameter_is_named():
    with pytest.raises(
        RankError,
        match=r"got no gradient in this backward pass; if that is meant, wrap the model with DDPWithUnused",
    ):
        launch(forgets_a_branch, 2)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: DDP(nn.Linear(2, 2).requires_grad_(False)), "nothing to average"),
        (lambda: DDP(nn.Linear(2, 2), bucket_cap_mb=0), "bucket_cap_mb must be positive, not 0"),
    ],
)
def test_bad_input(build, words):
    with pytest.raises(RankError, match=words):
        launch(build, 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's SyncBatchNorm runs on GPUs only")
def test_synchronised_batchnorm_equals_torchs_on_gpus():
    def compare():
        x = torch.randn(4, 3, 5, 5, device=current_device(), requires_grad=True)
        y = x.detach().clone().requires_grad_()
        plain = nn.BatchNorm2d(3).to(x.device)
        theirs = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
        ours = SyncBatchNorm(plain)
        ours(x).square().sum().backward()
        theirs(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)

    launch(compare, max(1, torch.cuda.device_count()))


GPUS = torch.cuda.device_count()


def assert_equal_on_gpus(results, backend):
    """Each way against torch's DDP on every rank, and against one device, on GPUs: sums there have no fixed order."""
    one_device = results[0]["one device"]
    for rank in results:
        losses, state, traffic = rank["torch"]
        for name in ("naive", "flat", "one bucket", "small buckets"):
            assert rank[name][0] == pytest.approx(losses, abs=1e-5), (backend, name)
            assert difference(rank[name][1], state) < 1e-5, (backend, name)
            assert difference(rank[name][1], one_device[1]) < 1e-5, (backend, name)
            assert rank[name][2].sent == pytest.approx(traffic.sent)


@pytest.mark.gpu
@pytest.mark.skipif(GPUS < 1, reason="needs a GPU")
@pytest.mark.parametrize("ranks", [2, 3])
def test_equal_to_torch_and_one_device_on_one_shared_gpu(ranks):
    assert_equal_on_gpus(launch(all_ways, ranks, args=(gpt, token_batches), backend="gloo"), "gloo")


@pytest.mark.gpu
@pytest.mark.skipif(GPUS < 2, reason="NCCL needs a GPU for each rank")
@pytest.mark.parametrize("ranks", [r for r in (2, 3, 4) if r <= GPUS] or [2])
def test_equal_to_torch_and_one_device_under_nccl(ranks):
    assert_equal_on_gpus(launch(all_ways, ranks, args=(gpt, token_batches), backend="nccl"), "nccl")


class TwoLarge(nn.Module):
    def __init__(self, megabytes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 256 * megabytes, bias=False) for _ in range(2))

    def forward(self, x):
        return sum(layer(x).sum() for layer in self.layers)


def spans_of_large_buckets(megabytes):
    model = DDP(TwoLarge(megabytes).to(current_device()), bucket_cap_mb=megabytes)
    for _ in range(2):  # the first step warms up
        with record_timeline() as log:
            model(torch.ones(8, 1024, device=current_device())).backward()
    return gather_timeline(log)


@pytest.mark.gpu
@pytest.mark.skipif(GPUS < 2, reason="NCCL needs a GPU for each rank")
def test_the_span_of_a_bucket_ends_with_its_kernel_under_nccl():
    megabytes = 256
    timeline = launch(spans_of_large_buckets, 2, args=(megabytes,), backend="nccl")[0]
    for rank in timeline.ranks:
        buckets = [s for s in timeline.of(rank, "communication") if s.name.startswith("bucket")]
        assert len(buckets) == 2
        for span in buckets:  # a call returns in microseconds; no link carries 256 MB at 3 TB/s
            assert span.duration > megabytes * 2**20 / 3e12
