"""The planned layer is never slower than the even one or than any other; its lists, prices and refusals."""

import random
from contextlib import suppress
from itertools import product

import pytest

from simulator.inputs.galaxy import WAYS, deal_shares
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.planner.layer_split import even_layer, plan_layer, price_layer
from simulator.planner.split_timeline import split_timeline
from simulator.predict.collective_time import slowest_link
from simulator.predict.galaxy_traffic import galaxy_traffic
from simulator.predict.layer_time import layer_seconds
from simulator.predict.shares import device_seconds, measured_seconds

CPU, BERT = GPUS["laptop-cpu"], MODELS["bert-base"]
TWO = [CPU, CPU.slowed(3)]


def all_shares(total, ranks, unit=1):
    counts = product(range(0, total + 1, unit), repeat=ranks)
    return [list(shares) for shares in counts if sum(shares) == total]


def every_split(shape, devices, way, **more):
    """All lists that fit, priced."""
    group = shape.heads // shape.kv_heads
    sizes = {"heads": (shape.heads, group), "columns": (shape.ffn, 1), "sequence": (shape.sequence, 1)}
    names = [name for name in sizes if name in WAYS[way].values()]
    for lists in product(*(all_shares(sizes[n][0], len(devices), sizes[n][1]) for n in names)):
        with suppress(ValueError):
            yield price_layer(shape, devices, way, **dict(zip(names, lists, strict=True)), **more)


@pytest.mark.parametrize("way", WAYS)
def test_no_split_is_faster(way):
    short = 0
    for seed in range(4):
        rng = random.Random(seed)
        kv_heads = rng.choice([2, 4])
        shape = ModelShape(2, 16, 4, 50, 4, kv_heads=kv_heads, ffn=5, dropout=rng.random() < 0.5)
        devices = [CPU.slowed(rng.uniform(1, 4)) for _ in range(2)]
        if seed % 2:  # not quite enough for the fastest split, on its fullest rank
            held = plan_layer(shape, devices, way).memory
            devices[held.index(max(held))] = devices[held.index(max(held))].slowed(1, max(held) - 1)
        splits = list(every_split(shape, devices, way))
        if not splits:
            with pytest.raises(ValueError, match="lacks"):
                plan_layer(shape, devices, way)
            continue
        short += seed % 2
        found = plan_layer(shape, devices, way)
        assert found.seconds == pytest.approx(min(split.seconds for split in splits), rel=1e-9)
        assert all(held <= device.memory for held, device in zip(found.memory, devices, strict=True))
        even = even_layer(shape, devices, way)
        if all(held <= device.memory for held, device in zip(even.memory, devices, strict=True)):
            assert found.seconds <= even.seconds
    assert short, "in one case at least memory decides"


@pytest.mark.parametrize("way", WAYS)
def test_the_time_of_messages_follows_from_their_bytes(way):
    """Of a ring's p - 1 steps, each takes as long as its largest part; with equal parts that is what a rank sends."""
    shape = ModelShape(1, 64, 4, 50, 12)
    devices = [CPU, CPU.slowed(2), CPU]
    split = even_layer(shape, devices, way)
    sent = [
        galaxy_traffic(shape, way, 3, 0, batch=1),
        galaxy_traffic(ModelShape(2, 64, 4, 50, 12), way, 3, 0),
    ]
    one_more = sum(row.sent for row in sent[1].rows) - sum(row.sent for row in sent[0].rows)
    link = slowest_link(devices)
    messages = (sum(split.communication.values()) - one_more / link.rate) / link.latency
    assert messages == pytest.approx(round(messages), abs=1e-3)
    assert messages >= 8


def test_galaxy_on_two_devices_one_three_times_as_fast():
    even, planned = even_layer(BERT, TWO), plan_layer(BERT, TWO)
    assert even.shares == {"heads": [6, 6], "columns": [1536, 1536], "sequence": [256, 256]}
    assert planned.heads == [9, 3]
    assert sum(planned.columns) == 3072
    assert planned.columns[0] > 2 * planned.columns[1]
    assert planned.seconds < 0.6 * even.seconds
    assert even.waiting[1] == pytest.approx(0, abs=1e-9)
    assert planned.waiting[0] < even.waiting[0] / 5
    assert [sum(block[r] for block in planned.compute.values()) for r in (0, 1)] == planned.busy
    again = price_layer(BERT, TWO, heads=planned.heads, columns=planned.columns, sequence=planned.sequence)
    assert again == planned


