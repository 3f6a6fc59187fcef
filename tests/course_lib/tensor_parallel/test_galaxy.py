"""Hybrid layers on several ranks against one device, and what they send against the simulator, to the byte.

LoRA, adapters and side tuning in hybrid layers: ``tests/course_lib/test_matrix.py``.
"""

from itertools import product

import pytest
import torch
from torch import nn

from course_lib.finetuning.adapter import add_adapters
from course_lib.models.bart import Bart, BartConfig, shift_right
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.kv_cache import KVCache
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.masks import causal_mask, padding_mask, see_itself
from course_lib.observe.ledgers.timeline import gather_timeline, record_timeline
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.recompute import apply_recompute
from course_lib.parallelize.shape import model_shape
from course_lib.runtime import current_device, launch
from course_lib.runtime.fork_server import preload
from course_lib.tensor_parallel.full_tensors import full_gradients, own_parts
from course_lib.tensor_parallel.galaxy import apply_galaxy
from course_lib.tensor_parallel.gather_and_multiply import gather_and_multiply
from course_lib.tensor_parallel.gradient_norm import grad_norm
from simulator.inputs.galaxy import BLOCKS, WAYS
from simulator.inputs.shape import ModelShape
from simulator.ledgers.traffic import Traffic
from simulator.predict.galaxy_traffic import galaxy_traffic

preload("course_lib.tensor_parallel.galaxy")
SIDES = ("encoder", "decoder")
STEPS, BATCH, SEQ, VOCAB, CLASSES = 2, 3, 12, 61, 5


def bert(layers=2, **changes):
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_attention_heads": 8, "intermediate_size": 24}
    config = BertConfig.tiny(
        **sizes | {"num_hidden_layers": layers, "max_position_embeddings": SEQ} | changes
    )
    return BertClassifier(Bert(config, pooler=True), CLASSES)


def llama():
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2}
    return Llama(LlamaConfig.tiny(**sizes, num_attention_heads=8, num_key_value_heads=4))


def bart():
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": SEQ}
    sizes |= {f"{side}_{what}": n for side in SIDES for what, n in (("attention_heads", 8), ("ffn_dim", 24))}
    return Bart(BartConfig.tiny(vocab_size=VOCAB, **sizes))


def llama_with_adapters():
    model = llama()
    add_adapters(model, 4)
    return model


MODELS = {
    "bert": bert,
    "llama": llama,
    "bart": bart,
    "llama adapters": llama_with_adapters,
}


def make(name, seed=0, **changes):
    torch.manual_seed(seed)
    model = MODELS[name](**changes)
    for p in model.parameters():  # norms and biases start trivial: an error in them would not show
        nn.init.normal_(p, std=0.3 if p.dim() == 1 else 0.1)
    return model.to(current_device(), torch.float64)


def batch(step, name):
    """Sequences with padding at the end, and at the beginning for the causal model."""
    g = torch.Generator().manual_seed(step)
    tokens, targets = torch.randint(VOCAB, (2, BATCH, SEQ), generator=g)
    real = torch.arange(SEQ) < torch.tensor([[SEQ], [4], [9]])
    if name.startswith("llama"):
        mask = see_itself(causal_mask(SEQ) & padding_mask(real.flip(1)))
        # every second step without a mask: then the core itself is causal
        inputs = (tokens, mask) if step % 2 else (tokens,)
    elif name == "bart":  # the target is shorter than the source
        targets = targets[:, : SEQ - 3]
        inputs = (tokens, shift_right(targets, 2, 1), real, real[:, : SEQ - 3])
    else:
        inputs, targets = (tokens, real.long()), targets[:, 0] % CLASSES
    return [t.to(current_device()) for t in inputs], targets.to(current_device())


