"""Applying a table to a model: what is refused, what stays as it was, and with what it works together."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.data_parallel.ddp import DDP
from course_lib.data_parallel.fsdp import FSDP
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import current_device, launch
from course_lib.tensor_parallel.apply import apply_tensor_parallel
from course_lib.tensor_parallel.full_tensors import (
    full_gradients,
    full_state_dict,
    full_tensors,
    load_full_state_dict,
    own_parts,
    shards_of,
)
from course_lib.tensor_parallel.gradient_norm import clip_grad_norm_
from course_lib.tensor_parallel.tables import table_of
from course_lib.tensor_parallel.vocab import VocabParallelCrossEntropy

VOCAB, SEQ = 31, 12


def gpt(**changes):
    sizes = {"vocab_size": VOCAB, "max_length": 16, "num_layers": 2, "num_heads": 4, "hidden_size": 24}
    return GPT(GPTConfig.tiny(**sizes | changes))


def llama(**changes):
    sizes = {"vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2}
    return Llama(LlamaConfig.tiny(**sizes | {"num_attention_heads": 4, "num_key_value_heads": 1} | changes))


def seeded(build, dtype=torch.float64, **changes):
    torch.manual_seed(0)
    model = build(**changes)
    for p in model.parameters():
        nn.init.normal_(p, std=0.2)
    return model.to(current_device(), dtype)


def batch(size=4):
    g = torch.Generator().manual_seed(1)
    return torch.randint(VOCAB, (2, size, SEQ), generator=g).to(current_device())


def furthest(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(float((ours[n].double() - theirs[n].cpu().double()).abs().max()) for n in theirs)


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters()}


# ---- refused in a sentence, and the model is as it was ------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x):
        return self.b(F.relu(self.a(x)))


class TwoNets(nn.Module):
    """Both halves are one Net, so its modules have two names; a norm shares the bias of a layer that is cut by rows."""

    def __init__(self):
        super().__init__()
        self.first = self.second = Net()
        self.norm = nn.LayerNorm(6)
        self.norm.bias = self.first.b.bias

    def forward(self, x):
        return self.norm(self.second(self.first(x)))


NET = {"net": "enter", "net.a": "column", "net.b": "row"}


def in_module(net):
    return nn.ModuleDict({"net": net})


def refusals(mesh):
    tied = nn.ModuleDict({"e": nn.Embedding(8, 6), "l": nn.Linear(6, 8, bias=False)})
    tied["l"].weight = tied["e"].weight
    sparse = llama(num_attention_heads=3, num_key_value_heads=3)
    sparse.model.embed_tokens.sparse = True
    cases = {
        "heads": lambda m: apply_tensor_parallel(m, mesh),
        "kv heads": lambda m: apply_tensor_parallel(m, mesh),
        "columns": lambda m: apply_tensor_parallel(m, mesh),
        "vocabulary": lambda m: apply_tensor_parallel(m, mesh),
        "no table": lambda m: apply_tensor_parallel(m, mesh),
        "unknown style": lambda m: apply_tensor_parallel(m, mesh, {"net.a": "diagonal"}),
        "unknown name": lambda m: apply_tensor_parallel(m, mesh, NET | {"net.c": "row"}),
        "not entered": lambda m: apply_tensor_parallel(m, mesh, {"net.a": "column", "net.b": "row"}),
        "not a linear layer": lambda m: apply_tensor_parallel(m, mesh, NET | {"net": "row"}),
        "no head size": lambda m: apply_tensor_parallel(m, mesh, NET | {"net.a": "heads"}),
        "tied": lambda m: apply_tensor_parallel(m, mesh, {"e": "vocabulary"}),
        "no tokens": lambda m: apply_tensor_parallel(m, mesh, NET, sequence_parallel=True),
        "embedding": lambda m: apply_tensor_parallel(m, mesh),
        "not named": lambda m: apply_tensor_parallel(
            m, mesh, {"*.0": "enter", "*.0.a": "column", "*.0.b": "row"}, sequence_parallel=True
        ),
    }
    models = {
        "heads": gpt(num_heads=4),
        "kv heads": llama(num_attention_heads=12, num_key_value_heads=4, hidden_size=48),
        "columns": Bert(BertConfig.tiny(hidden_size=48, num_attention_heads=12, intermediate_size=100)),
        "vocabulary": gpt(num_heads=6, vocab_size=2),
        "no table": Net(),
        "embedding": sparse,
        "tied": tied,
        "not named": nn.ModuleDict({"s": nn.Sequential(Net(), nn.LayerNorm(6))}),
    }
    messages = {}
    for name, call in cases.items():
        model = models.get(name) or in_module(Net())
        before = {n: (type(m), m._forward_pre_hooks.copy()) for n, m in model.named_modules()}
        state = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError) as error:
            call(model)
        assert before == {n: (type(m), m._forward_pre_hooks.copy()) for n, m in model.named_modules()}
        assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())
        messages[name] = str(error.value)
    model = apply_tensor_parallel(gpt(num_heads=6), mesh, sequence_parallel=True)
    with pytest.raises(ValueError) as error:
        model(batch()[0][:, :10])
    return messages | {"sequence": str(error.value)}


def test_what_does_not_fit_is_refused_in_a_sentence():
    for got in launch(refusals, mesh={"tp": 3}):
        assert got == {
            "heads": "blocks.0.attention.query: 3 ranks cannot share 4 heads equally: choose a divisor of 4",
            "kv heads": "model.layers.0.self_attn.k_proj: 3 ranks cannot share 4 heads of keys and values: "
            "choose a divisor or a multiple of 4",
            "columns": "encoder.layer.0.intermediate.dense: 3 ranks cannot share 100 columns equally: "
            "choose a divisor of 100",
            "vocabulary": "embedding.tokens: a vocabulary of 2 cannot be dealt to 3 ranks: choose at most 2 ranks",
            "no table": "there is a table for GPT, Bert, BertMaskedWords, Llama, Mixtral, Falcon, Bart, and Net holds "
            "0 of them: give one as table=",
            "unknown style": "net.a has the style 'diagonal'; the styles are enter, column, heads, kv heads, grouped "
            "heads, copied, core, row, vocabulary, vocabulary head, part, replicated, sequence, positions, whole",
            "unknown name": "ModuleDict has no module net.c; it has net, net.a, net.b",
            "not entered": "net.a is cut by columns, but no module around it has the style 'enter': its input would "
            "get a part of its gradient",
            "not a linear layer": "net.a is cut by columns, but no module around it has the style 'enter': its input "
            "would get a part of its gradient",
            "no head size": "net.a cannot be cut by heads: no module around it has a head_size",
            "tied": "e.weight and l.weight are one tensor: the table must cut them alike",
            "not named": "with sequence parallelism the table must name every module that has parameters, and s.1 is "
            "not in it: is it 'sequence' (works on this rank's tokens) or 'replicated' (works on all)?",
            "no tokens": "sequence parallelism begins at an embedding with the style 'vocabulary', which gives each "
            "rank its tokens: the table has none",
            "embedding": "model.embed_tokens: an embedding with sparse cannot be cut over ranks: make it without",
            "sequence": "3 ranks cannot share a sequence of 10 tokens equally: pad it to a multiple",
        }


# ---- equal to one device in company --------------------------------------------------------------------------


def own_table(mesh):
    """A table of one's own, and a module that is used under two names."""
    one, ours = seeded(TwoNets), seeded(TwoNets)
    table = {"first": "enter", "first.a": "column", "first.b": "row"}
    apply_tensor_parallel(ours, mesh, table)
    assert ours.first is ours.second
    assert ours.norm.bias is ours.first.b.bias
    x = torch.ones(2, 3, 6, dtype=torch.float64, device=current_device())
    one(x).square().sum().backward()
    ours(x).square().sum().backward()
    return furthest(full_gradients(ours, mesh), gradients(one))


