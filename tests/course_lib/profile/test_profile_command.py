"""``python -m course_lib.profile``: every model, configurations from files, JSON, and bad input."""

import json

import pytest
from click.testing import CliRunner

from course_lib.profile.cli import NAMES, main
from course_lib.profile.models import MODELS

TINY = {
    "bert": "vocab_size = 100\nhidden_size = 32\nnum_hidden_layers = 1\nnum_attention_heads = 2\n",
    "gpt": "[model]\nvocab_size = 100\nhidden_size = 32\nnum_layers = 1\nnum_heads = 2\n",
    "llama": "vocab_size = 100\nhidden_size = 32\nintermediate_size = 64\nnum_hidden_layers = 1\n"
    "num_attention_heads = 2\n",
    "bart": "vocab_size = 100\nd_model = 48\nencoder_layers = 1\ndecoder_layers = 1\n",
    "resnet": "image = 32\nsmall_images = true\nnum_classes = 10\nwidth = 8\n",
}


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize("name", NAMES)
def test_every_model_is_profiled(name, tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY[name])
    line = ["--model", name, "--config", tmp_path / "tiny.toml", "--repeats", 1]
    result = run(*line, "--json")
    assert result.exit_code == 0, result.output
    whole, *modules = json.loads(result.output)
    assert whole["name"] == ""
    assert whole["flops"]["backward"] > whole["flops"]["forward"] > whole["flops"]["macs"] > 0
    assert whole["seconds"]["forward"] > 0
    assert {"parameters", "parameter_bytes", "saved_bytes", "kind"} <= set(modules[0])


def test_counting_alone_and_huggingfaces_file(tmp_path):
    file = tmp_path / "config.json"
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50}
    file.write_text(json.dumps(sizes | {"model_type": "bert", "torch_dtype": "float32"}))
    result = run("--config", file, "--count", "--depth", 0, "--sequence", 8)
    assert result.exit_code == 0, result.output
    header, _, only = result.output.splitlines()
    assert "parameters" in header
    assert only.startswith("model (Bert)")
    assert " ms" not in only


def test_the_names_are_the_models():
    assert tuple(MODELS) == NAMES


@pytest.mark.parametrize(
    ("text", "more", "sentence"),
    [
        ("hiden_size = 32", [], "the file has no key hiden_size; its keys are attention"),
        ("hidden_size = 3.5", [], "hidden_size must be a whole number of at least 1, not 3.5"),
        ("hidden_size = true", [], "hidden_size must be a whole number of at least 1, not True"),
        ("hidden_size = -32", [], "hidden_size must be a whole number of at least 1, not -32"),
        ("num_attention_heads = 0", [], "num_attention_heads must be a whole number of at least 1, not 0"),
        ("hidden_size = 33", [], "hidden_size 33 does not divide into 12 heads"),
        ("model = 3", [], "the file must be a table, not 3"),
        ("hidden_size =", [], "is not a TOML file"),
        ("", ["--sequence", 513], "--sequence is 513; this bert has 512 positions"),
        ("", ["--device", "abacus"], "device is 'abacus', which torch cannot use here"),
        ("hidden_size = 1200000", [], "this model needs about"),
    ],
)
def test_bad_input_ends_with_one_sentence_and_2(text, more, sentence, tmp_path):
    (tmp_path / "own.toml").write_text(text)
    result = run("--config", tmp_path / "own.toml", *more)
    assert result.exit_code == 2, result.output
    assert sentence in result.output
    assert result.output.startswith("Error: ")
    assert len(result.output.splitlines()) == 1


def test_a_file_that_is_not_there_and_images_without_a_sequence(tmp_path):
    for line, sentence in (
        (["--config", tmp_path / "none.toml"], "there is no file"),
        (["--model", "resnet", "--count", "--sequence", 4], "--sequence is for text"),
    ):
        result = run(*line)
        assert result.exit_code == 2
        assert sentence in result.output