def test_memory_moves_heads_and_columns_to_the_slower_device():
    short = [CPU.slowed(1, 1.7e9), CPU.slowed(3)]
    free, planned = plan_layer(BERT, TWO, "tp"), plan_layer(BERT, short, "tp")
    assert free.memory[0] > 1.7e9 >= planned.memory[0]
    assert free.seconds < planned.seconds < even_layer(BERT, short, "tp").seconds


def test_measured_times_take_the_place_of_the_roofline():
    points = {
        "attention": {1: (0.25, 0.75), 12: (3.0, 9.0)},
        "mlp": {3072: (7.5, 22.5)},
        "connection": {256: (0.25, 0.75), 512: (0.5, 1.5)},
    }
    timed = measured_seconds(points, slowness=[1, 3])
    assert timed("attention", 1, 5) == pytest.approx((3.75, 11.25))
    assert timed("mlp", 0, 1024) == pytest.approx((2.5, 7.5))
    assert timed("connection", 0, 128) == pytest.approx((0.125, 0.375))
    assert timed("mlp", 1, 0) == (0, 0)
    planned = plan_layer(BERT, [CPU, CPU], "tp", seconds=timed)
    assert planned.heads == [10, 2], "10 + 2 connections of 1 s beside (2 + 2) times 3"
    assert planned.columns == [2407, 665]
    assert even_layer(BERT, [CPU, CPU], "tp", seconds=timed).parts["heads"] == pytest.approx(6 * 3 + 2 * 3)


def test_what_a_rank_computes_around_messages_does_not_depend_on_its_share():
    points = {
        "attention": {1: (0.25, 0.75), 12: (3.0, 9.0)},
        "mlp": {3072: (10.0, 20.0)},
        "connection": {512: (1.0, 1.0)},
    }
    handling = {"attention": (0.25, 0.5), "connection": (0.125, 0.25)}
    plain, timed = (measured_seconds(points, [1, 3], each) for each in (None, handling))
    for share in (0, 1, 5):
        for rank in (0, 1):
            forward, backward = plain("attention", rank, share)
            slowest = forward + 3 * 0.25, backward + 3 * 0.5
            assert timed("attention", rank, share) == pytest.approx(slowest)
    assert timed("mlp", 1, 3072) == plain("mlp", 1, 3072)
    alone = price_layer(BERT, [CPU, CPU], "tp", heads=[12, 0], columns=[3072, 0], seconds=timed)
    assert alone.forward["attention"] == [3.75, 0.75], "a rank without heads handles messages, too"
    assert alone.compute["attention"] == [14.25, 2.25]


def test_each_direction_waits_for_its_own_slowest_rank():
    """Rank 0 is slow in forward, and rank 1 in backward, so their sums do not show how long the others wait."""

    def seconds(block, rank, share):
        return (4.0 * share, share) if rank == 0 else (share, 4.0 * share)

    halves = price_layer(BERT, [CPU, CPU], "sp", sequence=[256, 256], seconds=seconds)
    assert halves.busy == [4 * 5 * 256] * 2
    assert halves.parts["sequence"] == 4 * (4 + 4) * 256
    assert halves.waiting == [4 * 3 * 256] * 2
    computed = split_timeline(halves)
    forward, backward = (
        [max(s.end for s in computed.of(r, "compute") if s.name.startswith(way)) for r in (0, 1)]
        for way in ("forward", "backward")
    )
    assert forward[0] > forward[1]
    assert backward[0] < backward[1]


