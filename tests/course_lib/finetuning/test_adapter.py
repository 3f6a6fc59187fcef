"""Adapters and side tuning against the papers' formulas, and all methods' counts and data parallelism."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.data_parallel.ddp import DDP
from course_lib.finetuning.adapter import add_adapters, add_llama_adapter
from course_lib.finetuning.freeze import count_parameters
from course_lib.finetuning.prefix import add_deep_prompts, add_prefix
from course_lib.finetuning.prompt import add_p_tuning, add_prompt
from course_lib.finetuning.side import BertSide, SideTuning, add_side
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.generate import generate
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.observe.ledgers.saved import saved_tensors
from course_lib.runtime import current_device, launch

BERT_LARGE = BertConfig(
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
)


def randomise(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def bert_classifier() -> BertClassifier:
    torch.manual_seed(0)
    return BertClassifier(Bert(BertConfig.tiny(vocab_size=256), pooler=True), num_classes=3)


def text(batch: int = 3, seq: int = 6) -> Tensor:
    return torch.randint(256, (batch, seq), generator=torch.Generator().manual_seed(2))


def bottleneck(adapter: nn.Module, h: Tensor, f) -> Tensor:
    return f(h @ adapter.down.weight.T + adapter.down.bias) @ adapter.up.weight.T + adapter.up.bias


@pytest.mark.parametrize("kind", ["houlsby", "pfeiffer"])
def test_a_bert_layer_with_adapters_follows_the_papers_formula(kind):
    bert = Bert(BertConfig.tiny(vocab_size=256))
    added = add_adapters(bert, m=5, kind=kind)
    assert len(added) == (4 if kind == "houlsby" else 2)
    randomise(bert)
    x = torch.randn(2, 6, 64)
    layer = bert.encoder.layer[1]
    attention, output = layer.attention, layer.output
    h = attention.output.dense(attention.self(x))
    if kind == "houlsby":
        h = h + bottleneck(added[2], h, F.gelu)
    x_1 = attention.output.LayerNorm(h + x)
    h = output.dense(layer.intermediate(x_1))
    if kind == "houlsby":
        expected = output.LayerNorm(h + bottleneck(added[3], h, F.gelu) + x_1)
    else:
        z = F.layer_norm(h + x_1, (64,), output.LayerNorm.weight, output.LayerNorm.bias, 1e-12)
        r = h  # MAD-X's residual: the adapter's input is normalised, what it is added to is not
        expected = F.layer_norm(
            bottleneck(added[1], z, F.relu) + r + x_1,
            (64,),
            output.LayerNorm.weight,
            output.LayerNorm.bias,
            1e-12,
        )
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["houlsby", "pfeiffer"])
def test_adapters_change_little_at_first_and_train_what_they_should(kind):
    for plain in (bert_classifier(), GPT(GPTConfig.tiny()), Llama(LlamaConfig.tiny())):
        adapted = copy.deepcopy(plain)
        added = add_adapters(adapted, m=5, kind=kind)
        before, after = plain.eval()(text()), adapted.eval()(text())
        if not (kind == "pfeiffer" and isinstance(plain, BertClassifier)):
            assert 0 < (after - before).abs().max() < 0.05 * before.abs().max()
        after.square().mean().backward()
        trained = {name for name, p in adapted.named_parameters() if p.grad is not None}
        norms = {name for name in trained if "norm" in name.lower()}
        assert bool(norms) == (kind == "houlsby")
        assert all("adapters" in name or name.startswith("classifier") for name in trained - norms)
        for adapter in added:
            for parameter in adapter.parameters():
                parameter.data.zero_()
        if kind == "houlsby":
            torch.testing.assert_close(adapted(text()), before, rtol=0, atol=0)


def test_llama_adapter_with_a_cache_generates_what_it_does_without():
    llama = Llama(LlamaConfig.tiny(num_hidden_layers=2, qk_norm=True)).eval()
    plain = generate(llama, text(2), 4)
    for adapter in add_llama_adapter(llama, K=3):
        adapter.g.data.fill_(2.0)
    tuned = generate(llama, text(2), 4)
    assert tuned == generate(llama, text(2), 4, use_cache=False)
    assert tuned != plain


def test_side_tuning_blends_and_keeps_no_activation_within_the_backbone():
    plain = bert_classifier()
    tuned = copy.deepcopy(plain)
    side = add_side(tuned, layers=1, hidden_size=16, alpha=0.25)
    tokens, mask = text(), (torch.arange(6) < torch.tensor([[6], [3], [1]])).long()
    B, S = plain.eval().bert(tokens, mask)[0], side.side(tokens, mask)
    R, pooled = tuned.bert(tokens, mask)
    torch.testing.assert_close(R, 0.25 * B + 0.75 * S)
    torch.testing.assert_close(pooled, plain.bert.pooler(R))
    for row, length in enumerate([6, 3, 1]):
        alone = tuned(tokens[row : row + 1, :length])
        torch.testing.assert_close(tuned(tokens, mask)[row : row + 1], alone, rtol=1e-4, atol=1e-5)

    tuned.train()(tokens, mask).square().mean().backward()
    trained = {name for name, p in tuned.named_parameters() if p.grad is not None}
    assert {name.split(".")[0] for name in trained} == {"bert", "classifier"}
    assert all(name.startswith(("bert.side", "bert.mix.a", "classifier")) for name in trained)
    assert not side.base.training

    plain.requires_grad_(False).classifier.requires_grad_(True)
    add_prompt(frozen := copy.deepcopy(plain), 2)
    kept = {
        name: saved_tensors(model.train(), tokens) for name, model in (("side", tuned), ("prompt", frozen))
    }
    within = {name: [t for t in saved if "encoder.layer" in t.made_in] for name, saved in kept.items()}
    of_the_base = [t for t in within["side"] if t.made_in.startswith("bert.base")]
    assert [(t.shape, t.bytes) for t in of_the_base] == [
        ((3, 6, 64), 4 * 3 * 6 * 64)
    ]  # B, for the gradient of α
    assert {t.made_in.split(".encoder")[0] for t in within["prompt"]} == {"bert"}


def test_counts_equal_the_papers():
    """From shapes on the meta device. d = 1024 and 24 layers in BERT-large, d = 4096 in LLaMA-7B and T5-XXL.

    Houlsby et al. print 2md + d + m for an adapter, and 3.6 % of BERT-large for a task of GLUE. That is a mean over
    tasks whose widths m, 8, 64 or 256, differ; only those of two tasks are printed, so it is only bracketed.
    """
    percent = {}
    with torch.device("meta"):
        for m in (8, 64, 256):
            model = BertClassifier(Bert(BERT_LARGE, pooler=True), num_classes=2)
            plain = count_parameters(model).total
            adapters = add_adapters(model, m)
            assert {count_parameters(a).total for a in adapters} == {2 * m * 1024 + 1024 + m}
            norms, head = 24 * 2 * 2 * 1024, 2 * 1024 + 2
            trained = count_parameters(model).trainable
            assert trained == 2 * 24 * (2 * m * 1024 + 1024 + m) + norms + head
            percent[m] = 100 * trained / plain
        # A prompt has length x d parameters, whatever else the model is: GPTs as wide as the T5s are enough.
        for d in (512, 768, 1024, 4096):
            gpt = GPT(GPTConfig.tiny(num_layers=1, hidden_size=d))
            add_prompt(gpt, 5)
            assert count_parameters(gpt).trainable == 5 * d
        assert 5 * d == 20_480  # printed for T5-XXL
        llama = Llama(LlamaConfig())
        adapters = add_llama_adapter(llama, K=10, layers=30)
        prompts = sum(a.P.numel() for a in adapters)
    assert percent[64] < 3.6 < percent[256]
    assert {m: round(p, 1) for m, p in percent.items()} == {8: 0.3, 64: 1.9, 256: 7.6}
    assert prompts == 1_228_800  # printed: 1.2 M
    assert count_parameters(llama).trainable == prompts + 30  # and a gate for each layer


METHODS = {
    "Houlsby": lambda m: add_adapters(m, 4),
    "Pfeiffer": lambda m: add_adapters(m, 4, "pfeiffer"),
    "LLaMA-Adapter": lambda m: add_llama_adapter(m, 3, 1),
    "side": lambda m: add_side(m, layers=1, hidden_size=16),
    "prompt": lambda m: add_prompt(m, 3),
    "P-tuning": lambda m: add_p_tuning(m, 3, hidden_size=8),
    "prefix": lambda m: add_prefix(m, 3, hidden_size=8),
    "deep prompts": lambda m: add_deep_prompts(m, 3),
}


def three_steps(rank: int = 0, ranks: int = 1, wrap=lambda m: m) -> dict[str, list[Tensor]]:
    """Trained parameters of every method after three steps on this rank's part of the batch."""
    trained = {}
    for name, add in METHODS.items():
        model = bert_classifier()
        torch.manual_seed(1)
        add(model)
        model = wrap(model.to(current_device()).train())
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        for _ in range(3):
            tokens = text(4).chunk(ranks)[rank].to(current_device())
            target = tokens[:, 0] % 3
            F.cross_entropy(model(tokens), target).backward()
            optimizer.step()
            optimizer.zero_grad()
        trained[name] = [p.detach().cpu() for p in model.parameters() if p.requires_grad]
    return trained