def infinite(mesh):
    """Clipping gradients of which one rank has an infinity."""
    ours = apply_tensor_parallel(seeded(gpt), mesh)
    tokens, targets = batch()
    VocabParallelCrossEntropy(VOCAB, mesh)(ours(tokens), targets).backward()
    gradient = ours.blocks[0].mlp.up.weight.grad
    gradient[0, 0] = float("inf") if mesh.get_local_rank() == 0 else gradient[0, 0]
    before = ours.head.weight.grad.clone()
    with pytest.raises(ValueError, match="the norm of the gradient is inf, so no gradient was changed"):
        clip_grad_norm_(ours, 1.0, mesh, error_if_nonfinite=True)
    return float((ours.head.weight.grad - before).abs().max())


def accumulated_and_clipped(mesh, sequence_parallel):
    """Two microbatches, then clipping: how far the norm, the gradients, and the parameters after a step are."""
    one, ours = seeded(gpt), apply_tensor_parallel(seeded(gpt), mesh, sequence_parallel=sequence_parallel)
    tokens, targets = batch()
    loss_fn = VocabParallelCrossEntropy(VOCAB, mesh)
    for part, weight in ((slice(0, 3), 0.75), (slice(3, 4), 0.25)):
        (weight * cross_entropy(one(tokens[part]), targets[part])).backward()
        (weight * loss_fn(ours(tokens[part]), targets[part])).backward()
    norm = torch.nn.utils.clip_grad_norm_(one.parameters(), 0.1)
    assert norm > 0.2, "the gradients must be clipped"
    got = clip_grad_norm_(ours, 0.1, mesh)
    far = furthest(full_gradients(ours, mesh), gradients(one))
    means = []
    for model in (one, ours):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        optimizer.step()
        means.append({name: optimizer.state[p]["exp_avg"] for name, p in model.named_parameters()})
    far_means = furthest(full_tensors(means[1], ours, mesh), means[0])
    parts = own_parts(full_tensors(means[1], ours, mesh), ours)
    assert all(torch.equal(parts[name], mean.cpu()) for name, mean in means[1].items())
    return abs(float(got - norm)), far, far_means, furthest(full_state_dict(ours, mesh), one.state_dict())


