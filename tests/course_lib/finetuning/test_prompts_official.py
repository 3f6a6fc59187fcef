"""Prompt tuning, P-tuning, prefix tuning and LLaMA-Adapter beside peft's: outputs and gradients."""

import pytest
import torch
import transformers
from torch import Tensor, nn

from course_lib.finetuning.adapter import add_llama_adapter
from course_lib.finetuning.prefix import add_deep_prompts, add_prefix
from course_lib.finetuning.prompt import add_p_tuning, add_prompt
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.llama import Llama, LlamaConfig

peft = pytest.importorskip("peft")
N = 3  # virtual tokens
BERT, LLAMA = BertConfig.tiny(), LlamaConfig.tiny(hidden_size=64, intermediate_size=96, num_hidden_layers=3)


def copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for ours, theirs in pairs:
            ours.copy_(theirs)


def models(family: str) -> tuple[nn.Module, nn.Module, dict[str, Tensor]]:
    """Our model, transformers' with the same weights (none trivial), and a batch with padding."""
    torch.manual_seed(0)
    tokens = torch.randint(256, (3, 7))
    if family == "bert":
        config = transformers.BertConfig(**vars(BERT), num_labels=4)
        theirs = transformers.BertForSequenceClassification(config)
        ours = BertClassifier(Bert(BERT, pooler=True), num_classes=4)
        mask = (torch.arange(7) < torch.tensor([[7], [4], [1]])).long()
        batch = {"tokens": tokens, "mask": mask, "token_types": torch.randint(2, (3, 7))}
    else:
        config = transformers.LlamaConfig(**{k: v for k, v in vars(LLAMA).items() if k in FIELDS})
        theirs, ours, batch = transformers.LlamaForCausalLM(config), Llama(LLAMA), {"tokens": tokens}
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.1)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs, batch


FIELDS = set(vars(LlamaConfig.tiny())) - {
    "qkv_bias", "partial_rotary_factor", "rope_interleaved", "fused_gate_up", "qk_norm"
}  # fmt: skip


