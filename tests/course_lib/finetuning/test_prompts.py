"""Prompts and prefixes against the model itself: a prompt that starts as a text does what that text in front does."""

import copy

import pytest
import torch
from torch import nn

from course_lib.data_parallel.fsdp import FSDP
from course_lib.data_parallel.zero3 import Zero3
from course_lib.finetuning.lora_apply import apply_lora
from course_lib.finetuning.prefix import add_deep_prompts, add_prefix
from course_lib.finetuning.prompt import add_p_tuning, add_prompt
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.generate import generate
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.masks import causal_mask
from course_lib.models.resnet import ResNet18
from course_lib.one_device.recompute import apply_recompute
from course_lib.runtime import launch

FRONT = [5, 17, 3]
N = len(FRONT)
LAYERS = {"bert": "encoder.layer", "gpt": "blocks", "llama": "model.layers"}


def model(family: str) -> nn.Module:
    torch.manual_seed(1)
    made = {
        "gpt": lambda: GPT(GPTConfig.tiny(num_layers=2, hidden_size=32)),
        "llama": lambda: Llama(LlamaConfig.tiny(num_hidden_layers=2, hidden_size=32, intermediate_size=48)),
        "bert": lambda: Bert(BertConfig.tiny(vocab_size=256)),
    }[family]()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    return made.eval()


def text(batch: int = 2, seq: int = 6) -> torch.Tensor:
    return torch.randint(256, (batch, seq), generator=torch.Generator().manual_seed(2))


def in_front(tokens: torch.Tensor) -> torch.Tensor:
    return torch.cat((torch.tensor(FRONT).expand(len(tokens), -1), tokens), dim=1)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "gpt", "llama"])
def test_a_prompt_that_starts_as_a_text_does_what_the_text_does(family):
    plain, tokens = model(family), text()
    expected = plain(in_front(tokens))[:, N:]
    tuned = copy.deepcopy(plain)
    add_prompt(tuned, N, start=FRONT)
    close(tuned(tokens), expected)
    if family != "bert":  # its prefix must not see the text; a causal model's never does
        prefixed = copy.deepcopy(plain)
        add_deep_prompts(prefixed, N, start=FRONT)
        close(prefixed(tokens), expected)


def sharded(mesh, family, add):
    """One step under FSDP, and one under ZeRO 3, with all of the batch on each rank."""
    found = []
    for kind in ("FSDP", "Zero3"):
        tuned = model(family)
        add(tuned, N)
        if kind == "FSDP":
            wrapped = FSDP(tuned, [f"{LAYERS[family]}.*"], mesh)
            optimizer = torch.optim.SGD([p for p in wrapped.parameters() if p.requires_grad], lr=0.1)
        else:
            wrapped, optimizer = tuned, Zero3(tuned, torch.optim.SGD, lr=0.1)
        output = wrapped(text())
        output.square().mean().backward()
        optimizer.step()
        state = wrapped.state_dict() if kind == "FSDP" else optimizer.model_state_dict()
        found.append((output.detach(), state))
    return found


@pytest.mark.parametrize("add", [add_prompt, add_p_tuning])
@pytest.mark.parametrize("family", LAYERS)
def test_a_prompt_whose_parameters_are_sharded(family, add):
    tuned = model(family)
    add(tuned, N)
    output = tuned(text())
    output.square().mean().backward()
    torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=0.1).step()
    for got, state in launch(sharded, mesh={"dp": 2}, args=(family, add))[0]:
        close(got, output)
        for name, parameter in tuned.state_dict().items():
            close(state[name], parameter)


@pytest.mark.parametrize("family", ["gpt", "llama"])
@pytest.mark.parametrize("added", [False, True])
def test_masks_of_a_causal_model(family, added):
    plain, tokens = model(family), text()
    sees = causal_mask(6) & (torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.7)
    sees |= torch.eye(6, dtype=torch.bool)
    whole = causal_mask(N + 6).repeat(2, 1, 1, 1)
    whole[..., N:, N:] = sees
    if added:
        sees, whole = (torch.zeros(m.shape).masked_fill(~m, -torch.inf) for m in (sees, whole))
    expected = plain(in_front(tokens), whole)[:, N:]
    prompted, prefixed = copy.deepcopy(plain), copy.deepcopy(plain)
    add_prompt(prompted, N, start=FRONT)
    add_deep_prompts(prefixed, N, start=FRONT)
    close(prompted(tokens, sees), expected)
    close(prefixed(tokens, mask=sees), expected)
    if not added:
        assert generate(prompted, tokens, 3, use_cache=False) == generate(
            prefixed, tokens, 3, use_cache=False
        )


METHODS = {
    "prompt": lambda m: add_prompt(m, N),
    "vocabulary": lambda m: add_prompt(m, N, start="vocabulary"),
    "read by the pooler": lambda m: add_prompt(m, N, pooler_reads="prompt"),
    "LSTM": lambda m: add_p_tuning(m, N, "lstm", hidden_size=8),
    "MLP": lambda m: add_p_tuning(m, N, "mlp"),
    "prefix": lambda m: add_prefix(m, N, hidden_size=8),
    "deep prompts": lambda m: add_deep_prompts(m, N),
}


@pytest.fixture(params=METHODS)
def tuned(request):
    """A classifier that is adapted, and what was added."""
    return adapted(request.param)


