"""Expert parallelism beside other axes: losses, gradient norms, gradients and parameters of one device, in fp64."""

from dataclasses import asdict

import pytest
import torch
from on_one_device import differences, furthest, mesh_of, train_in_parallel, train_on_one_device
from torch import nn

from course_lib.expert_parallel.apply import DealtExperts, check_experts, packed, unpacked
from course_lib.models.deepseek import Deepseek, DeepseekConfig
from course_lib.models.experts import Experts, balance, sparse_layers
from course_lib.models.mixtral import Mixtral, MixtralConfig
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.fp8 import E4M3, Operand
from course_lib.parallelize import load_checkpoint, parallelize, save_checkpoint
from course_lib.parallelize.checks import check_fits
from course_lib.parallelize.shape import model_shape
from course_lib.runtime import launch
from course_lib.runtime.fork_server import preload
from simulator.inputs.plan import Plan
from simulator.ledgers.traffic import Traffic
from simulator.predict.expert_traffic import copy_bytes, routed_traffic
from simulator.predict.memory import rank_memory
from simulator.predict.plan_traffic import plan_traffic
from simulator.predict.traffic import calls

preload("course_lib.parallelize")
STEPS, BATCH, SEQ, VOCAB, CLIP = 2, 5, 4, 31, 0.1
ROWS = {"deep": 13}  # of a batch, for more microbatches


