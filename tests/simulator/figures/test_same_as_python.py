"""What the figures compute in the page is what the simulator computes."""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest

from course_lib.observe.ledgers.messages import trace_collective
from course_lib.runtime import collectives
from simulator.figures import (
    explore_block_life,
    explore_buckets,
    explore_interval,
    explore_kv_blocks,
    explore_rank,
    explore_ring,
    explore_tiles,
    explore_unequal,
)
from simulator.inputs.hardware import Link
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.planner.layer_split import even_layer, price_layer
from simulator.planner.split_timeline import split_timeline
from simulator.predict.attention_io import flash_forward
from simulator.predict.checkpoint_interval import useful_share, young
from simulator.predict.collective_time import all_reduce_rounds
from simulator.predict.collective_traffic import ring_all_reduce_sent
from simulator.predict.goodput import simulate_run
from simulator.predict.overlap import ddp_timeline
from simulator.predict.serving import Arrival, serve_in_blocks
from simulator.predict.traffic import fsdp_traffic
from simulator.predict.unsharded import unsharded_history

BERT, LAPTOP = MODELS["bert-base"], GPUS["laptop-cpu"]


def test_the_unequal_pair_is_the_planners(run_in_node):
    cases = [
        {"slowness": s, "bandwidth": b, "heads": h} for s, b, h in product((1, 3), (2e7, 3e9), (0, 6, 9, 12))
    ]
    program = """
const [given, cases] = questions;
console.log(JSON.stringify(cases.map((values) => {
  const found = times(values, given), { pair } = times({ ...values, bandwidth: found.even }, given);
  return { ...found, spans: layer(values, given), pairThere: found.even < Infinity ? pair : null };
})));
"""
    given = explore_unequal().page()[1]
    alone = even_layer(BERT, [LAPTOP], "galaxy").seconds
    for values, found in zip(cases, run_in_node(program, [given, cases], "unequal"), strict=True):
        link = Link(LAPTOP.node.latency, values["bandwidth"])
        devices = [replace(device, node=link) for device in (LAPTOP, LAPTOP.slowed(values["slowness"]))]
        heads = [values["heads"], 12 - values["heads"]]
        split = price_layer(BERT, devices, "galaxy", heads=heads, columns=[256 * own for own in heads])
        assert found["pair"] == pytest.approx(split.seconds)
        assert found["alone"] == pytest.approx(alone)
        own = {device: [] for device in (0, 1)}
        for device, _, start, end in found["spans"]:
            for one in (0, 1) if device < 0 else (device,):
                own[one].append((start, end))
        wanted = split_timeline(split).spans
        for rank, spans in own.items():
            there = sorted((span.start, span.end) for span in wanted if span.rank == rank)
            assert sorted(spans) == [pytest.approx(pair) for pair in there]
        if found["pairThere"] is not None:  # at the break-even
            assert found["pairThere"] == pytest.approx(alone)


def test_the_curve_of_the_pair_is_drawn_as_far_as_the_reader_has_dragged(run_in_node):
    """Else the picture would tell the break-even before it is found."""
    program = """
console.log(JSON.stringify([9.75e7, 2e8, 1.5e8].map((bandwidth) => {
  const { marks } = draw({ ...questions.values, bandwidth }, 0, questions);
  const curve = marks.find((mark) => mark.path && mark.colour === "ink");
  return curve ? [curve.path[0], curve.path.at(-2)] : null;
})));
"""
    before, dragged, back = run_in_node(program, explore_unequal().page()[1], "unequal")
    assert before is None
    assert dragged[0] < dragged[1]
    assert back == pytest.approx(dragged)  # what was seen stays