def compare(ours: nn.Module, theirs: nn.Module, batch: dict, pairs: dict[str, tuple]) -> None:
    """Same outputs and, after the same loss, same gradients of each pair of parameters, and of no others."""
    names = {"tokens": "input_ids", "mask": "attention_mask", "token_types": "token_type_ids"}
    mine = ours.train()(**batch)
    other = theirs.train()(**{names[name]: x for name, x in batch.items()}, use_cache=False).logits
    if other.dim() == 3:
        other = other[:, -mine.shape[1] :]
    torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    mine.square().mean().backward()
    other.square().mean().backward()
    for name, (a, b) in pairs.items():
        b = b if isinstance(b, Tensor) else b()
        assert b.abs().max() > 1e-6, f"{name}: no gradient to compare"
        torch.testing.assert_close(a.grad, b, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
    trained = {p for p in ours.parameters() if p.requires_grad}
    assert trained == {p for p in ours.parameters() if p.grad is not None}
    assert sum(p.numel() for p in trained) == sum(p.numel() for p in theirs.parameters() if p.requires_grad)


def task(family: str) -> str:
    return "SEQ_CLS" if family == "bert" else "CAUSAL_LM"


def head(family: str, ours: nn.Module, theirs: nn.Module) -> dict[str, tuple]:
    """The classifier, which peft copies and trains, too."""
    if family != "bert":
        return {}
    copies = theirs.base_model.classifier.modules_to_save["default"]
    return {
        name: (getattr(ours.classifier, name), lambda name=name: getattr(copies, name).grad)
        for name in ("weight", "bias")
    }


def linears(module: nn.Module) -> list[nn.Linear]:
    return [m for m in module.modules() if isinstance(m, nn.Linear)]


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_prompt_tuning_equals_peft(family):
    ours, theirs, batch = models(family)
    config = peft.PromptTuningConfig(task_type=task(family), num_virtual_tokens=N)
    theirs = peft.get_peft_model(theirs, config)
    prompt = add_prompt(ours, N, pooler_reads="prompt")
    P = theirs.prompt_encoder["default"].embedding.weight
    copy([(prompt.P, P)])
    compare(ours, theirs, batch, {"P": (prompt.P, lambda: P.grad), **head(family, ours, theirs)})


@pytest.mark.parametrize("kind", ["lstm", "mlp"])
def test_p_tuning_equals_peft(kind):
    ours, theirs, batch = models("bert")
    config = peft.PromptEncoderConfig(
        task_type="SEQ_CLS",
        num_virtual_tokens=N,
        encoder_reparameterization_type=kind.upper(),
        encoder_hidden_size=20,
        encoder_dropout=0.0,
    )
    theirs = peft.get_peft_model(theirs, config)
    prompt = add_p_tuning(ours, N, kind, hidden_size=20, pooler_reads="prompt")
    encoder = theirs.prompt_encoder["default"]
    matched = [prompt.P, *prompt.encoder.parameters()], [encoder.embedding.weight]
    matched[1].extend(
        [*(encoder.lstm_head.parameters() if kind == "lstm" else []), *encoder.mlp_head.parameters()]
    )
    copy(list(zip(*matched, strict=True)))
    pairs = {f"{i}": (a, lambda b=b: b.grad) for i, (a, b) in enumerate(zip(*matched, strict=True))}
    compare(ours, theirs, batch, pairs | head("bert", ours, theirs))


@pytest.mark.parametrize("family", ["bert", "llama"])
@pytest.mark.parametrize("projection", [True, False])
def test_prefix_tuning_equals_peft(family, projection):
    ours, theirs, batch = models(family)
    config = peft.PrefixTuningConfig(
        task_type=task(family),
        num_virtual_tokens=N,
        prefix_projection=projection,
        encoder_hidden_size=20 if projection else None,
    )
    theirs = peft.get_peft_model(theirs, config)
    encoder = theirs.prompt_encoder["default"]
    E = encoder.embedding.weight
    if projection:
        prefix = add_prefix(ours, N, hidden_size=20)
        layers = len(prefix.out)
        first, last = linears(encoder.transform)
        copy([(prefix.E, E), (prefix.mlp[0].weight, first.weight), (prefix.mlp[0].bias, first.bias)])
        copy([(a.weight, b) for a, b in zip(prefix.out, last.weight.chunk(layers), strict=True)])
        copy([(a.bias, b) for a, b in zip(prefix.out, last.bias.chunk(layers), strict=True)])
        pairs = {"E": (prefix.E, lambda: E.grad), "W_1": (prefix.mlp[0].weight, lambda: first.weight.grad)}
        for i, out in enumerate(prefix.out):
            pairs[f"W_2 {i}"] = (out.weight, lambda i=i: last.weight.grad.chunk(layers)[i])
            pairs[f"b_2 {i}"] = (out.bias, lambda i=i: last.bias.grad.chunk(layers)[i])
    else:
        prefix = add_deep_prompts(ours, N)
        layers = len(prefix.P)
        copy(list(zip(prefix.P, E.chunk(layers, dim=1), strict=True)))
        pairs = {f"P {i}": (P, lambda i=i: E.grad.chunk(layers, dim=1)[i]) for i, P in enumerate(prefix.P)}
    compare(ours, theirs, batch, pairs | head(family, ours, theirs))


def test_llama_adapter_equals_peft():
    ours, theirs, batch = models("llama")
    before = ours(**batch)
    config = peft.AdaptionPromptConfig(task_type="CAUSAL_LM", adapter_len=N, adapter_layers=2)
    theirs = peft.get_peft_model(theirs, config)
    adapters = add_llama_adapter(ours, K=N, layers=2)
    torch.testing.assert_close(ours(**batch), before, rtol=0, atol=0)  # the gate is 0
    wrapped = [layer.self_attn for layer in theirs.base_model.model.model.layers[-2:]]
    pairs = {}
    for i, (a, b) in enumerate(zip(adapters, wrapped, strict=True)):
        with torch.no_grad():
            b.adaption_gate.fill_(0.7 - i)
        copy([(a.P, b.adaption_prompt[0]), (a.g, b.adaption_gate)])
        pairs[f"P {i}"] = (a.P, lambda b=b: b.adaption_prompt.grad[0])
        pairs[f"g {i}"] = (a.g, lambda b=b: b.adaption_gate.grad)
    compare(ours, theirs, batch, pairs)
