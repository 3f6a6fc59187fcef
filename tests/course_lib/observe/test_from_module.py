"""Real modules as the simulator takes them: memory as PyTorch's MemTracker says, FLOPs as its FlopCounterMode.

MemTracker follows two steps with Adam on fake tensors. What is predicted is put together from the pieces of one step.
"""

import copy
import random
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.flop_counter import FlopCounterMode
from traced_traffic import sent_in

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.from_module import from_module
from course_lib.observe.ledgers.saved import fake_copy
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.nested_tensors import map_tensors, tensors_in
from course_lib.runtime.launch import launch
from course_lib.tensor_parallel.apply import apply_tensor_parallel
from course_lib.tensor_parallel.tables import table_of
from simulator.any_module.memory import traced_memory
from simulator.any_module.price import step_of
from simulator.any_module.step import traced_step
from simulator.inputs.known_devices import GPUS
from simulator.inputs.plan import Plan
from simulator.inputs.traced import Traces
from simulator.ledgers.traffic import Traffic
from simulator.planner.search import search_plans, what_binds, what_helps
from simulator.predict.collective_time import collective_seconds
from simulator.predict.traffic import tensor_parallel_traffic

transformers = pytest.importorskip("transformers")
FP32 = Plan(precision="fp32", micro_batch=2)
H100 = GPUS["h100"]


def resnet():
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 2])
    return transformers.ResNetModel(config), (torch.zeros(2, 3, 128, 128),), {}


def vit(heads=3, samples=2):
    sizes = {"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": heads, "intermediate_size": 96}
    config = transformers.ViTConfig(image_size=64, **sizes)
    return transformers.ViTModel(config, add_pooling_layer=False), (torch.zeros(samples, 3, 64, 64),), {}


def u_net():
    """ConvNeXt going down and UperNet going up, with connections between them."""
    stages = {"num_stages": 2, "hidden_sizes": [16, 32], "depths": [1, 1]}
    stages |= {"out_features": ["stage1", "stage2"]}
    top = {"hidden_size": 32, "num_labels": 5, "use_auxiliary_head": False, "pool_scales": [1, 2]}
    config = transformers.UperNetConfig(backbone_config=transformers.ConvNextConfig(**stages), **top)
    return transformers.UperNetForSemanticSegmentation(config), (torch.zeros(2, 3, 64, 64),), {}


def whisper():
    layers = {f"{side}_layers": 1 for side in ("encoder", "decoder")}
    layers |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    layers |= {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_source_positions": 50}
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1)
    config = transformers.WhisperConfig(d_model=64, vocab_size=500, **layers, **tokens)
    model = transformers.WhisperForConditionalGeneration(config).requires_grad_(True)  # as MemTracker asks
    labels = torch.ones(2, 20, dtype=torch.long)
    return model, (), {"input_features": torch.zeros(2, 80, 100), "labels": labels}


def mamba():
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "state_size": 4}
    config = transformers.MambaConfig(vocab_size=200, use_cache=False, **sizes)
    tokens = torch.ones(2, 4, dtype=torch.long)
    return transformers.MambaForCausalLM(config), (), {"input_ids": tokens, "labels": tokens}


def loss_of(result):
    loss = getattr(result, "loss", None)
    return sum(t.sum() for t in tensors_in(result) if t.requires_grad) if loss is None else loss