def test_a_whole_block_counts_with_the_block_that_follows_it_in_each_direction():
    seconds_of = {"attention": (1.0, 2.0), "mlp": (10.0, 20.0), "connection": (0.25, 0.5)}
    split = even_layer(BERT, [CPU, CPU], "tp", seconds=lambda block, rank, share: seconds_of[block])
    assert split.parts == {"heads": 1.25 + 2.5, "columns": 10.25 + 20.5}
    late = [CPU, CPU.slowed(3)]
    by_parts = even_layer(BERT, late, "tp")
    ahead, back = by_parts.forward, by_parts.backward
    assert by_parts.parts["heads"] == pytest.approx(
        ahead["connection_2"][1] + ahead["attention"][1] + back["connection_1"][1] + back["attention"][1]
    )


def test_forward_and_backward_of_a_device_follow_their_own_formulas():
    plan = Plan(precision="fp32")
    seconds = device_seconds(BERT, plan, [CPU])
    whole = layer_seconds(BERT, plan, CPU)
    for block, part, share, of_layer in (
        ("attention", "attention", 12, 1),
        ("mlp", "mlp", 3072, 1),
        ("connection", "norms", 512, 2),
    ):
        forward, backward = seconds(block, 0, share)
        assert of_layer * forward == pytest.approx(whole.forward[part])
        assert of_layer * backward == pytest.approx(whole.backward[part])
        assert 1 < backward / forward < 2.5
    assert seconds("attention of positions", 0, 512) == pytest.approx(seconds("attention", 0, 12))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: plan_layer(BERT, [CPU.slowed(1, 4e8), CPU]),
            r"without a share .* rank 0 \(laptop-cpu\) needs .* lacks",
        ),
        (
            lambda: plan_layer(BERT, [CPU.slowed(1, 8e8)] * 2),
            r"no split fits; .* rank . \(laptop-cpu\) .* together lack",
        ),
        (
            lambda: price_layer(BERT, [CPU, CPU.slowed(1, 1e9)], heads=[1, 11]),
            r"^rank 1 .* has 1 GB: it lacks",
        ),
        (lambda: price_layer(BERT, TWO, heads=[9, 4]), "heads must be 2 whole numbers.* add up to 12, not"),
        (
            lambda: price_layer(BERT, TWO, "sp", heads=[9, 3]),
            "heads must be None: this placement splits sequence",
        ),
        (
            lambda: plan_layer(BERT, TWO, layer="decoder"),
            "layer must be one of post-norm, pre-norm, not decoder",
        ),
        (lambda: plan_layer(BERT, []), "devices must be a list"),
        (lambda: plan_layer(BERT, CPU), "devices must be a list"),
        (lambda: plan_layer(BERT, TWO, "dp"), "placement must be one of tp, sp, galaxy, galaxy2, not dp"),
        (lambda: plan_layer(MODELS["mixtral-8x7b"], TWO), "experts must be 1"),
        (lambda: plan_layer(BERT, TWO, plan=Plan(recompute="full")), "recompute of the plan must be 'none'"),
        (
            lambda: plan_layer(BERT, TWO, dict.fromkeys(WAYS["tp"], "whole")),
            "placement must be one that splits",
        ),
        (lambda: measured_seconds({"norm": {1: (1.0, 2.0)}}), "block must be one of attention"),
        (
            lambda: measured_seconds({"mlp": {1: (1.0, 2.0)}}, [1], {"norm": (1.0, 2.0)}),
            "block must be one of attention",
        ),
        (
            lambda: measured_seconds({"mlp": {1: (1.0, 2.0)}}, [1], {"mlp": (1.0, -1.0)}),
            "handling of mlp, backward must be",
        ),
        (lambda: measured_seconds({"mlp": {1: (1.0, 2.0)}})("attention", 0, 1), "block must be one of mlp"),
        (
            lambda: measured_seconds({"mlp": {1: 1.0}}),
            "seconds of 1 of mlp must be a pair: seconds of forward, and of backward, not 1.0",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_query_heads_that_share_a_key_stay_together():
    shape = MODELS["llama-3-8b"]
    found = plan_layer(
        shape, [GPUS["h100"], GPUS["h100"].slowed(2), GPUS["h100"]], "tp", plan=Plan(), layer="pre-norm"
    )
    assert all(heads % 4 == 0 for heads in found.heads)
    deal_shares(3, 32, shape.ffn, found.shares, group=4)