def saved_and_loaded(mesh):
    """A whole state dict, taken from the ranks and loaded into others, and a copy of a model."""
    ours = apply_tensor_parallel(seeded(llama), mesh)
    state = full_state_dict(ours, mesh)
    other = apply_tensor_parallel(llama().double(), mesh, sequence_parallel=True)
    load_full_state_dict(other, state)
    twin, tokens = copy.deepcopy(other), batch()[0]
    for p in other.parameters():
        p.data.zero_()
    far = float((ours(tokens) - twin(tokens)).abs().max())
    return furthest(state, seeded(llama).state_dict()), far


def in_16_bits(mesh, sequence_parallel):
    """Relative differences in the norm of all gradients: to fp32 on one device, ours and one device's own."""
    tokens, targets = batch()
    loss_fn = VocabParallelCrossEntropy(VOCAB, mesh)

    def run(model, loss_fn, autocast=False):
        with torch.autocast(current_device().type, torch.bfloat16, enabled=autocast):
            logits = model(tokens)
        loss_fn(logits.float(), targets).backward()

    exact, plain = seeded(gpt, torch.float32), seeded(gpt, torch.bfloat16)
    run(exact, cross_entropy)
    run(plain, cross_entropy)
    ours = apply_tensor_parallel(seeded(gpt, torch.bfloat16), mesh, sequence_parallel=sequence_parallel)
    run(ours, loss_fn)
    mixed = apply_tensor_parallel(seeded(gpt, torch.float32), mesh, sequence_parallel=sequence_parallel)
    run(mixed, loss_fn, autocast=True)
    assert all(p.grad.dtype == torch.float32 for p in mixed.parameters())

    def far(grads):
        true = gradients(exact)
        assert grads.keys() == true.keys()
        wrong = sum(float((grads[n].cpu().float() - t.cpu()).square().sum()) for n, t in true.items())
        return (wrong / sum(float(t.square().sum()) for t in true.values())) ** 0.5

    return far(gradients(plain)), far(full_gradients(ours, mesh)), far(full_gradients(mixed, mesh))