def tracked(model, inputs, named, recompute=False):
    """Bytes at MemTracker's peak, on fake tensors."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = fake_copy(model, mode)
    inputs, named = map_tensors(mode.from_tensor, (inputs, named))
    if recompute:
        fake.train().gradient_checkpointing_enable()
    with mode:
        return peak_of_two_steps(fake, inputs, named)


def peak_of_two_steps(model, inputs, named):
    tracker = pytest.importorskip("torch.distributed._tools.mem_tracker").MemTracker()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    tracker.track_external(model, optimizer, *inputs, *named.values())
    with tracker:
        for _ in range(2):
            tracker.reset_mod_stats()
            optimizer.zero_grad()
            loss_of(model(*inputs, **named)).backward()
            optimizer.step()
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def counted(model, inputs, named):
    model = copy.deepcopy(model).to("meta")
    inputs, named = map_tensors(lambda t: t.to("meta"), (inputs, named))
    with FlopCounterMode(display=False) as counter:
        loss_of(model(*inputs, **named)).backward()
    return counter.get_total_flops()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [resnet, vit, u_net, whisper, mamba], ids=lambda make: make.__name__)
def test_a_real_module(make):
    model, inputs, named = make()
    model.train()
    traced = from_module(model, *inputs, **named)
    assert traced.parameters == sum(p.numel() for p in model.parameters())
    assert traced.samples == 2
    assert sum(traced.flops) == counted(model, inputs, named)
    (held,) = traced_memory(traced, FP32)
    assert held.total == pytest.approx(tracked(model, inputs, named), rel=0.01)
    assert traced_step(traced, FP32, H100).seconds > 0


@pytest.mark.filterwarnings("ignore")
def test_recomputed_layers():
    model, inputs, named = vit()
    traced = from_module(model.train(), *inputs)
    (held,) = traced_memory(traced, Plan(precision="fp32", recompute="full", micro_batch=2))
    assert held.total == pytest.approx(tracked(model, inputs, named, recompute=True), rel=0.01)
    whole, again = (
        traced_step(traced, Plan(precision="fp32", recompute=way, micro_batch=2), H100)
        for way in ("none", "full")
    )
    assert again.parts["recomputation"] == pytest.approx(again.seconds - whole.seconds)


def cut_vit(model, mesh):
    column, row = ColwiseParallel(), RowwiseParallel()
    styles = {"attention.[qkv]_proj": column, "attention.o_proj": row, "mlp.fc1": column, "mlp.fc2": row}
    parallelize_module(model, mesh, {f"layers.*.{name}": style for name, style in styles.items()})


def run_vit(mesh):
    """On a real rank: the parameters that it holds, and what a step sends."""
    model, inputs, _ = vit(heads=4, samples=64)
    cut_vit(model.train(), mesh)
    with record_traffic() as log:
        loss_of(model(*inputs)).backward()
    return sum(getattr(p, "_local_tensor", p).numel() for p in model.parameters()), log.traffic


def test_a_vit_that_pytorch_cuts():
    model, inputs, _ = vit(heads=4, samples=64)
    peaks = []

    def cut_and_track(fake, mesh):
        cut_vit(fake, mesh)
        x = torch.zeros(64, 3, 64, 64)
        loss_of(
            fake(x)
        ).backward()  # at first DTensors run every operator on tensors as large as the whole, too
        fake.zero_grad()
        peaks.append(peak_of_two_steps(fake, [x], {}))

    whole, cut = (from_module(model.train(), *inputs, tp=tp, cut=cut_and_track) for tp in (1, 2))
    plan = Plan(tp=2, precision="fp32", micro_batch=64)
    (held,) = traced_memory(cut, plan)
    assert held.total == pytest.approx(peaks[-1], rel=1e-4)
    sent = sum((sent_in(piece, 2) for piece in cut.pieces), Traffic())
    assert sent.rows[0].calls == 2 * (
        2 + 4
    )  # a layer's; backward q, k and v each send their input's gradient
    for parameters, traffic in launch(run_vit, mesh={"tp": 2}):
        assert (parameters, traffic) == (cut.parameters, sent)
    for one, part in zip(whole.pieces, cut.pieces, strict=True):
        assert part.flops == tuple(flops / 2 if one.name else flops for flops in one.flops)
    each = collective_seconds("all-reduce", 64 * 17 * 48 * 4, 2, 1, H100)
    assert traced_step(cut, plan, H100).parts["tensor_parallel"] == pytest.approx(12 * each)
    traces = Traces(partial(from_module, model, *inputs, cut=cut_vit), 64)
    both = step_of(traces, replace(plan, dp=2), H100)
    assert both.model_flops == 2 * sum(whole.flops)
    assert both.hardware_flops == 2 * 2 * sum(cut.flops)
    assert not dist.is_initialized()


@pytest.mark.parametrize("tp", [2, 4])
def test_the_courses_layers_send_what_the_closed_form_says(tp):
    model = GPT(GPTConfig(vocab_size=50, max_length=16, num_layers=2, hidden_size=32, num_heads=4))
    table = {name: style for name, style in table_of(model).items() if "vocabulary" not in style}
    tokens = torch.zeros(2, 16, dtype=torch.long)
    cut = from_module(model, tokens, tp=tp, cut=partial(apply_tensor_parallel, table=table))
    whole = from_module(model, tokens)
    for one, part in zip(whole.units, cut.units, strict=True):
        assert sent_in(part, tp) == tensor_parallel_traffic(2 * 16, 32, tp, 1, 4)
        assert part.flops == tuple(flops / tp for flops in one.flops)
        assert (
            one.parameters / tp < part.parameters < one.parameters / tp + 8 * 32
        )  # norms and biases stay whole
    assert cut.parameters < whole.parameters


def test_what_cannot_be_cut_is_refused():
    model, inputs, _ = vit(heads=3)
    with pytest.raises(ValueError, match="cannot be cut over tp 2: shape"):
        from_module(model, *inputs, tp=2, cut=cut_vit)
    with pytest.raises(ValueError, match="nothing says how"):
        from_module(model, *inputs, tp=2)

    def sends(module, mesh):
        module.register_forward_hook(lambda *_: dist.broadcast(torch.zeros(1), 0))

    with pytest.raises(ValueError, match=r"sends must be one of all-reduce, .*, not broadcast"):
        from_module(nn.Linear(2, 2), torch.zeros(1, 2), tp=2, cut=sends)
    assert not dist.is_initialized()


def test_another_precision():
    model, inputs, _ = vit()
    asked = from_module(model, *inputs, itemsize=2)
    assert asked == from_module(model.bfloat16(), *(x.bfloat16() for x in inputs))
    assert asked.itemsize == 2


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(8)
        )
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def tower_plan(*dp, **fields):
    """As ``Tower`` is traced below."""
    return Plan(*dp, **{"precision": "fp32", "micro_batch": 32, **fields})


@pytest.fixture(scope="module")
def tower():
    return Tower()


@pytest.fixture(scope="module")
def traced(tower):
    return from_module(tower, torch.zeros(32, 16))


def test_states_are_sharded(tower, traced):
    n, unit = traced.parameters, traced.pieces[1].parameters
    assert unit == 64 * 256 * 2 + 256 + 64
    states = [traced_memory(traced, tower_plan(4, zero=zero, microbatches=2))[0] for zero in range(4)]
    assert [held.optimizer_states for held in states] == [8 * n, 2 * n, 2 * n, 2 * n]
    assert [held.gradients for held in states] == [4 * n, 4 * n, n, n]
    assert states[3].parameters == n
    root = n - 8 * unit
    # the root, one unit and the next
    assert states[3].buffers - traced.fixed == 4 * (root + 2 * unit)
    assert all(p.grad is None and not p._post_accumulate_grad_hooks for p in tower.parameters())


def test_a_pipeline_of_equal_units(traced):
    whole = traced_step(traced, tower_plan(microbatches=8), H100)
    plan = tower_plan(pp=4, microbatches=8)
    piped = traced_step(traced, plan, H100)
    assert 0.2 < piped.parts["forward"] / whole.parts["forward"] < 0.35
    assert piped.parts["bubble"] / piped.seconds == pytest.approx(3 / 11, abs=0.12)
    ranks = traced_memory(traced, plan)
    assert sum(rank.parameters for rank in ranks) == 4 * traced.parameters
    assert ranks[0].activations > ranks[3].activations  # more microbatches are under way there


class Softened(nn.Module):
    """Saves its result, not its input: that is freed behind it, unless it is recomputed."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (x + self.scale).softmax(-1) + x