def make(name):
    torch.manual_seed(0)
    if name.startswith("deepseek"):
        sizes = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 3, "moe_intermediate_size": 8}
        balanced = {"bias_update_speed": 0.05, "balance_loss": 0.1 * (name == "deepseek")}
        model = Deepseek(DeepseekConfig.tiny(**sizes, intermediate_size=24, **balanced)).double()
        for p in model.parameters():
            nn.init.normal_(p, std=0.3 if p.dim() == 1 else 0.1)
        return model
    layers = 5 if name == "deep" else 2
    sizes = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": layers, "intermediate_size": 8}
    if name == "cut":
        sizes |= {"vocab_size": 30, "hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 3}
    experts = {"even": 8, "deep": 8, "few tokens": 24, "unused": 8, "capacity": 8, "cut": 4}[name]
    own = {"capacity": {"capacity_factor": 0.7}, "even": {}, "cut": {}, "deep": {}}.get(
        name, {"balance_loss": 0.1}
    )
    model = Mixtral(MixtralConfig.tiny(**sizes, num_local_experts=experts, **own))
    for p in model.parameters():
        nn.init.normal_(p, std=0.3 if p.dim() == 1 else 0.1)
    if (
        name == "unused"
    ):  # two experts of the first rank get all that layer 0 sends, and the last gets nothing
        model.model.layers[0].mlp.gate.weight.data.zero_()
    return model.double()


class Rounded(torch.autograd.Function):
    """On one device what travels in 8 bits on many: a tensor, or its gradient, with a scale for 128 numbers."""

    @staticmethod
    def forward(ctx, x, of_gradient):
        ctx.of_gradient = of_gradient
        return x.clone() if of_gradient else as_e4m3(x)

    @staticmethod
    def backward(ctx, gradient):
        return as_e4m3(gradient) if ctx.of_gradient else gradient, None


def as_e4m3(x):
    return Operand(x.float(), E4M3, None, (1, 128), False).rounded().to(x.dtype)


def as_if_in_eight_bits(experts):
    whole = experts.forward
    experts.forward = lambda x, sizes: Rounded.apply(whole(Rounded.apply(x, False), sizes), True)


def data(batch=BATCH):
    """Ranks have differently many targets."""
    tokens, targets = torch.randint(
        VOCAB, (2, STEPS * batch, SEQ), generator=torch.Generator().manual_seed(1)
    )
    return tokens, targets.masked_fill(
        torch.arange(SEQ) < torch.arange(len(tokens))[:, None] % batch - 1, -100
    )


def one_device(name, eight_bits=False):
    model = make(name)
    for m in model.modules():
        if eight_bits and isinstance(m, Experts):
            as_if_in_eight_bits(m)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer.register_step_post_hook(lambda *_: balance(model))
    found = train_on_one_device(model, data(ROWS.get(name, BATCH)), ROWS.get(name, BATCH), CLIP, optimizer)
    biases = [b for n, b in model.named_buffers() if "bias" in n]
    assert all(b.any() for b in biases)
    assert len(biases) == 2 * name.startswith("deepseek")
    assert (name == "capacity") == any(m.sizes.sum() < m.chosen.numel() for m in sparse_layers(model))
    return found


def run(name, settings, *expected):
    """How far it is from each."""
    plan = Plan(**settings, precision="fp32")
    model, optimizer = parallelize(make(name), plan, mesh_of(plan), torch.optim.AdamW, lr=1e-2)
    rows = ROWS.get(name, BATCH)
    found = train_in_parallel(model, optimizer, data(rows), rows, CLIP)
    return [max(differences(found, each)) for each in expected]


# A forward and a backward at once, each waiting for others' copies
DUALPIPE = {"dp": 2, "pp": 2, "ep": 2, "zero": 1, "microbatches": 6}
DUALPIPE |= {"schedule": "dualpipe-v", "overlap": ("experts",)}
CASES = {  # ranks -> (model, plan)
    2: [
        ("even", {"dp": 2, "ep": 2}),
        ("unused", {"dp": 2, "ep": 2, "zero": 1}),
        ("few tokens", {"dp": 2, "ep": 2, "zero": 2, "microbatches": 2}),
        ("capacity", {"dp": 2, "ep": 2, "zero": 3, "recompute": "full"}),
        ("even", {"dp": 2, "ep": 2, "recompute": "full", "overlap": ()}),
        ("even", {"cp": 2, "ep": 2, "zero": 1}),
        ("deepseek", {"dp": 2, "ep": 2, "zero": 1, "recompute": "full", "microbatches": 2}),
        ("deepseek", {"dp": 2, "zero": 3}),
    ],
    4: [
        ("even", {"dp": 4, "ep": 2, "microbatches": 1}),
        ("unused", {"dp": 4, "ep": 4, "zero": 3}),
        ("even", {"dp": 2, "tp": 2, "ep": 2, "sequence_parallel": True, "zero": 1}),
        ("even", {"dp": 2, "tp": 2, "ep": 2, "sequence_parallel": True, "zero": 3, "recompute": "full"}),
        ("capacity", {"dp": 4, "ep": 2, "zero": 1}),
        ("even", {"dp": 2, "cp": 2, "ep": 4, "zero": 2}),
        ("deepseek", {"dp": 2, "pp": 2, "ep": 2, "microbatches": 2}),
        ("deepseek", {"dp": 4, "ep": 2, "zero": 3}),
        ("deepseek, no loss", {"dp": 2, "cp": 2, "ep": 2, "zero": 1, "recompute": "selective"}),
        ("deep", DUALPIPE),
        ("unused", {"dp": 2, "pp": 2, "ep": 2, "microbatches": 2, "schedule": "zb-h1", "recompute": "full"}),
    ],
}


def everything(cases, expected):
    return [run(name, settings, expected[name]) for name, settings in cases]


@pytest.mark.parametrize("ranks", CASES)
def test_losses_norms_gradients_and_parameters_equal_one_device(ranks):
    expected = {name: one_device(name) for name, _ in CASES[ranks]}
    for results in launch(everything, ranks, args=(CASES[ranks], expected), timeout=None):
        for (name, settings), [far] in zip(CASES[ranks], results, strict=True):
            assert far < 1e-9, (name, settings, far)


EIGHT_BITS = {"dp": 2, "ep": 2, "dispatch": "fp8"}


def test_copies_in_eight_bits_are_rounded_on_their_way_there_and_gradients_on_theirs():
    plans = [EIGHT_BITS, EIGHT_BITS | {"zero": 3, "recompute": "full"}]
    alone = one_device("even", eight_bits=True), one_device("even")
    for results in launch(lambda: [run("even", plan, *alone) for plan in plans], 2, timeout=None):
        for rounded, exact in results:
            assert rounded < 1e-6 < 1e-4 < exact


def test_128_numbers_share_a_scale():
    x = torch.randn(5, 300) * torch.logspace(-3, 3, 300)
    x[2] = 0
    sent = packed(x)
    assert sent.shape == (5, copy_bytes(300, Plan(dispatch="fp8")))
    assert torch.equal(unpacked(sent, 300, x.dtype), as_e4m3(x))
    assert unpacked(packed(x[:0]), 300, x.dtype).shape == (0, 300)


# ---- what is sent -------------------------------------------------------------------------------------------

CUT = {"dp": 2, "tp": 3, "ep": 2, "sequence_parallel": True, "micro_batch": 2}
SENT = {  # ranks -> plans
    4: [
        EIGHT_BITS | {"dp": 4},
        {"dp": 4, "ep": 2},
        {"dp": 4, "ep": 4, "recompute": "full"},
        {"dp": 4, "ep": 2, "zero": 1},
    ],
    6: [CUT, CUT | {"zero": 1, "recompute": "full"}, CUT | {"zero": 3}],
}


def sent(settings):
    """Of a step in fp32: measured, as the simulator says of this routing, and as it says of one in balance."""
    plan = Plan(**settings, precision="fp32", microbatches=1)
    model, optimizer = parallelize(make("cut").float(), plan, mesh_of(plan))
    tokens = torch.randint(
        30, (2, plan.micro_batch, 6), generator=torch.Generator().manual_seed(model.data_rank)
    )
    with record_traffic() as log:
        model.forward_backward(*tokens)
        optimizer.step()
    planned, memory = plan_traffic(shape := model_shape(make("cut"), 6), plan), rank_memory(shape, plan)
    held = asdict(model.memory(optimizer))
    states = {key: (held[key], getattr(memory, key)) for key in ("parameters", "optimizer_states")}
    exact = Traffic(row for row in planned.rows if row.collective != "all-to-all")
    for m in model.module.modules():
        if isinstance(m, DealtExperts):
            again = plan.recompute == "full"
            there = copy_bytes(24, plan)
            exact += routed_traffic(m.routed.tolist(), 24, m.group.rank(), 4, there=there, recompute=again)
    exact += calls("all-reduce", [1], 8, plan.dp) + calls("all-reduce", [1], 8, plan.ranks)  # targets, loss
    return log.traffic, exact, planned, states


def to_the_byte(traffic):
    return {
        (r.collective, r.group_size): (r.payload, round(r.sent, 6)) for r in traffic.rows if r.group_size > 1
    }


@pytest.mark.parametrize("ranks", SENT)
def test_a_step_sends_what_the_simulator_says(ranks):
    for settings, *found in zip(SENT[ranks], *launch(lambda: [*map(sent, SENT[ranks])], ranks), strict=True):
        for measured, exact, _, states in found:
            assert to_the_byte(measured) == to_the_byte(exact), settings
            for held, planned in states.values():
                assert held == pytest.approx(planned, rel=0.02), (settings, states)  # Adam's steps
        # In the mean over ranks as many copies travel as in balance, whatever the routing is.
        [planned] = found[0][2].of("all-to-all").rows
        rows = [measured.of("all-to-all").rows[0] for measured, *_ in found]
        assert sum(row.payload for row in rows) == len(rows) * planned.payload
        assert {row.calls for row in rows} == {planned.calls}
        assert {row.sent for row in rows} != {planned.sent}


# ---- checkpoints --------------------------------------------------------------------------------------------

SAVED, RESUMED = (
    {"dp": 4, "ep": 4, "zero": 1},
    [{"dp": 2, "ep": 2, "pp": 2}, {"dp": 4, "ep": 2, "zero": 3}, {"dp": 4}],
)


def one_step(model, optimizer, number):
    tokens, targets = data()
    rows = range(number * BATCH, (number + 1) * BATCH)[model.data_rank :: model.data_ranks]
    optimizer.zero_grad()
    loss = model.forward_backward(tokens[rows], targets[rows])
    optimizer.step()
    return loss.item()


def begin(settings, seed=0):
    plan = Plan(**settings, precision="fp32", microbatches=1)
    model = make("unused")
    if seed:
        model.apply(lambda m: [nn.init.normal_(p) for p in m.parameters(recurse=False)])
    return parallelize(model, plan, mesh_of(plan), torch.optim.AdamW, lr=1e-2)


def go_on(folder):
    model, optimizer = begin(SAVED)
    one_step(model, optimizer, 0)
    save_checkpoint(folder, model, optimizer)
    losses, states = [one_step(model, optimizer, 1)], [model.state_dict()]
    for settings in RESUMED:
        model, optimizer = begin(settings, seed=1)
        load_checkpoint(folder, model, optimizer)
        losses.append(one_step(model, optimizer, 1))
        states.append(model.state_dict())
    return [abs(loss - losses[0]) for loss in losses], [furthest(state, states[0]) for state in states]


def test_a_checkpoint_is_resumed_under_another_ep(tmp_path):
    for losses, states in launch(go_on, 4, args=(tmp_path / "saved",)):
        assert max(losses + states) < 1e-9, (losses, states)


# ---- what is refused ----------------------------------------------------------------------------------------


def test_what_cannot_be_dealt_is_refused():
    with pytest.raises(ValueError, match=r"^ep must divide the 24 experts, not 5$"):
        check_experts(make("few tokens"), 5)
    for name, axis, what in (("unused", "cp", "balance loss"), ("capacity", "tp", "capacity factor")):
        sentence = rf"^{axis} must be 1 with a {what}, not 2: it is that of whole sequences$"
        plan = Plan(**{axis: 2}, sequence_parallel=axis == "tp", precision="fp32")
        with pytest.raises(ValueError, match=sentence):
            check_fits(make(name), plan, None)
    with pytest.raises(ValueError, match=r"^ep must be 1, not 2: Linear has no experts$"):
        check_experts(nn.Linear(2, 2), 2)
