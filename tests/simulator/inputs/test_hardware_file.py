"""Hardware files: known devices read, files written are read back, and every mistake is one sentence."""

import copy
import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from simulator.inputs import hardware_file
from simulator.inputs.hardware import Link
from simulator.inputs.hardware_file import parse_hardware, read_hardware, write_hardware
from simulator.inputs.hardware_schema import hardware_schema
from simulator.inputs.known_devices import GPUS, find_device, fitted_rows

DEVICES = Path(hardware_file.__file__).parent / "devices"


def minimal():
    def number(value, unit):
        return {"value": value, "unit": unit, "source": "a test"}

    link = {"bandwidth": number(100, "GB/s"), "latency": number(5, "us")}
    return {
        "format": 1,
        "name": "mine",
        "compute": {"peak": number(100, "TFLOP/s")},
        "memory": {"capacity": number(16, "GiB"), "bandwidth": number(1, "TB/s")},
        "links": {"node": link},
    }


def changed(path, value):
    """The minimal content with one key set, or removed if the value is None."""
    content = minimal()
    *sections, key = path.split(".")
    table = content
    for section in sections:
        table = table.setdefault(section, {})
    if value is None:
        del table[key]
    else:
        table[key] = value
    return content


def test_units_are_converted_and_one_node_needs_no_rail():
    mine = parse_hardware(minimal())
    assert (mine.peak_flops, mine.memory, mine.memory_bandwidth) == (100e12, 16 * 2**30, 1e12)
    assert mine.node == mine.network == Link(5e-6, 100e9)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_a_latency_is_the_same_in_every_unit(unit):
    in_unit = {"s": 0.005, "ms": 5, "us": 5000}[unit]
    latency = {"value": in_unit, "unit": unit, "source": "a test"}
    assert parse_hardware(changed("links.node.latency", latency)).node.latency == pytest.approx(0.005)


def test_every_known_device_has_a_file_and_every_file_is_a_known_device():
    assert {path.stem for path in DEVICES.glob("*.toml")} == set(GPUS)
    for name, device in GPUS.items():
        assert device.name == name
        assert GPUS[name] is device  # read once
        assert set(fitted_rows(name)) == {"fitted", "held_out"}
    assert "tpu" not in GPUS
    assert find_device("A100-SXM") is GPUS["a100-80gb"]


def test_what_is_written_is_read_back(tmp_path):
    spine = Link(9e-6, 12.5e9, 0.5)
    points = ((1e9, 0.25), (1e12, 0.7))
    device = replace(GPUS["h100"], name="mine", spine=spine, rail_size=256, matmul_sizes=points)
    path = tmp_path / "mine.toml"
    sources = dict.fromkeys(device.__dataclass_fields__, 'measured "here"')
    write_hardware(path, device, sources, about="a test")
    assert read_hardware(path) == device == find_device(str(path))
    assert tomllib.loads(path.read_text())["compute"]["peak"]["source"] == 'measured "here"'


def test_a_number_without_a_source_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="peak_flops needs a source"):
        write_hardware(tmp_path / "mine.toml", GPUS["h100"], {})


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("format", 2, "format must be 1, not 2"),
        ("name", None, "name is missing"),
        ("name", "", "name must be a text that is not empty"),
        ("colour", "green", "the file has no key colour; its keys are about, attention"),
        ("attention", "sparse", "attention must be one of flash, unfused, not 'sparse'"),
        ("compute.peak", None, "compute.peak is missing"),
        ("compute.peak", 3, "compute.peak must be a table, not 3"),
        ("compute.speed", {}, "compute has no key speed; its keys are flash_backward"),
        (
            "compute.peak.unit",
            "GB",
            "compute.peak.unit must be one of FLOP/s, GFLOP/s, PFLOP/s, TFLOP/s, not 'GB'",
        ),
        ("compute.peak.source", None, "compute.peak.source is missing"),
        ("compute.peak.value", "fast", "compute.peak.value must be a finite number, not 'fast'"),
        ("compute.peak.value", float("nan"), "compute.peak.value must be a finite number, not nan"),
        ("compute.peak.value", [1, 2], "compute.peak.value must be a finite number, not [1, 2]"),
        ("compute.peak.value", 10**400, "compute.peak.value must be a finite number, not 1000000000"),
        ("compute.peak.value", True, "compute.peak.value must be a finite number, not True"),
        ("links.node_size", {"value": 1.5, "unit": "1", "source": "x"}, "must be a whole number, not 1.5"),
        ("compute.peak.value", 0, "peak flops must be a number more than 0, not 0"),
        ("links.node", None, "links.node is missing"),
        ("links.node.latency", None, "links.node.latency is missing"),
        ("links.moon", {}, "links has no key moon; its keys are data_overlap"),
        ("fit", {"fitted": "all"}, "fit.fitted must be a list, each item a text, not 'all'"),
    ],
)
def test_a_mistake_names_the_key_and_what_is_accepted(path, value, sentence):
    with pytest.raises(ValueError) as error:
        parse_hardware(changed(path, value))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("points", [3, [], [[1e9]], [[1e9, 2]], [[2e9, 0.5], [1e9, 0.6]], [[0, 0.5]]])
def test_points_must_ascend(points):
    content = copy.deepcopy(minimal())
    content["compute"]["matmul_sizes"] = {"value": points, "unit": "FLOP", "source": "a test"}
    with pytest.raises(ValueError, match=r"compute\.matmul_sizes\.value"):
        parse_hardware(content)


def test_files_that_are_no_files(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        find_device(str(tmp_path / "none.toml"))
    broken = tmp_path / "broken.toml"
    broken.write_text("name = ")
    with pytest.raises(ValueError, match="is not a TOML file"):
        find_device(str(broken))


def test_the_json_schema_is_that_of_the_reader():
    written = json.loads((DEVICES.parent / "hardware.schema.json").read_text(encoding="utf-8"))
    assert written == hardware_schema()
    jsonschema.Draft202012Validator.check_schema(written)
    for path in DEVICES.glob("*.toml"):
        jsonschema.validate(tomllib.loads(path.read_text(encoding="utf-8")), written)
    for path, value in (
        ("colour", "green"),
        ("compute.peak", None),
        ("compute.peak.unit", "GB"),
        ("links.node", None),
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(changed(path, value), written)


def test_importing_the_simulator_reads_no_device():
    code = (
        "import sys; import simulator.cli.options, simulator.predict.step; "
        "print({'tomllib', 'simulator.inputs.hardware_file'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