def test_recomputed_units_keep_inputs_that_they_would_not():
    model, x = nn.Sequential(*(Softened() for _ in range(4))), torch.zeros(8, 64)
    traced = from_module(model, x)
    assert any(piece.kept < 0 for piece in traced.pieces if not piece.name)
    held = {
        (pp, recompute): traced_memory(
            traced, Plan(pp=pp, microbatches=4, micro_batch=8, precision="fp32", recompute=recompute)
        )
        for pp in (1, 2, 4)
        for recompute in ("none", "full")
    }
    assert all(rank.activations >= x.nbytes for ranks in held.values() for rank in ranks)
    # Each of four recomputed units keeps as much as it passes on
    (whole,) = held[1, "full"]
    assert whole.activations >= 4 * x.nbytes


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (tower_plan(tp=2), "tp must be 1, not 2"),
        (tower_plan(precision="mixed"), "precision must have 4 bytes"),
        (tower_plan(micro_batch=2), "micro_batch must be 32, not 2"),
        (tower_plan(pp=9), "need as many units; the module has 8"),
    ],
)
def test_what_a_trace_does_not_say_is_refused(plan, words, traced):
    for price in (traced_memory, lambda *asked: traced_step(*asked, H100)):
        with pytest.raises(ValueError, match=words):
            price(traced, plan)


