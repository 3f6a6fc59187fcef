"""Every composition of data, tensor and pipeline parallelism against one device: losses, gradient norms, gradients."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from on_one_device import mesh_of, train_on_one_device
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.data.sharding import batches
from course_lib.models.bart import Bart, BartConfig, shift_right
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.masked_words import BertMaskedWords
from course_lib.parallelize import parallelize
from course_lib.pipeline.microbatches import sum_cross_entropy
from course_lib.runtime import launch
from course_lib.runtime.fork_server import preload
from course_lib.runtime.rank_order import coordinates, rank_groups
from simulator.inputs.chunks import chunk_sizes
from simulator.inputs.plan import Plan

preload("course_lib.parallelize")  # 20 ranks need not import it
STEPS, BATCH, SEQ, CLIP = 2, 7, 12, 0.1
VOCAB = 97  # a prime: the vocabulary is dealt out unevenly
CLASSES = 5


def gpt(**changes):
    sizes = {"vocab_size": VOCAB, "max_length": 16, "num_layers": 3, "num_heads": 4, "hidden_size": 16}
    return GPT(GPTConfig.tiny(**sizes | changes))  # tied embeddings; three layers are two stages of 2 and 1


def llama():
    sizes = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
    return Llama(LlamaConfig.tiny(**sizes, num_attention_heads=4, num_key_value_heads=1))  # on several ranks


def bert():
    config = BertConfig.tiny(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=3, intermediate_size=32)
    return BertClassifier(Bert(config, pooler=True), CLASSES)


def masked_words():
    config = BertConfig.tiny(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=3, intermediate_size=32)
    return BertMaskedWords(Bert(config))


def bart():
    sizes = {
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 32,
    }
    flags = {"scale_embedding": True, "final_logits_bias": False}
    return Bart(BartConfig.tiny(vocab_size=VOCAB, **sizes, **flags))


MODELS = {
    "gpt": gpt,
    "bart": bart,
    "masked words": masked_words,
    "five layers": partial(gpt, num_layers=5),
    "llama": llama,
    "bert": bert,
}


def make(name, seed=0):
    torch.manual_seed(seed)
    model = MODELS[name]()
    for p in model.parameters():  # norms and biases start trivial: an error in them would not show
        nn.init.normal_(p, std=0.3 if p.dim() == 1 else 0.1)
    return model.double()


def data(name):
    """Sequences in which some targets do not count, more of them in the first ones: ranks count differently many."""
    g = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(VOCAB, (2, STEPS * BATCH, SEQ), generator=g)
    if name == "bert":
        lengths = torch.randint(3, SEQ + 1, (len(tokens), 1), generator=g)
        return tokens, (torch.arange(SEQ) < lengths).long(), targets[:, 0] % CLASSES
    rows = torch.arange(len(tokens))[:, None] % BATCH
    if name == "bart":  # sources and targets differ in length, and both have padding
        targets = targets[:, : SEQ - 4].masked_fill(torch.arange(SEQ - 4) > rows + 1, -100)
        return tokens, shift_right(targets, 2, 1), (torch.arange(SEQ) < rows + 3).long(), targets
    return tokens, targets.masked_fill(torch.arange(SEQ) > 2 * rows + 1, -100)


def one_device(name):
    """What every plan must give."""
    return train_on_one_device(make(name), data(name), BATCH, CLIP)


def run(plan, name, expected, official_clip=False):
    """How far losses, gradient norms, first gradients and parameters under a plan are from one device."""
    mesh = mesh_of(plan)
    start = make(name, seed=dist.get_rank())  # a model of its own on each rank: rank 0's counts
    model, optimizer = parallelize(start, plan, mesh, torch.optim.AdamW, lr=1e-2)
    losses, norms, first = [], [], None
    slices = batches(data(name), BATCH, rank=model.data_rank, ranks=model.data_ranks, epochs=1)
    for *inputs, targets in slices:
        optimizer.zero_grad()
        losses.append(model.forward_backward(*inputs, targets).item())
        first = first or model.gradients()
        if official_clip:
            held = [p for group in optimizer.param_groups for p in group["params"]]
            norms.append(nn.utils.clip_grad_norm_(held, CLIP).item())
        else:
            norms.append(model.clip_grad_norm(CLIP).item())
        optimizer.step()
    state = model.state_dict()
    assert list(state) == list(expected[3]), "names and their order are the plain model's"
    return {
        "loss": furthest(losses, expected[0]),
        "norm": max(abs(a - b) / b for a, b in zip(norms, expected[1], strict=True)),
        "gradients": furthest_of(first, expected[2]),
        "parameters": furthest_of(state, expected[3]),
    }


def furthest(ours, theirs):
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def furthest_of(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(float((ours[n] - t.cpu()).abs().max()) for n, t in theirs.items())


SP = {"sequence_parallel": True}
CASES = {  # ranks -> (model, plan)
    1: [("gpt", {"microbatches": 3}), ("gpt", {"zero": 3}), ("gpt", {"zero": 1, "recompute": "full"})],
    2: [
        ("gpt", {"dp": 2, "microbatches": 2}),
        ("gpt", {"dp": 2, "overlap": ()}),
        ("gpt", {"dp": 2, "zero": 1, "microbatches": 3}),
        ("gpt", {"dp": 2, "zero": 1, "overlap": ()}),
        ("gpt", {"dp": 2, "zero": 2, "microbatches": 2}),
        ("gpt", {"dp": 2, "zero": 3, "microbatches": 2, "recompute": "full"}),
        ("gpt", {"tp": 2, "microbatches": 2}),
        ("gpt", {"tp": 2, "recompute": "full", **SP}),
        ("gpt", {"pp": 2, "microbatches": 3}),
        (
            "gpt",
            {"pp": 2, "schedule": "gpipe", "microbatches": 2, "stage_layers": (1, 2), "recompute": "full"},
        ),
        ("llama", {"pp": 2, "schedule": "zb-h1", "microbatches": 4}),
        ("bert", {"pp": 2}),
    ],
    4: [
        ("gpt", {"dp": 2, "tp": 2, "microbatches": 3, "recompute": "selective", **SP}),
        ("gpt", {"dp": 2, "tp": 2, "zero": 1, "microbatches": 2, **SP}),
        ("llama", {"dp": 2, "tp": 2, "zero": 1}),
        ("gpt", {"dp": 2, "tp": 2, "zero": 2, "microbatches": 2}),
        ("llama", {"dp": 2, "tp": 2, "zero": 3, "recompute": "full", **SP}),
        ("bert", {"dp": 2, "tp": 2, "zero": 3}),
        ("gpt", {"dp": 4, "zero": 3, "shard": 2}),
        ("gpt", {"dp": 2, "pp": 2, "microbatches": 1}),
        ("gpt", {"dp": 2, "pp": 2, "zero": 1, "microbatches": 3}),
        ("gpt", {"tp": 2, "pp": 2, "schedule": "zb-h1", "microbatches": 3, **SP}),
        ("bert", {"tp": 2, "pp": 2, "recompute": "selective", **SP}),
        ("bart", {"dp": 2, "tp": 2, "zero": 1, **SP}),
        ("bart", {"dp": 2, "tp": 2, "zero": 3, "recompute": "full"}),
        ("bart", {"tp": 2, "pp": 2, "schedule": "zb-h1", "microbatches": 3, **SP}),
        ("bart", {"dp": 2, "pp": 2, "chunks": 2, "microbatches": 2, "recompute": "selective"}),
        ("masked words", {"tp": 2, "pp": 2, **SP}),
    ],
    8: [
        ("llama", {"dp": 2, "tp": 2, "pp": 2, "microbatches": 2, "zero": 1, "recompute": "full", **SP}),
        ("five layers", {"dp": 2, "tp": 2, "pp": 2, "schedule": "zb-v", "microbatches": 3, "zero": 1, **SP}),
    ],
}


def everything(cases, expected):
    if dist.get_world_size() == 8:
        check_groups()
        check_seeds()
    results = []
    for i, (name, settings) in enumerate(cases):
        plan = Plan(**settings, precision="fp32")
        results.append(run(plan, name, expected[name], official_clip=i % 2 == 1))
    return results


def check_groups():
    """Megatron-LM's rank order is that of the mesh."""
    sizes = {"tp": 2, "dp": 2, "pp": 2}
    mesh = mesh_of(Plan(**sizes))
    for axis in sizes:
        own = dist.get_process_group_ranks(mesh[axis].get_group())
        assert own in rank_groups(sizes, axis)
        assert mesh[axis].get_local_rank() == coordinates(dist.get_rank(), sizes)[axis]


