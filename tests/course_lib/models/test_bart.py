import json

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers import BartForConditionalGeneration

from course_lib.models.bart import Bart, BartConfig, shift_right
from course_lib.models.generate import BartWriter, generate
from course_lib.models.pretrained import load_bart, minilm_folder
from course_lib.observe.networks.draw import draw

SIZES = {
    "vocab_size": 97,
    "d_model": 32,
    "encoder_ffn_dim": 56,
    "decoder_ffn_dim": 72,
    "max_position_embeddings": 24,
}
UNEVEN = {
    "encoder_layers": 3,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 8,
}


def theirs_and_ours(**changes):
    """A model of transformers with random weights, norms and biases too, and ours with the same."""
    torch.manual_seed(0)
    config = BartConfig.tiny(**{**SIZES, **changes})
    settings = {key: value for key, value in vars(config).items() if key != "final_logits_bias"}
    theirs = BartForConditionalGeneration(transformers.BartConfig(**settings))
    for p in theirs.parameters():  # norms start at 1 and biases at 0: an error in them would not show
        torch.nn.init.normal_(p, std=0.2)
    torch.nn.init.normal_(theirs.final_logits_bias)
    ours = Bart(config)
    ours.load_state_dict(theirs.state_dict())  # every name is theirs
    return theirs, ours


def batch():
    """Sources of 9, 4 and 1 tokens, targets of 7, 7 and 3; -100 and padding (1) behind them."""
    generator = torch.Generator().manual_seed(1)
    mask = (torch.arange(9) < torch.tensor([[9], [4], [1]])).long()
    tokens = torch.randint(2, 97, (3, 9), generator=generator).where(mask.bool(), 1)
    targets = torch.randint(2, 97, (3, 7), generator=generator)
    targets[2, 3:] = -100
    return tokens, mask, targets


@pytest.mark.parametrize("changes", [{}, {"scale_embedding": True}, UNEVEN], ids=["tiny", "scaled", "uneven"])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "whole"])
def test_logits_loss_and_gradients_equal_transformers(changes, padded):
    theirs, ours = theirs_and_ours(**changes)
    tokens, mask, targets = batch()
    mask = mask if padded else None
    expected = theirs(input_ids=tokens, attention_mask=mask, labels=targets)
    read = shift_right(targets, ours.config.decoder_start_token_id, ours.config.pad_token_id)
    logits = ours(tokens, read, mask)
    torch.testing.assert_close(logits, expected.logits, rtol=1e-5, atol=1e-5)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(loss, expected.loss, rtol=1e-5, atol=1e-5)
    loss.backward()
    expected.loss.backward()
    gradients = {name: p.grad for name, p in ours.named_parameters()}
    assert gradients.keys() == dict(theirs.named_parameters()).keys()
    for name, p in theirs.named_parameters():
        difference = (gradients[name] - p.grad).norm() / p.grad.norm().clamp(min=1e-3)
        assert difference < 1e-4, f"{name}: {difference}"


def test_padding_among_the_targets_equals_transformers():
    theirs, ours = theirs_and_ours()
    tokens, mask, targets = batch()
    real = targets != -100
    read = shift_right(targets, 2, 1)
    expected = theirs(tokens, mask, decoder_input_ids=read, decoder_attention_mask=real.long()).logits
    torch.testing.assert_close(ours(tokens, read, mask, real)[real], expected[real], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours(tokens, read, mask)[real], expected[real], rtol=1e-5, atol=1e-5)


def test_what_the_decoder_reads_is_what_transformers_gives_it():
    targets = torch.tensor([[5, 6, 7, 2], [8, 2, -100, -100]])
    expected = transformers.models.bart.modeling_bart.shift_tokens_right(targets, 1, 2)
    assert torch.equal(shift_right(targets, 2, 1), expected)
    assert shift_right(targets, 2, 1).tolist() == [[2, 5, 6, 7], [2, 8, 2, 1]]


def test_a_target_sees_all_of_its_source_and_no_later_target():
    ours = Bart(BartConfig.tiny(**SIZES))
    tokens, _, targets = batch()
    targets = targets.clamp(min=2)

    def changed(tensor, place):
        other = tensor.clone()
        other[:, place] = (other[:, place] + 1) % 90 + 3
        return other

    before, after = ours(tokens, targets), ours(tokens, changed(targets, 4))
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])
    assert not torch.allclose(before[:, 0], ours(changed(tokens, 8), targets)[:, 0])