def test_a_step_of_fsdp_holds_and_sends_what_is_predicted(run_in_node):
    cases = [
        {"prefetch": ahead, "reshard_after_forward": reshard, "ranks": p}
        for ahead, reshard, p in product((False, True), (False, True), (2, 4, 7))
    ]
    given = explore_block_life().page()[1]
    elements, units = given["bytes"] // 2, [given["bytes"]] * 4
    program = """
const [given, cases] = questions;
console.log(JSON.stringify(cases.map((values) => moments(values, given))));
"""
    for values, found in zip(cases, run_in_node(program, [given, cases], "block_life"), strict=True):
        p, reshard = values["ranks"], values["reshard_after_forward"]
        history = unsharded_history(units, ranks=p, prefetch=int(values["prefetch"]), reshard=reshard)
        computing = [one for one in found if one["what"] in ("forward", "backward")]
        names = [f"{one['what']} block {one['block']}" for one in computing]
        assert names == [name for name in history.actions if name]
        held = [one["bytes"]["parameters"] + one["bytes"]["buffers"] for one in computing]
        wanted = [held.total for held, name in zip(history.held, history.actions, strict=True) if name]
        assert held == pytest.approx(wanted)
        messages = found[-1]["gathers"] + found[-1]["scatters"]
        sent = fsdp_traffic([elements] * 4, p, 2, reshard=reshard).sent
        assert messages * given["bytes"] * (p - 1) / p == pytest.approx(sent, rel=1e-6)
        assert found[0]["bytes"]["gradients"] == 0
        assert found[-1]["bytes"] == pytest.approx(
            {"parameters": sum(units) / p, "buffers": 0, "gradients": sum(units) / p}
        )


def test_the_ring_sends_what_the_course_sends(run_in_node):
    program = "console.log(JSON.stringify(questions.map((p) => rounds(p))));"
    sizes = [2, 3, 4, 8]
    rounds = dict(zip(sizes, run_in_node(program, sizes, "ring"), strict=True))
    for p, found in rounds.items():
        assert len(found) - 1 == all_reduce_rounds("ring", p)
        elements = 3 * p  # so that a chunk has 12 bytes
        for rank in range(p):
            sent = [send for one in found for send in one["sends"] if send["from"] == rank]
            assert 12 * len(sent) == ring_all_reduce_sent(elements, 4, p, rank)
        assert all(sorted(chunk) == list(range(p)) for own in found[-1]["held"] for chunk in own)
    bits = sorted(
        (k, send["from"], send["to"], sum(1 << (send["chunk"] * 4 + rank) for rank in send["addends"]))
        for k, one in enumerate(rounds[4])
        for send in one["sends"]
    )
    ran = trace_collective(partial(collectives.all_reduce, algorithm="ring"), ranks=4).messages
    assert bits == sorted((m.round, m.sender, m.receiver, *m.values) for m in ran)
    assert explore_ring().page()[1]["bytes"] == 12e6  # the tensor of chapter 04


def test_buckets_are_sent_when_ddp_timeline_says(run_in_node):
    given = explore_buckets().page()[1]
    cases = [{"tokens": tokens} for tokens in given["sliders"][0]["choices"]]
    link = {name: given[name] for name in ("ranks", "latency", "bandwidth", "bucket_bytes")}
    program = """
const [given, cases] = questions;
console.log(JSON.stringify(cases.map((values) => step(values, given))));
"""
    for values, found in zip(cases, run_in_node(program, [given, cases], "buckets"), strict=True):
        forward, backward = ([values["tokens"] * one for one in given[k]] for k in ("forward", "backward"))
        timeline = ddp_timeline(forward, backward, given["bytes"], **link)
        spans = [span for span in timeline.spans if span.rank == 0]
        for name, shown in (("backward", found["backward"]), ("bucket", found["buckets"])):
            wanted = sorted((span.start, span.end) for span in spans if span.name.startswith(name))
            pairs = [one if isinstance(one, list) else (one["start"], one["end"]) for one in shown]
            assert pairs == [pytest.approx(pair) for pair in wanted]
        ended = max(span.end for span in spans if span.lane == "compute")
        assert found["exposed"] == pytest.approx(timeline.makespan - ended)


def test_tiles_end_with_the_softmaxs_sums_and_move_what_is_counted(run_in_node):
    given = explore_tiles().page()[1]
    sides = given["sliders"][0]["choices"]
    cases = [{"block_q": q, "block_k": k} for q, k in product(sides, sides)]
    program = """
const [given, cases] = questions;
console.log(JSON.stringify(cases.map((values) => tiles(values, given))));
"""
    scores = np.array(given["scores"], float)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    for values, found in zip(cases, run_in_node(program, [given, cases], "tiles"), strict=True):
        end = found[-1]
        assert end["m"] == scores.max(1).tolist()
        assert end["l"] == pytest.approx(weights.sum(1))
        assert end["o"] == pytest.approx(weights @ given["v"])
        moved = flash_forward(len(scores), given["size"], **values, itemsize=given["itemsize"])
        assert end["moved"] == {name: bytes.read + bytes.written for name, bytes in moved.items()}


