"""Every command's JSON is what ``answers.schema.json`` says, and its keys do not depend on the question."""

import json
from dataclasses import fields
from pathlib import Path

import jsonschema
import pytest

import simulator.cli
from simulator.cli.answer import VERSION
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.step import PARTS

SCHEMA = json.loads((Path(simulator.cli.__file__).parent / "answers.schema.json").read_text(encoding="utf-8"))
COMMANDS = {
    "memory": [
        "memory --model gpt2",
        "memory --model resnet18 --dp 4 --zero 1 --gpu v100",
        "memory --parameters 7.5e9 --dp 64 --zero 1",
        "memory --model gpt3-175b --gpu h100 --tp 8",
        "memory --model gpt2-xl --gpu 312e12,2039e9,300e9 --pp 4 --schedule zb-v --stage-layers 6,6,6,6,6,6,6,6",
    ],
    "step": [
        "step --model gpt2 --gpu h100 --global-batch 8",
        "step --model mixtral-8x7b --dp 16 --ep 8 --zero 3 --gpu h100 --global-batch 16 --recompute full",
        "step --model gpt2-xl --gpu 312e12,2039e9,300e9 --pp 4 --tp 5 --chunks 2 --global-batch 8",
    ],
    "plan": [
        "plan --model gpt2 --gpu h100 --gpus 2 --global-batch 4 --micro-batch 1",
        "plan --model llama-2-13b --gpu a100-80gb --gpus 8 --global-batch 8 --top 3 --recompute none",
    ],
    "timeline": [
        "timeline --schedule zb-h1 --ranks 2 --microbatches 4",
        "timeline --model gpt2 --gpu a100-80gb --pp 2 --schedule zb-v --global-batch 8",
    ],
    "validate": ["validate"],
}


def keys(value):
    """The keys of an object, level by level; lists by their first entry."""
    if isinstance(value, dict):
        return {key: keys(inner) for key, inner in sorted(value.items())}
    return keys(value[0]) if isinstance(value, list) and value and isinstance(value[0], dict) else None


@pytest.mark.parametrize("line", [line for lines in COMMANDS.values() for line in lines])
def test_every_answer_keeps_to_the_schema(read, line):
    answer = read(line)
    jsonschema.validate(answer, SCHEMA)
    assert answer["version"] == VERSION == SCHEMA["$defs"]["version"]["const"]
    assert answer["command"] == line.split()[0]


@pytest.mark.parametrize("lines", COMMANDS.values(), ids=COMMANDS)
def test_a_command_has_the_same_keys_for_every_question(read, lines):
    found = [read(line) for line in lines]
    for part in ("model", "plan", "hardware"):  # null, or all of it
        seen = [keys(answer.pop(part)) for answer in found]
        seen = [part for part in seen if part is not None]
        assert all(part.keys() == seen[0].keys() for part in seen)
    assert all(keys(answer) == keys(found[0]) for answer in found)


def test_the_schema_would_notice():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    answer = {"version": 1, "command": "memory", "units": {}, "model": None, "plan": None, "hardware": None}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(answer, SCHEMA)


def test_the_question_is_echoed_field_by_field(read):
    answer = read("step --model gpt2 --gpu h100 --dp 2 --global-batch 8")
    assert set(answer["plan"]) == {field.name for field in fields(Plan)} | {"ranks", "global_batch"}
    assert set(answer["model"]) == {field.name for field in fields(ModelShape)} | {"name", "parameters"}
    assert set(answer["hardware"]) == {field.name for field in fields(Hardware)}
    assert answer["plan"]["microbatches"] == 4
    assert answer["plan"]["attention"] == "flash"
    assert answer["hardware"]["peak_flops"] == 989e12
    assert tuple(answer["parts"]) == PARTS
    assert set(answer["units"]) >= {"seconds", "parts", "peak_total"}


def test_what_is_not_known_is_null(read):
    answer = read("memory --model gpt2 --gpu 312e12,2039e9,300e9")
    assert answer["capacity"] is None
    assert answer["hardware"]["memory"] is None
    assert read("memory --model resnet18")["model"]["layers"] is None