def test_one_matrix_reads_and_writes_tokens():
    ours = Bart(BartConfig.tiny())
    matrices = {name for name, p in ours.named_parameters(remove_duplicate=False) if p is ours.lm_head.weight}
    assert matrices == {
        "model.shared.weight",
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
        "lm_head.weight",
    }
    assert not ours.model.shared.weight[1].any(), "padding starts as zero"
    assert ours.model.encoder.embed_positions.weight.shape == (64 + 2, 64)


def test_bart_base_has_139_420_416_parameters():
    with torch.device("meta"):
        model = Bart(BartConfig())
    assert sum(p.numel() for p in model.parameters()) == 139_420_416


@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no cache"])
def test_the_likeliest_tokens_are_those_of_transformers(cached):
    theirs, ours = theirs_and_ours(decoder_layers=2)
    tokens, mask, _ = batch()
    rows = slice(0, 3) if cached else slice(0, 1)
    settings = {"num_beams": 1, "do_sample": False, "max_new_tokens": 12, "min_new_tokens": 12}
    theirs.generation_config.forced_eos_token_id = None
    expected = theirs.eval().generate(tokens[rows], attention_mask=mask[rows], **settings)[:, 1:]
    # the end of the text is forbidden there by min_new_tokens, and here by its bias
    ours.final_logits_bias[0, ours.config.eos_token_id] = -1e9
    writer = BartWriter(ours, tokens[rows], mask[rows])
    mine = generate(writer, [[2]] * len(tokens[rows]), 12, use_cache=cached)
    assert mine == expected.tolist()


def test_a_folder_of_transformers_is_loaded(tmp_path):
    theirs, ours = theirs_and_ours(scale_embedding=True)
    theirs.save_pretrained(tmp_path)
    tokenizer = (minilm_folder() / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    tokens, mask, targets = batch()
    read = shift_right(targets, 2, 1)
    loaded, _ = load_bart(tmp_path)
    assert not loaded.training
    assert loaded.config == ours.config
    torch.testing.assert_close(loaded(tokens, read, mask), ours(tokens, read, mask))
    bare = {name.removeprefix("model."): p.clone() for name, p in theirs.model.named_parameters()}
    save_file(bare, tmp_path / "model.safetensors")  # BartModel's names, and no row of biases
    loaded, _ = load_bart(tmp_path)
    expected = ours(tokens, read, mask) - ours.final_logits_bias
    torch.testing.assert_close(loaded(tokens, read, mask), expected, rtol=1e-5, atol=1e-5)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"activation_function": "relu"}))
    with pytest.raises(ValueError, match="has activation_function 'relu'; only 'gelu' is supported"):
        load_bart(tmp_path)


def test_dropout_acts_in_training_only():
    tokens, _, targets = batch()
    read = targets.clamp(min=2)
    for which in ("dropout", "attention_dropout", "activation_dropout"):
        model = Bart(BartConfig.tiny(**{which: 0.5}))
        assert not torch.equal(model(tokens, read), model(tokens, read)), which
        model.eval()
        assert torch.equal(model(tokens, read), model(tokens, read))


def test_refuses_what_does_not_fit():
    with pytest.raises(
        ValueError, match="d_model 64 does not divide into the 5 heads of decoder_attention_heads"
    ):
        BartConfig.tiny(decoder_attention_heads=5)
    with pytest.raises(ValueError, match="pad_token_id is 1000; with 1000 tokens it runs from 0 to 999"):
        BartConfig.tiny(pad_token_id=1000)
    model, long = Bart(BartConfig.tiny()), torch.zeros(1, 65, dtype=torch.long)
    for pair in [(long, long[:, :3]), (long[:, :3], long)]:
        with pytest.raises(ValueError, match="65 tokens; this model has 64 positions"):
            model(*pair)
    with pytest.raises(ValueError, match="1 sources were read, and 2 prompts came: give one each"):
        generate(BartWriter(model, long[:, :3]), [[2], [2]], 1)


def test_it_can_be_drawn():
    tokens = torch.zeros(1, 8, dtype=torch.long)
    picture = draw(Bart(BartConfig.tiny()), tokens, tokens, depth=3)
    for word in ("BartEncoder", "BartDecoder", "encoder_attn", "self_attn", "lm_head"):
        assert word in picture.svg, word
