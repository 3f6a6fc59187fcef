"""DDP's buckets and FSDP's prefetch, by hand and by properties."""

from itertools import pairwise

import pytest

from simulator.predict.overlap import ddp_timeline, fsdp_timeline

FORWARD, BACKWARD, BYTES = [1, 1, 1], [2, 2, 2], [30, 20, 10]


def ends(timeline, rank=0):
    return {span.name: (span.start, span.end) for span in timeline.of(rank)}


def test_ddp_buckets_leave_while_backward_goes_on():
    # Two ranks: a ring all-reduce sends each byte once (2 (p-1)/p = 1), so 30 bytes take 3 seconds.
    timeline = ends(ddp_timeline(FORWARD, BACKWARD, BYTES, ranks=2, bandwidth=10, bucket_bytes=25))
    assert timeline["backward 2"] == (3, 5)
    assert timeline["bucket 0"] == (7, 10)  # layers 2 and 1: 30 bytes, full when layer 1 is done
    assert timeline["bucket 1"] == (10, 13)
    assert "bucket 2" not in timeline


def test_ddp_without_overlap_waits_for_the_end_of_backward():
    naive = ends(ddp_timeline(FORWARD, BACKWARD, BYTES, ranks=2, bandwidth=10, bucket_bytes=0, overlap=False))
    assert [naive[f"bucket {i}"] for i in range(3)] == [(9, 10), (10, 12), (12, 15)]


def test_ddp_first_bucket_and_update():
    timeline = ddp_timeline(
        FORWARD, BACKWARD, BYTES, ranks=2, bandwidth=10, bucket_bytes=100, first_bucket_bytes=1, update=0.5
    )
    assert ends(timeline)["bucket 0"] == (5, 6)
    assert ends(timeline)["bucket 1"] == (9, 14)
    assert ends(timeline)["update"] == (14, 14.5)


def test_latency_is_paid_for_each_message_of_the_ring():
    timeline = ddp_timeline([0], [0], [8], ranks=4, latency=1, bandwidth=2)
    assert ends(timeline)["bucket 0"] == (0, 2 * 3 * 1 + 2 * (3 / 4) * 8 / 2)


def test_a_collective_waits_for_the_slowest_rank():
    timeline = ddp_timeline(
        FORWARD, BACKWARD, BYTES, ranks=2, bandwidth=10, bucket_bytes=1000, speeds=[1, 0.5]
    )
    assert ends(timeline, 0)["bucket 0"] == ends(timeline, 1)["bucket 0"] == (18, 24)


def test_fsdp_gathers_ahead():
    # Two ranks: an all-gather sends half of the unit, so 20 bytes take 1 second.
    steps = fsdp_timeline([2, 2], [4, 4], [20, 20], ranks=2, bandwidth=10)
    gathers = [
        (s.name[-1], s.start, s.end) for s in steps.of(0, "communication") if s.name.startswith("all-gather")
    ]
    assert gathers == [("0", 0, 1), ("1", 1, 2), ("1", 5, 6), ("0", 6, 7)]
    timeline = ends(steps)
    assert (timeline["forward block 0"], timeline["forward block 1"]) == ((1, 3), (3, 5))
    assert timeline["backward block 1"] == (6, 10)  # gathered again, which nothing hides
    assert timeline["backward block 0"] == (10, 14)
    assert timeline["reduce-scatter block 1"] == (10, 11)
    assert timeline["reduce-scatter block 0"] == (14, 15)


def test_fsdp_without_prefetch_hides_nothing():
    timeline = fsdp_timeline([2, 2], [4, 4], [20, 20], ranks=2, bandwidth=10, prefetch=0, update=1)
    # 2 + 2 gathers and the last reduce-scatter stand alone; the first reduce-scatter delays a gather.
    assert timeline.makespan == 12 + 4 * 1 + 1 + 1 + 1


def test_fsdp_that_keeps_its_parameters_gathers_once():
    timeline = fsdp_timeline([2, 2], [4, 4], [20, 20], ranks=2, bandwidth=10, reshard=False)
    names = [span.name for span in timeline.of(0, "communication")]
    assert names == [
        "all-gather block 0",
        "all-gather block 1",
        "reduce-scatter block 1",
        "reduce-scatter block 0",
    ]


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
def test_no_lane_does_two_things_at_once(prefetch):
    timeline = fsdp_timeline(
        [1, 3, 1, 2], [2, 1, 4, 2], [9, 80, 5, 30], ranks=3, bandwidth=10, prefetch=prefetch
    )
    for rank in range(3):
        for lane in ("compute", "communication"):
            spans = timeline.of(rank, lane)
            assert len(spans) in (8, 12)
            assert all(a.end <= b.start for a, b in pairwise(spans))


def test_more_prefetch_is_never_slower_here():
    steps = [
        fsdp_timeline([1] * 6, [2] * 6, [10] * 6, ranks=4, bandwidth=8, prefetch=p).makespan
        for p in (0, 1, 2, 6)
    ]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ranks": 0}, "ranks must be a whole number of at least 1, not 0"),
        ({"backward": [1]}, "each list needs one number for every layer, but forward has 3, backward has 1"),
        ({"forward": [1, -1, 1]}, "each of forward must be a number of at least 0, not -1"),
        ({"bandwidth": 0}, "bandwidth must be a number more than 0, or infinity, not 0"),
        ({"speeds": [1]}, "speeds must be 2 positive numbers"),
    ],
)
def test_refuses_in_a_sentence(change, sentence):
    arguments = {"forward": FORWARD, "backward": BACKWARD, "gradient_bytes": BYTES, "ranks": 2} | change
    with pytest.raises(ValueError, match=sentence):
        ddp_timeline(**arguments)


def test_fsdp_refuses_a_negative_prefetch():
    with pytest.raises(ValueError, match="prefetch must be a whole number of at least 0, not -1"):
        fsdp_timeline([1], [1], [1], ranks=1, prefetch=-1)