def gradients(model):
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def train(model, name, norm, steps):
    """Losses and gradient norms of all steps, the first step's gradients, and what the last one sent."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses, norms, first = [], [], None
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = batch(step, name)
        with record_traffic() as log:
            loss = cross_entropy(model(*inputs), targets)
            loss.backward()
        first = gradients(model) if first is None else first
        norms.append(float(norm(model)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, first, log.traffic


def one_device(name, steps):
    model = make(name)
    results = train(model, name, lambda m: torch.nn.utils.get_total_norm(gradients(m).values()), steps)
    return *results[:3], model.state_dict()


def furthest(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(float((ours[n] - theirs[n]).abs().max()) for n in theirs if theirs[n].numel())


def parity(mesh, name, expected, placement, shares, steps):
    """How far losses, gradient norms, and this rank's gradients and parameters are from one device's, and what a step
    sent."""
    model = apply_galaxy(make(name, seed=mesh.get_local_rank()), mesh, placement, **shares)
    losses, norms, first, traffic = train(model, name, lambda m: grad_norm(m, mesh), steps)
    differences = {
        "loss": max(abs(a - b) for a, b in zip(losses, expected[0], strict=True)),
        "norm": max(abs(a - b) / b for a, b in zip(norms, expected[1], strict=True)),
        "gradients": furthest(first, own_parts(expected[2], model)),
        "parameters": furthest(model.state_dict(), own_parts(expected[3], model)),
    }
    return differences, to_the_byte(traffic)


def prediction(mesh, name, placement, shares):
    """What the simulator says a step sends."""
    if name == "bart":
        lengths = {"encoder": SEQ, "decoder": SEQ - 3}
        shapes = {side: ModelShape(2, 32, 8, VOCAB, lengths[side], ffn=24) for side in SIDES}
    else:
        shapes = {{"bert": "post-norm", "llama": "pre-norm"}[name]: model_shape(MODELS[name](), SEQ)}
    sent = Traffic()
    for layer, shape in shapes.items():
        ranks = {"ranks": mesh.size(), "rank": mesh.get_local_rank()}
        sent += galaxy_traffic(shape, placement, **ranks, **shares, batch=BATCH, itemsize=8, layer=layer)
    return to_the_byte(sent)


def to_the_byte(traffic):
    """Its rows, with the bytes sent (for a collective a mean over the ranks) without the last digits of a float."""
    return [(r.collective, r.group_size, r.calls, r.payload, round(r.sent, 6)) for r in traffic.rows]


EVEN = {}
UNEVEN = {"heads": [5, 3], "columns": [15, 9], "sequence": [5, 3]}
NONE_ON_ONE = {"heads": [0, 8], "columns": [24, 0], "sequence": [1, 0]}
GROUPS = {"heads": [6, 2], "columns": [17, 7], "sequence": [3, 1]}
THREE = {"heads": [2, 3, 3], "columns": [6, 9, 9], "sequence": [2, 3, 3]}
THREE_GROUPS = {"heads": [2, 2, 4], "columns": [1, 0, 23], "sequence": [2, 3, 3]}
OVERLAPPED = THREE | {"overlap": True}
HOLES_OVERLAPPED = {"columns": [10, 0, 14], "sequence": [3, 0, 1], "overlap": True}
EVEN_OVERLAPPED = {"overlap": True}
HOLES = {"heads": [0, 8, 0], "columns": [10, 0, 14], "sequence": [3, 0, 1]}
SHARES = {  # for each number of ranks and each model, the shares with which all four ways are tried
    1: {"bert": [EVEN]},
    2: {
        "bert": [UNEVEN, NONE_ON_ONE],
        "llama": [GROUPS],
        "bart": [UNEVEN],
    },
    3: {"bert": [HOLES], "llama": [THREE_GROUPS], "bart": [THREE]},
}


TILES = {  # for a number of ranks and a model, the shares with which the MLP's input is gathered tile by tile
    (2, "bert"): [EVEN_OVERLAPPED],
    (3, "bert"): [OVERLAPPED, HOLES_OVERLAPPED],
    (2, "bart"): [EVEN_OVERLAPPED],
}


def everything(mesh):
    results = {}
    for name, several in SHARES[mesh.size()].items():
        expected = one_device(name, STEPS)
        cases = [
            *product(WAYS, several),
            *(("galaxy", shares) for shares in TILES.get((mesh.size(), name), ())),
        ]
        for way, shares in cases:
            found = parity(mesh, name, expected, way, shares, STEPS)
            results[name, way, str(shares)] = *found, prediction(mesh, name, way, shares)
    return results


@pytest.mark.parametrize("ranks", SHARES)
def test_four_ways_with_unequal_shares_equal_one_device_and_send_what_was_predicted(ranks):
    cases = sum(len(WAYS) * len(several) for several in SHARES[ranks].values())
    cases += sum(len(several) for (size, _), several in TILES.items() if size == ranks)
    for results in launch(everything, mesh={"tp": ranks}, timeout=None):
        assert len(results) == cases
        for case, (differences, sent, predicted) in results.items():
            for what, difference in differences.items():
                assert difference < 1e-9, (ranks, case, what)
            assert sent == predicted, (ranks, case)
            assert sent or ranks == 1


def every_mix(mesh):
    expected = {name: one_device(name, steps=1) for name in ("bert", "llama", "bart")}
    shares = {"heads": [6, 2], "columns": [20, 4], "sequence": [5, 3]}
    results = {}
    for i, mix in enumerate(product(*BLOCKS.values())):
        name = ("bert", "bart", "llama")[(i + i // 3) % 3]  # each model meets every placement of every block
        placement = dict(zip(BLOCKS, mix, strict=True))
        found = parity(mesh, name, expected[name], placement, shares, steps=1)
        results[name, mix] = *found, prediction(mesh, name, placement, shares)
    return results


def adapters_between_two_layouts(mesh):
    """An adapter behind the end of a block works on what the connection reads."""
    expected = one_device("llama adapters", 1)
    mixes = ("whole", "sequence", "sequence", "whole"), ("sequence", "whole", "whole", "sequence")
    placements = [dict(zip(BLOCKS, mix, strict=True)) for mix in mixes]
    return [parity(mesh, "llama adapters", expected, placement, EVEN, 1)[0] for placement in placements]


def with_dropout(mesh, way, recompute):
    """The loss, the gradients, and what the first connection drops on this rank."""
    drops = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
    model = apply_galaxy(make("bert", **drops), mesh, way, heads=[6, 2])
    if recompute:
        apply_recompute(model, recompute)
    dropped = []
    connection = model.bert.encoder.layer[0].attention.output
    connection.dropout.register_forward_hook(lambda _module, _inputs, y: dropped.append(y == 0))
    torch.manual_seed(7)
    inputs, targets = batch(0, "bert")
    loss = cross_entropy(model(*inputs), targets)
    loss.backward()
    return loss.item(), full_gradients(model, mesh), dropped[0]


def refused(mesh):
    """Sentences for what cannot be done."""
    tokens = torch.zeros(1, 1, dtype=torch.long, device=current_device())
    fused = LlamaConfig.tiny(fused_gate_up=True, num_key_value_heads=4)
    attempts = {
        "short": lambda: apply_galaxy(bert(), mesh, "sp")(tokens),
        "heads": lambda: apply_galaxy(bert(), mesh, heads=[4, 5]),
        "groups": lambda: apply_galaxy(llama(), mesh, heads=[5, 3]),
        "model": lambda: apply_galaxy(nn.Linear(2, 2), mesh),
        "fused": lambda: apply_galaxy(Llama(fused), mesh),
        "overlap": lambda: apply_galaxy(bert(), mesh, "tp", overlap=True),
        "two layers": lambda: apply_galaxy(llama(), mesh, "galaxy", overlap=True),
        "cache": lambda: apply_galaxy(llama(), mesh)(tokens.expand(1, 4), cache=KVCache(4)),
    }
    sentences = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except ValueError as error:
            sentences[name] = str(error)
    return sentences


def tiles(mesh):
    """This rank's spans of the product with gathered tokens, forward and backward."""
    lengths = (4, 2)
    x = torch.ones(1, lengths[mesh.get_local_rank()], 3, device=current_device(), requires_grad=True)
    weight = torch.ones(5, 3, device=current_device(), requires_grad=True)
    with record_timeline() as log:
        gather_and_multiply(lengths, mesh.get_group(), x, weight, None).sum().backward()
    spans = [s for s in gather_timeline(log, mesh.get_group()).spans if s.rank == mesh.get_local_rank()]
    return sorted((s.start, s.end, s.name) for s in spans)


