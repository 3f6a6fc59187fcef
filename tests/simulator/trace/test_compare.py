"""``python -m simulator compare``: sentences, a table, JSON that keeps to the schema, a picture."""

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from kineto_events import span

import simulator.cli
from simulator.cli import main

MODEL = "--model gpt2 --plan dp=2 --gpu h100 --global-batch 2"
SCHEMA = json.loads((Path(simulator.cli.__file__).parent / "answers.schema.json").read_text(encoding="utf-8"))


def run(paths, line=""):
    return CliRunner().invoke(main, ["compare", *map(str, paths), *line.split()])


def test_a_trace_by_itself(two_ranks):
    result = run(two_ranks)
    assert result.exit_code == 0, result.output
    said = result.output.splitlines()
    assert said[:3] == [
        "A step takes 10 ms (2 ranks, 2 steps).",
        "dp: 1 collective a step, 4 ms of them exposed, most on rank 0 (5 ms); in 500 µs of it some rank of the group "
        "had not come yet.",
        "Rank 1 is late: it is the last to come to 1 of its 1 dp collectives, and the others together wait 1 ms a step "
        "for it.",
    ]


def test_beside_its_prediction(two_ranks, tmp_path):
    picture = tmp_path / "step.svg"
    result = run(two_ranks, f"{MODEL} --svg {picture}")
    assert result.exit_code == 0, result.output
    assert "A step takes 10 ms (2 ranks, 2 steps), " in result.output
    assert "Communication along dp that nothing hides takes" in result.output
    assert "predicted" in picture.read_text()


def test_a_plan_of_fewer_ranks_is_refused(two_ranks):
    result = run(two_ranks, MODEL.replace("dp=2", "dp=1"))
    assert result.exit_code == 2
    assert result.output == "Error: the plan has 1 ranks, and there is a trace of rank 1\n"


@pytest.mark.parametrize("line", ["", MODEL])
def test_json(two_ranks, line):
    answer = json.loads(run(two_ranks, line + " --json").output)
    jsonschema.validate(answer, SCHEMA)
    parts = {part["name"]: part["measured"] for part in answer["parts"]}
    assert sum(parts.values()) == pytest.approx(answer["seconds"])
    assert (answer["predicted_seconds"] is None) == (line == "")
    if line:
        predicted = sum(part["predicted"] for part in answer["parts"])
        assert predicted == pytest.approx(answer["predicted_seconds"])


def test_dumps_alone(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_text('{"entries": []}')
    assert run([path]).output == "All ranks have come to the same collective of every group.\n"
    jsonschema.validate(json.loads(run([path], "--json").output), SCHEMA)


def test_a_wrong_file_is_one_sentence(write, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("no trace")
    whole = write("rank0.json", [span("kernel", "gemm", 0, 1)])
    half = tmp_path / "half.json"
    half.write_bytes(whole.read_bytes()[:-200])
    for paths in ([path], [half], [tmp_path / "missing.json"], [whole, whole]):
        result = run(paths)
        assert result.exit_code == 2
        assert result.output.splitlines()[-1].startswith("Error: ")
        assert "Traceback" not in result.output