@pytest.mark.parametrize(("ranks", "cases"), CASES.items(), ids=map(str, CASES))
def test_losses_norms_gradients_and_parameters_equal_one_device(ranks, cases):
    expected = {name: one_device(name) for name, _ in cases}
    for results in launch(everything, ranks, args=(cases, expected), timeout=None):
        for (name, settings), far in zip(cases, results, strict=True):
            for what, difference in far.items():
                assert difference < 1e-10, (name, settings, what, difference)


# ---- dropout, accumulation, another plan, 16 bits -----------------------------------------------------------


def make_parallel(settings, name="gpt", model=None):
    plan = Plan(**{"precision": "fp32"} | settings)
    mesh = mesh_of(plan)
    return parallelize(model or make(name), plan, mesh, torch.optim.AdamW, lr=1e-2)


def slice_of(model, tensors):
    sizes = chunk_sizes(len(tensors[0]), model.data_ranks)
    return [tensor.split(sizes)[model.data_rank] for tensor in tensors]


def with_dropout(settings, seed):
    """One step with dropout: the gradients, and this rank's parameters after it."""
    torch.manual_seed(0)
    start = gpt(dropout=0.3).double()
    torch.manual_seed(seed + dist.get_rank())  # rank 0's seed counts
    model, optimizer = make_parallel(settings, model=start)
    seeds = torch.initial_seed()
    model.forward_backward(*slice_of(model, [t[:BATCH] for t in data("gpt")]))
    gradients = model.gradients()
    optimizer.step()
    cut = {name for name, _ in model.named_parameters() if name in model.whole.shards}
    return seeds, gradients, {n: p.detach() for n, p in model.named_parameters()}, cut