def mixes_dropout_and_refusals(mesh):
    ways = product(WAYS, (None, "selective", "full"))
    dropped = {(way, recompute): with_dropout(mesh, way, recompute) for way, recompute in ways}
    return every_mix(mesh), dropped, refused(mesh), adapters_between_two_layouts(mesh), tiles(mesh)


@pytest.fixture(scope="module")
def of_two_ranks():
    return launch(mixes_dropout_and_refusals, mesh={"tp": 2}, timeout=None)


def test_every_mix_of_placements_equals_one_device(of_two_ranks):
    for results, *_ in of_two_ranks:
        assert len(results) == 36
        for case, (differences, sent, predicted) in results.items():
            assert max(differences.values()) < 1e-9, case
            assert sent == predicted, case


def test_an_adapter_behind_a_block_works_on_what_the_connection_reads(of_two_ranks):
    for *_, differences, _ in of_two_ranks:
        assert [max(d.values()) < 1e-9 for d in differences] == [True, True]


def test_ranks_drop_alike_what_both_have_and_recomputation_drops_the_same_again(of_two_ranks):
    (_, first, *_), (_, second, *_) = of_two_ranks
    for way in WAYS:
        loss, gradients, dropped = first[way, None]
        assert 0 < dropped.float().mean() < 1
        assert torch.equal(dropped, second[way, None][2]) == (way == "tp")  # parts of the sequence differ
        for results in (first, second):
            for recompute in (None, "selective", "full"):
                again = results[way, recompute]
                assert again[0] == pytest.approx(loss, abs=1e-12), (way, recompute)
                assert furthest(again[1], gradients) < 1e-12, (way, recompute)