def adapted(method: str, seed: int = 1) -> tuple[BertClassifier, nn.Module]:
    torch.manual_seed(seed)
    classifier = BertClassifier(Bert(BertConfig.tiny(vocab_size=256), pooler=True), num_classes=3)
    for parameter in classifier.parameters():
        nn.init.normal_(parameter, std=0.3)
    return classifier, METHODS[method](classifier)


def test_padding_folding_copies_and_what_is_trained(tuned):
    classifier, added = tuned
    tokens, mask = text(3), (torch.arange(6) < torch.tensor([[6], [3], [1]])).long()
    logits = classifier(tokens, mask)
    for row, length in enumerate([6, 3, 1]):
        close(logits[row : row + 1], classifier(tokens[row : row + 1, :length]))

    logits.square().mean().backward()
    with_gradient = {name for name, p in classifier.named_parameters() if p.grad is not None}
    assert with_gradient == {
        name
        for name, _ in classifier.named_parameters()
        if name.startswith(("bert.prompt", "bert.prefix", "classifier"))
    }

    other = copy.deepcopy(classifier)  # hooks belong to the copy
    for parameter in added.parameters():
        parameter.data.zero_()
    close(other(tokens, mask), logits)
    assert not torch.allclose(classifier(tokens, mask), logits, atol=1e-3)

    folded = other.bert.get_submodule("prompt" if hasattr(other.bert, "prompt") else "prefix")
    folded.fold()
    folded.fold()  # a second time changes nothing
    close(other(tokens, mask), logits)
    assert not any(isinstance(m, nn.Linear | nn.LSTM) for m in folded.modules())


@pytest.mark.parametrize("method", ["LSTM", "prefix", "deep prompts"])
def test_state_recomputation_autocast_and_lora_beside(method):
    classifier, _ = adapted(method)
    expected = gradients(classifier)
    again, _ = adapted(method, seed=2)
    again.load_state_dict(classifier.state_dict())
    apply_recompute(again, "full")
    torch.testing.assert_close(gradients(again), expected, rtol=1e-4, atol=1e-6)

    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(classifier(text()).float(), again(text()).float(), rtol=0.1, atol=0.3)

    both = BertClassifier(Bert(BertConfig.tiny(vocab_size=256), pooler=True), num_classes=3)
    apply_lora(both, ["query", "key", "value"], rank=2)
    METHODS[method](both)
    assert both(text()).isfinite().all()


def gradients(classifier: nn.Module) -> dict[str, torch.Tensor]:
    classifier(text()).square().mean().backward()
    return {name: p.grad for name, p in classifier.named_parameters() if p.grad is not None}


def test_starts():
    classifier = BertClassifier(Bert(BertConfig.tiny(vocab_size=256), pooler=True), num_classes=3)
    E = classifier.bert.embeddings.word_embeddings.weight
    repeated = add_prompt(copy.deepcopy(classifier), 5, start=[7, 8])
    assert torch.equal(repeated.P, E[[7, 8, 7, 8, 7]])
    cut = add_prompt(copy.deepcopy(classifier), 2, start=[7, 8, 9])
    assert torch.equal(cut.P, E[[7, 8]])
    drawn = add_prompt(copy.deepcopy(classifier), 4, start="vocabulary")
    assert all((row == E).all(1).any() for row in drawn.P)
    assert add_prompt(classifier, 4).P.abs().max() <= 0.5


def test_the_pooler_reads_the_first_token_of_the_text():
    plain, tokens = Bert(BertConfig.tiny(vocab_size=256), pooler=True).eval(), text()
    expected = plain.pooler(plain(in_front(tokens))[0][:, N:])
    add_prompt(plain, N, start=FRONT)
    close(plain(tokens)[1], expected)


def test_bad_input_gets_one_sentence():
    bert, gpt = Bert(BertConfig.tiny()), GPT(GPTConfig.tiny())
    for n in (0, -1):
        for add in (add_prompt, add_p_tuning, add_prefix, add_deep_prompts):
            with pytest.raises(ValueError, match=f"{n} virtual tokens; at least 1 is needed"):
                add(bert, n)
    with pytest.raises(
        ValueError, match="64 virtual tokens and 1 of text are 65; this model has 64 positions"
    ):
        add_prompt(bert, 64)
    with pytest.raises(ValueError, match="this ResNet18 holds none of Bert, GPT, LlamaModel"):
        add_prompt(ResNet18(10), 4)
    for start in ("text", [], [1000], [1.5]):
        with pytest.raises(ValueError, match="token ids from 0 to 999"):
            add_prompt(bert, 4, start=start)
    with pytest.raises(ValueError, match="choose 'lstm' or 'mlp'"):
        add_p_tuning(bert, 4, "gru")
    with pytest.raises(ValueError, match="choose 'text' or 'prompt'"):
        add_prompt(bert, 4, pooler_reads="cls")
    with pytest.raises(ValueError, match="give 4, one for each"):
        add_prefix(bert, 4, None, start=[1, 2])
    for add in (add_prefix, add_p_tuning):
        with pytest.raises(ValueError, match="hidden_size is 0"):
            add(bert, 4, hidden_size=0)
    add_prompt(bert, 8)
    with pytest.raises(ValueError, match="already has the module 'prompt'"):
        add_prompt(bert, 8)
    with pytest.raises(ValueError, match="8 virtual tokens and 60 of text are 68; this model has 64"):
        bert(text(2, 60))
    add_prefix(gpt, 8)
    with pytest.raises(ValueError, match="8 virtual tokens and 121 of text are 129; this model has 128"):
        gpt(text(2, 121))
    with pytest.raises(ValueError, match="which no cache holds"):
        generate(gpt, text(), 2)