def on_two_ranks() -> list[dict[str, list[Tensor]]]:
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return [three_steps(rank, ranks, wrap) for wrap in (DDP, DistributedDataParallel)]


def test_data_parallel_training_equals_one_device():
    expected = three_steps()
    for ours_and_official in launch(on_two_ranks, ranks=2):
        for result in ours_and_official:
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-6)


def test_bad_input_gets_one_sentence():
    bert = Bert(BertConfig.tiny())
    with pytest.raises(ValueError, match="the bottleneck is 0 wide"):
        add_adapters(bert, 0)
    with pytest.raises(ValueError, match="choose 'houlsby' or 'pfeiffer'"):
        add_adapters(bert, 4, "parallel")
    with pytest.raises(ValueError, match="this Linear holds none of Bert, GPT, LlamaModel, Bart"):
        add_llama_adapter(torch.nn.Linear(2, 2))
    llama = Llama(LlamaConfig.tiny())
    for K, layers in ((0, 2), (10, 5), (10, 0)):
        with pytest.raises(ValueError, match="1 to 4 layers"):
            add_llama_adapter(llama, K, layers)
    add_adapters(bert, 4)
    with pytest.raises(ValueError, match="already has the module 'adapters'"):
        add_adapters(bert, 4)
    with pytest.raises(
        ValueError, match="side tuning needs a Bert, BertClassifier, Llama, GPT or Bart; this is a Li"
    ):
        add_side(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="0 layers of width 96"):
        BertSide(bert, layers=0)
    with pytest.raises(ValueError, match="alpha starts at 1"):
        SideTuning(nn.Identity(), nn.Identity(), alpha=1)