def test_a_tile_is_multiplied_while_the_next_one_is_passed_on(of_two_ranks):
    for rank, (*_, spans) in enumerate(of_two_ranks):
        names = [name for *_, name in spans]
        other = 1 - rank
        assert names == ["tile passed on", f"tile {rank}", f"tile {other}", "tile passed on", f"tile {rank}"]
        for passing, multiplied in ((spans[0], spans[1]), (spans[3], spans[4])):  # forward, backward
            assert passing[0] <= multiplied[0]
            assert multiplied[1] <= passing[1]


def test_what_cannot_be_done_is_refused_in_a_sentence(of_two_ranks):
    for _, _, sentences, *_ in of_two_ranks:
        assert sentences["short"].startswith("sequence: 2 ranks cannot share 1 tokens: give longer sequences")
        assert sentences["heads"].startswith(
            "heads must be 2 whole numbers, one a rank, that add up to 8, not"
        )
        assert sentences["groups"].startswith("heads: 2 query heads share one head of keys and values")
        assert sentences["model"].startswith(
            "there are hybrid layers for Bert, Llama, Bart, and Linear holds 0"
        )
        assert sentences["fused"].startswith(
            "model.layers.0.mlp.gate_up_proj has parameters, and no table says"
        )
        assert sentences["overlap"].startswith(
            "overlap: no all-gather stands before the MLP, unless connection_1"
        )
        assert sentences["two layers"] == (
            "overlap: the MLP of model.layers.0 does not begin with one plain linear layer"
        )
        assert sentences["cache"] == "hybrid layers train a model: they take no cache"