def unfrozen_later(mesh):
    """Parameters that are frozen when the model is cut, and trained afterwards."""
    one, ours = seeded(gpt), seeded(gpt)
    for p in ours.parameters():
        p.requires_grad_(False)
    apply_tensor_parallel(ours, mesh, sequence_parallel=True)
    for p in ours.parameters():
        p.requires_grad_(True)
    tokens, targets = batch()
    cross_entropy(one(tokens), targets).backward()
    VocabParallelCrossEntropy(VOCAB, mesh)(ours(tokens), targets).backward()
    return furthest(full_gradients(ours, mesh), gradients(one))


def everything(mesh):
    return {
        "own table": own_table(mesh),
        "accumulated": accumulated_and_clipped(mesh, False),
        "accumulated, sequence parallel": accumulated_and_clipped(mesh, True),
        "infinite": infinite(mesh),
        "saved": saved_and_loaded(mesh),
        "16 bits": [in_16_bits(mesh, sp) for sp in (False, True)],
        "unfrozen": unfrozen_later(mesh),
    }


def test_in_company_it_equals_one_device():
    for got in launch(everything, mesh={"tp": 2}):
        for plain, bf16, mixed in got.pop("16 bits"):
            assert 0 < bf16 < 1.5 * plain
            assert 0 < mixed < 1.5 * plain
        for what, far in got.items():
            assert torch.tensor(far).max() < 1e-10, what


# ---- beside data parallelism ---------------------------------------------------------------------------------


def with_data_parallelism(mesh, kind):
    """Each data-parallel rank has its own sequences; tensor-parallel ranks have the same."""
    results = []
    for sequence_parallel in (False, True):
        one = seeded(llama)
        tokens, targets = batch()
        cross_entropy(one(tokens), targets).backward()
        model = apply_tensor_parallel(seeded(llama), mesh["tp"], sequence_parallel=sequence_parallel)
        shards = shards_of(model)
        assert any(shard.copies > 1 for shard in shards.values()), "keys and values are on several ranks"
        if kind == "ddp":
            wrapped = DDP(model, bucket_cap_mb=0.01, group=mesh["dp"].get_group())
        else:
            wrapped = FSDP(model, ["model.layers.*"], mesh["dp"])
        part = mesh["dp"].get_local_rank()
        loss = VocabParallelCrossEntropy(VOCAB, mesh["tp"])(
            wrapped(tokens.chunk(2)[part]), targets.chunk(2)[part]
        )
        loss.backward()
        if kind == "ddp":
            results.append(furthest(full_gradients(model, mesh["tp"]), gradients(one)))
        else:
            parts = wrapped.gradients()
            expected = gradients(one)
            results.append(
                max(
                    float((parts[n] - (shards[n].of(t) if n in shards else t).cpu()).abs().max())
                    for n, t in expected.items()
                )
            )
    return results


def beside_data_parallelism(mesh):
    return {kind: with_data_parallelism(mesh, kind) for kind in ("ddp", "fsdp")}


def test_with_ddp_and_fsdp_the_gradients_are_those_of_one_device():
    for got in launch(beside_data_parallelism, mesh={"dp": 2, "tp": 2}):
        assert max(got["ddp"] + got["fsdp"]) < 1e-12


def test_a_llama_with_options_that_its_table_does_not_cut_is_refused():
    for option in ("fused_gate_up", "qk_norm"):
        with pytest.raises(ValueError, match=f"the table for Llama does not fit one with {option}"):
            table_of(Llama(LlamaConfig.tiny(**{option: True})))
    assert "lm_head" in table_of(Llama(LlamaConfig.tiny(qkv_bias=True, rope_interleaved=True)))