def test_what_cannot_be_traced_is_refused():
    for model in (nn.Linear(2, 2).requires_grad_(False), nn.ReLU()):
        with pytest.raises(ValueError, match="no backward to trace"):
            from_module(model, torch.zeros(1, 2))

    class Jumps(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x * self.bias

    with pytest.raises(ValueError, match="depends on the values"):
        from_module(Jumps(2, 2), torch.zeros(1, 2))


def test_another_number_of_samples():
    traced = from_module(Tower(), torch.zeros(2, 16), samples=8)
    assert traced == from_module(Tower(), torch.zeros(8, 16))
    assert traced.samples == 8


def drawn_questions():
    draw = random.Random(25)
    for alike in (True, False):
        width, samples = draw.choice((64, 512)), draw.choice((1, 4))
        memory = draw.choice((3e6, 2e7, 80e9))
        device = replace(draw.choice((H100, GPUS["a100-80gb"])), memory=memory, context=0)
        yield alike, width, samples, device, draw.choice((2, 4)), draw.choice((8, 12))


@pytest.mark.parametrize(("alike", "width", "samples", "device", "gpus", "batch"), [*drawn_questions()])
def test_no_plan_is_faster_than_the_first(alike, width, samples, device, gpus, batch):
    """Every combination of every number up to the number of devices, made and priced one by one."""
    widths = [width] * 4 if alike else [width, 2 * width, width]
    blocks = [nn.Sequential(nn.Linear(32, w), nn.GELU(), nn.Linear(w, 32)) for w in widths]

    def cut(model, mesh):
        parallelize_module(model, mesh, {"*.0": ColwiseParallel(), "*.2": RowwiseParallel()})

    traces = Traces(partial(from_module, nn.Sequential(*blocks), torch.zeros(samples, 32), cut=cut), samples)
    fastest, fitting = float("inf"), 0
    axes = [
        (dp, tp, pp)
        for dp, tp, pp in product(range(1, gpus + 1), repeat=3)
        if dp * tp * pp == gpus and not batch % dp
    ]
    for (dp, tp, pp), n, chunks in product(axes, (1, 2, 4, 8, 16), range(1, 9)):
        if batch // dp % n or (chunks > 1 and (pp == 1 or batch // dp // n % pp)):
            continue
        split = {"micro_batch": n, "microbatches": batch // dp // n, "chunks": chunks, "precision": "fp32"}
        for zero, recompute in product(range(4 if dp > 1 else 1), ("none", "full")):
            plan = Plan(dp, tp, pp, zero=zero, recompute=recompute, **split)
            with suppress(ValueError):
                one = traces(n, tp)
                if max(rank.occupied for rank in traced_memory(one, plan, device)) <= device.memory:
                    fastest, fitting = min(fastest, traced_step(one, plan, device).seconds), fitting + 1
    found = search_plans(traces, device, gpus, batch, keep=10_000)
    assert any(one.plan.pp > 1 for one in found.best) == alike
    assert any(one.plan.tp > 1 for one in found.best)
    assert 0 < found.fitting <= fitting
    assert found.best[0].seconds == pytest.approx(fastest, rel=1e-12)
    assert all(one.peak <= device.memory for one in found.best)
    assert what_binds(found.best[0])
    assert what_helps(traces, device, found)["arithmetic"] >= 1


def test_units_by_class_frozen_and_tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    traced = from_module(lambda: model, torch.zeros(3, 4), units=nn.Linear)
    assert [piece.name for piece in traced.pieces if piece.name] == ["0", "2"]
    assert (traced.parameters, traced.frozen) == (16 + 4 + 4, 4)