def test_blocks_are_handed_out_as_the_simulator_does(run_in_node):
    given = explore_kv_blocks().page()[1]
    arrivals = [Arrival(*request) for request in given["requests"]]
    cases = [{"block_size": size, "share": share} for size in (2, 4, 8, 16) for share in (False, True)]
    program = """
const [given, cases] = questions;
console.log(JSON.stringify(cases.map((values) => serve(values, given))));
"""
    alone = {}
    for values, found in zip(cases, run_in_node(program, [given, cases], "kv_blocks"), strict=True):
        size = values["block_size"]
        if not values["share"]:
            history = serve_in_blocks(arrivals, given["slots"] // size, size)
            steps = [
                tuple((p["block"] * size, size, p["tokens"], tuple(p["holders"])) for p in one["pieces"])
                for one in found
            ]
            assert steps == [tuple(map(tuple, pieces)) for pieces in history.steps]
            assert tuple(len(one["waiting"]) for one in found) == history.waiting
            alone[size] = found
            continue
        assert len(found) <= len(alone[size])
        for one in found:  # each token has its slot, and a shared block is full
            for number, tokens in one["tokens"].items():
                held = [p for p in one["pieces"] if int(number) in p["holders"]]
                assert sum(p["tokens"] for p in held) == tokens
            assert all(p["tokens"] == size for p in one["pieces"] if len(p["holders"]) > 1)
        assert any(len(p["holders"]) > 1 for one in found for p in one["pieces"]) == (size <= 8)


def test_an_interval_costs_what_young_says(run_in_node):
    sliders = {slider["name"]: slider["choices"] for slider in explore_interval().page()[1]["sliders"]}
    cases = [dict(zip(sliders, values, strict=True)) for values in product(*sliders.values())]
    program = "console.log(JSON.stringify(questions.map(shares)));"
    for values, found in zip(cases, run_in_node(program, cases, "interval"), strict=True):
        setting = {"cost": values["cost"], "restart": values["restart"], "mtbf": 86400 / values["failures"]}
        assert found["useful"] == pytest.approx(useful_share(values["interval"], **setting))
        parts = found["useful"], found["saving"], found["again"], found["restarting"]
        assert sum(parts) == pytest.approx(1)
        assert found["young"] == pytest.approx(young(values["cost"], setting["mtbf"]))


@pytest.mark.parametrize(("interval", "restart", "failures"), [(7200, 900, 8), (1200, 900, 64), (600, 60, 8)])
def test_the_time_goes_where_a_simulated_run_spends_it(interval, restart, failures, run_in_node):
    values = {"interval": interval, "cost": 60, "restart": restart, "failures": failures}
    [found] = run_in_node("console.log(JSON.stringify(questions.map(shares)));", [values], "interval")
    run = simulate_run(60_000 / failures, 86400 / failures, interval, 60, restart, seed=1)
    parts = {"useful": run.kept, "saving": run.saving, "again": run.lost, "restarting": run.restarting}
    for name, seconds in parts.items():
        assert found[name] == pytest.approx(seconds / sum(parts.values()), rel=0.03), name


def test_lora_changes_the_matrix_by_its_factor(run_in_node):
    given = explore_rank().page()[1]
    A, B = np.array(given["A"]), np.array(given["B"])
    cases = [{"r": r, "alpha": a} for r, a in product((1, 4, 16), (1, 16))]
    program = """
const [given, cases] = questions;
console.log(JSON.stringify(cases.map((values) => lora(values, given))));
"""
    for values, found in zip(cases, run_in_node(program, [given, cases], "rank"), strict=True):
        r = values["r"]
        assert np.allclose(found["change"], values["alpha"] / r * B[:, :r] @ A[:r])
        assert found["trained"] == A[:r].size + B[:, :r].size