def check_seeds():
    """With dropout, ranks with the same data and layers draw the same masks, and others have other seeds."""
    drawn = with_dropout({"dp": 2, "tp": 2, "pp": 2, "microbatches": 2}, 5)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (*drawn, coordinates(dist.get_rank(), {"tp": 2, "dp": 2, "pp": 2})))
    for seed, _, parameters, cut, place in everyone:
        for seed_2, _, parameters_2, _, place_2 in everyone:
            same_masks = all(place[axis] == place_2[axis] for axis in ("dp", "pp"))
            assert (seed == seed_2) == same_masks, (place, place_2)
            if place["pp"] == place_2["pp"]:
                names = parameters if place["tp"] == place_2["tp"] else parameters.keys() - cut
                assert names
                assert all(torch.equal(parameters[name], parameters_2[name]) for name in names), (
                    "no copy drifts"
                )


def dropout():
    """How far gradients are from those of the same seed, and of another; with and without recomputation."""
    plan = {"tp": 2, "pp": 2, "microbatches": 2}
    plain, again, other = (with_dropout(plan, seed)[1] for seed in (5, 5, 6))
    recomputed = with_dropout(plan | {"recompute": "full", **SP}, 5)[1], with_dropout(plan | SP, 5)[1]
    return furthest_of(plain, again), furthest_of(plain, other), furthest_of(*recomputed)


def accumulated(settings):
    """Two calls before a step: how far the gradients are from two backwards on one device."""
    one = make("gpt")
    model, _ = make_parallel(settings)
    tokens, targets = data("gpt")
    for rows in (slice(0, 7), slice(7, 12)):
        own_tokens, own_targets = tokens[rows], targets[rows]
        (sum_cross_entropy(one(own_tokens), own_targets) / (own_targets != -100).sum()).backward()
        model.forward_backward(*slice_of(model, (own_tokens, own_targets)))
    return furthest_of(model.gradients(), {n: p.grad for n, p in one.named_parameters()})


def resumed(first, second, expected):
    """A step under one plan and the next under another: how far the parameters are from one device."""
    steps = list(batches(data("gpt"), BATCH, epochs=1))
    states = None
    for settings, own_steps in ((first, steps[:1]), (second, steps[1:])):
        model, optimizer = make_parallel(settings, model=make("gpt", seed=9) if states else None)
        if states:
            model.load_state_dict(states[0])
            model.load_optimizer_state_dict(optimizer, states[1])
        for batch in own_steps:
            optimizer.zero_grad()
            model.forward_backward(*slice_of(model, batch))
            model.clip_grad_norm(CLIP)
            optimizer.step()
        states = model.state_dict(), model.optimizer_state_dict(optimizer)
    plain = make("gpt", seed=9)
    plain.load_state_dict(states[0])
    official = torch.optim.AdamW(plain.parameters())
    names = {p: name for name, p in plain.named_parameters()}
    assert list(states[1]["state"]) == list(names.values())
    assert states[1]["param_groups"][0]["params"] == list(names.values())
    assert all(
        states[1]["state"][names[p]]["exp_avg"].shape == p.shape for p in official.param_groups[0]["params"]
    )
    return furthest_of(plain.state_dict(), expected[3])


def in_16_bits(settings):
    """The relative difference between the gradients in 16 bits and those of one device in fp64."""
    one, (tokens, targets) = make("gpt"), [t[:8] for t in data("gpt")]
    (sum_cross_entropy(one(tokens), targets) / (targets != -100).sum()).backward()
    model, optimizer = make_parallel(settings, model=make("gpt").float())
    model.forward_backward(*slice_of(model, (tokens, targets)))
    got, exact = model.gradients(), {n: p.grad for n, p in one.named_parameters()}
    optimizer.step()
    wrong = sum(float((got[n].double() - g.cpu()).square().sum()) for n, g in exact.items())
    return (wrong / sum(float(g.square().sum()) for g in exact.values())) ** 0.5


