"""The command line keeps its JSON contract, and refuses in one sentence with exit code 2."""

import json

import pytest
from click.testing import CliRunner

from simulator.__main__ import main

SHAPE_175B = "--layers 96 --hidden 12288 --heads 96 --vocab 51200 --sequence 2048"


def run(line):
    return CliRunner().invoke(main, line.split())


def read(line):
    result = run(line + " --json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_memory_json_has_every_rank_and_category():
    answer = read(
        f"memory {SHAPE_175B} --micro-batch 1 --tp 8 --sequence-parallel --pp 8 --chunks 3 --dp 1 --zero 0"
    )
    assert set(answer) == {"ranks", "peak_total"}
    assert len(answer["ranks"]) == 8
    categories = ["parameters", "gradients", "optimizer_states", "activations", "buffers"]
    for rank in answer["ranks"]:
        assert list(rank) == [*categories, "total"]
        assert rank["total"] == sum(rank[name] for name in categories)
    assert answer["peak_total"] == max(rank["total"] for rank in answer["ranks"])
    assert answer == read("memory --model gpt3-175b --tp 8 --sequence-parallel --pp 8 --chunks 3")


def test_memory_of_parameters_alone_is_model_states():
    """arXiv:1910.02054, figure 1."""
    (rank,) = read("memory --parameters 7.5e9 --dp 64 --zero 1")["ranks"]
    assert rank["total"] == pytest.approx(31.4e9, rel=0.006)
    assert rank["activations"] == rank["buffers"] == 0
    assert read("memory --model resnet50")["peak_total"] == 16 * 25_557_032


def test_memory_table_names_categories():
    output = run("memory --model gpt2 --pp 2").output
    assert "optimizer states" in output
    assert len(output.splitlines()) == 7


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("memory --model gpt3-175b --tp 7", "tp must divide the 96 heads, not 7"),
        ("memory --model gpt3-175b --tp 0", "tp must be a whole number of at least 1, not 0"),
        ("memory --model gpt3-175b --pp 97", "97 pipeline stages need as many layers; the model has 96"),
        ("memory --model gpt3-175b --zero 5", "zero must be 0, 1, 2 or 3, not 5"),
        ("memory --model gpt5", "model must be one of gpt3-175b"),
        ("memory --layers 3", "a shape also needs --hidden, --heads, --vocab, --sequence"),
        ("memory --parameters -1", "parameters must be more than 0, not -1"),
    ],
)
def test_bad_values_end_with_one_sentence_and_exit_code_2(line, sentence):
    result = run(line)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output
