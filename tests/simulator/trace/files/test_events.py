"""Traces are read piece by piece, in whatever form they were written; a broken one is refused in a sentence."""

import json

import pytest
from kineto_events import span

from simulator.trace.files import events
from simulator.trace.files.events import read_events


def names(path):
    head, *found = read_events(path)
    return head, [event.name for event in found]


@pytest.mark.parametrize("piece", [1, 7, 100, 8_000_000])
@pytest.mark.parametrize("packed", [False, True])
def test_pieces_end_between_two_events(write, monkeypatch, piece, packed):
    monkeypatch.setattr(events, "PIECE", piece)
    nested = span("kernel", 'a "name", {with} [all]', 3, 4, grid=[{"x": 8}, {"x": 1}], text="}, {")
    path = write(
        "rank0.json", [span("cpu_op", f"aten::{n}", n, n + 1) for n in range(5)] + [nested], packed=packed
    )
    head, found = names(path)
    assert head["distributedInfo"]["rank"] == 0
    assert found == [*(f"aten::{n}" for n in range(5)), 'a "name", {with} [all]', "Record Window End"]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    "form", [lambda e: e, lambda e: {"traceEvents": e}, lambda e: {"a": 1, "traceEvents": e}]
)
def test_every_form_of_a_chrome_trace(tmp_path, monkeypatch, form, indent):
    monkeypatch.setattr(events, "PIECE", 10)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(form([{"name": f"{n}", "ph": "X"} for n in range(40)]), indent=indent))
    assert names(path)[1] == [f"{n}" for n in range(40)]


def test_no_events_are_no_events(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": []}')
    assert names(path) == ({}, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "no list of traceEvents"),
        (b'{"answer": 42}', "no list of traceEvents"),
        (b'{"traceEvents": [{"ph": "X"}, {"ph"', "no whole trace"),
        (b'{"traceEvents": [{"ph": "X"},', "no whole trace"),
        (b'{"traceEvents": [{"ph": 3}]}', "no whole trace"),
        (b'{"a": tru, "traceEvents": []}', "no whole trace"),
        (b"\x1f\x8b\x08\x00 this was packed once", "breaks off, or is no gzip file"),
    ],
)
def test_a_broken_file_is_refused_in_a_sentence(tmp_path, text, said):
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=said) as error:
        list(read_events(path))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