PLANS = (
    {"tp": 2, "pp": 2, "microbatches": 2},
    {"dp": 2, "pp": 2, "microbatches": 2, "zero": 1},
    {"dp": 2, "tp": 2, "zero": 3},
)


IN_16_BITS = [(0, "mixed"), (1, "bf16"), (2, "bf16"), (2, "mixed")]


def in_company(expected):
    return {
        "accumulated": [accumulated(plan) for plan in PLANS],
        "resumed": [resumed(a, b, expected) for a, b in zip(PLANS, PLANS[1:] + PLANS[:1], strict=True)],
        "16 bits": [in_16_bits(PLANS[i] | {"precision": p}) for i, p in IN_16_BITS],
        "dropout": dropout(),
    }


def test_accumulation_another_plan_16_bits_and_dropout():
    for got in launch(in_company, 4, args=(one_device("gpt"),), timeout=None):
        assert max(got["accumulated"] + got["resumed"]) < 1e-10, got
        assert all(1e-4 < far < 0.05 for far in got["16 bits"]), got["16 bits"]
        again, other, recomputed = got["dropout"]
        assert again == 0, "a seed gives the same masks again"
        assert other > 1e-4
        assert recomputed < 1e-12, "the masks are drawn again"


# ---- what is refused ----------------------------------------------------------------------------------------

REFUSED = [
    (
        {"dp": 2, "cp": 2},
        "this plan needs the mesh {'pp': 1, 'dp': 2, 'cp': 2, 'tp': 1}, as mesh_axes(plan) gives it",
    ),
    ({"dp": 2, "ep": 2}, "ep must be 1, not 2: GPT has no experts"),
    ({"dp": 4}, "this plan needs the mesh {'pp': 1, 'dp': 4, 'tp': 1}, as mesh_axes(plan) gives it, not"),
    ({"dp": 1}, "this plan is for 1 ranks, and 2 are running"),
    ({"pp": 2, "zero": 3}, "zero must be 0 or 1 with pp 2, not 3"),
    ({"dp": 2, "zero": 1, "shard": 1}, "shard must be the 2 data-parallel ranks with zero 1, not 1"),
    ({"dp": 2, "offload": "optimizer"}, "offload must be none, or parameters with zero 3, not optimizer"),
    (
        {"tp": 2, "precision": "fp8", "sequence_parallel": True},
        "sequence_parallel must be no with precision fp8",
    ),
    ({"dp": 2, "overlap": ("gradients", "tensor")}, "overlap must be none, gradients or experts, not tensor"),
    ({"pp": 2, "chunks": 2}, "4 pipeline stages need as many layers; the model has 3"),
    ({"pp": 2, "stage_layers": (2, 2)}, "stage layers must be 2 numbers that add up to 3, not (2, 2)"),
    ({"tp": 2}, "tp must divide the 3 heads, not 2"),
]


def refused(mesh):
    said = []
    for settings, _ in REFUSED:
        plan = Plan(**{"precision": "fp32"} | settings)
        model = gpt(num_heads=3, hidden_size=12) if plan.tp > 1 else gpt()
        own = mesh_of(plan) if plan.ranks == 2 else mesh
        if plan.ranks == 1:
            own = DeviceMesh(
                mesh.device_type, torch.zeros(1, 1, 1, dtype=torch.int), mesh_dim_names=("pp", "dp", "tp")
            )
        before = [p.clone() for p in model.parameters()]
        try:
            parallelize(model, plan, own)
        except ValueError as error:
            said.append(str(error))
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    plan = Plan(pp=2, precision="fp32")
    try:
        parallelize(bert(), plan, mesh_of(plan), placement={"placement": "galaxy", "heads": [3, 1]})
    except ValueError as error:
        said.append(str(error))
    model, _ = make_parallel({"dp": 2, "microbatches": 3})
    for targets in (torch.zeros(2, 4, dtype=torch.long), torch.full((3, 4), -100)):
        try:
            model.forward_backward(torch.zeros_like(targets).abs(), targets)
        except ValueError as error:
            said.append(str(error))
    return said


def test_a_plan_that_does_not_fit_is_refused_in_one_sentence():
    for said in launch(refused, mesh={"pp": 1, "dp": 2, "tp": 1}):
        sentences = [sentence for _, sentence in REFUSED]
        sentences.append("pp must be 1 with a placement, not 2: a stage would not know where its blocks are")
        sentences += [
            "data-parallel ranks at least (2 on this one): each needs 3 or more",
            "no target counts: all of them are -100",
        ]
        for got, sentence in zip(said, sentences, strict=True):
            assert sentence in got
