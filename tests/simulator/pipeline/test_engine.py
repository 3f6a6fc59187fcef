"""The engine against published tables, closed forms, an independent longest path, and random schedules."""

import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import SCHEDULES, Action, make_schedule

# Zero Bubble Pipeline Parallelism (arXiv:2401.10241), tables 5 and 9: p = 8, times in ms.
ZERO_BUBBLE = [
    # m, TF, TB, TW, Tcomm, bubble rates of 1F1B, ZB-H1, ZB-H2
    (24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585, 0.1083),
    (32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242, 0.0837),
    (64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674, 0.0444),
    (24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323, 0.0698),
    (32, 29.802, 29.428, 19.53, 0.577, 0.1898, 0.1045, 0.0559),
    (64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554, 0.0294),
]


@pytest.mark.parametrize("row", ZERO_BUBBLE)
def test_zero_bubble_tables_to_four_decimals(row):
    m, *times = row[:5]
    rates = [simulate(make_schedule(n, 8, m), *times).bubble("internal") for n in ("1f1b", "zb-h1", "zb-h2")]
    assert [round(rate, 4) for rate in rates] == list(row[5:])


@pytest.mark.parametrize(
    ("name", "makespan", "bubble"),
    [
        ("one-at-a-time", 96, 0.75),
        ("gpipe", 33, 0.2727),
        ("1f1b", 33, 0.2727),
        ("interleaved-1f1b", 57, 0.1579),
        ("zb-h1", 27, 0.1111),
        ("zb-v", 51, 0.0588),
    ],
)
def test_unit_times_on_4_ranks_with_8_microbatches(name, makespan, bubble):
    execution = simulate(make_schedule(name, 4, 8))
    assert execution.makespan == makespan
    assert round(execution.bubble(), 4) == bubble


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 13), (8, 16)])
def test_bubbles_in_closed_form(p, m):
    F, B, W = 1.25, 1.5, 0.75
    time = {
        name: simulate(make_schedule(name, p, m), F, B, W).makespan - m * (F + B + W) for name in SCHEDULES
    }
    assert time["gpipe"] == time["1f1b"] == (p - 1) * (F + B + W)
    assert time["zb-h1"] == (p - 1) * (F + B - W)  # arXiv:2401.10241, table 2


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 16)])
def test_interleaving_divides_the_bubble_by_the_chunks(p, m):
    for chunks in (2, 4):  # arXiv:2104.04473, section 2.2: each chunk takes 1/v of the stage's time
        execution = simulate(
            make_schedule("interleaved-1f1b", p, m, chunks), 1 / chunks, 1 / chunks, 1 / chunks
        )
        assert execution.bubble("overhead") == pytest.approx((p - 1) / (chunks * m))


@pytest.mark.parametrize("pair", [2.0, 2.5, 3.0])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 16), (8, 20)])
def test_dualpipe_bubble_is_the_papers(p, m, pair):
    """(PP/2 - 1)(F&B + B - 3W), arXiv:2412.19437, table 2; a V of p ranks has PP = 2p stages."""
    execution = simulate(make_schedule("dualpipe-v", p, m), overlapped=pair)
    waits = [execution.makespan - execution.busy(rank) for rank in range(p)]
    assert max(waits) == (p - 1) * (pair + 2 - 3)


def test_a_pair_is_one_span():
    execution = simulate(make_schedule("dualpipe-v", 2, 4), overlapped=2)
    assert any(span.name == "F3 stage 0 + B1 stage 3" for span in execution.spans)
    assert (
        simulate(make_schedule("dualpipe-v", 2, 4), forward=0).busy(0) == 2 * 4 * 2
    )  # no pairs, nothing lost


def test_durations_by_stage_and_by_microbatch():
    schedule = make_schedule("gpipe", 2, 3)
    execution = simulate(schedule, forward=[1, 2], backward_input=[[1, 1, 1], [5, 1, 1]], backward_weight=0)
    # F on rank 1 at 1-3, 3-5, 5-7; its backwards 7-12, 12-13, 13-14; rank 0 follows one by one.
    assert execution.ends == [[1, 2, 3, 13, 14, 15], [3, 5, 7, 12, 13, 14]]


def test_a_slow_rank_sets_the_pace():
    execution = simulate(make_schedule("1f1b", 4, 32), speeds=[1, 1, 0.5, 1])
    assert execution.busy(2) == 2 * execution.busy(1) == 32 * 6
    assert 32 * 6 < execution.makespan < 32 * 6 + 4 * 6


def test_transfers_have_latency_and_bandwidth_and_a_lane():
    execution = simulate(make_schedule("gpipe", 2, 1), transfer=0.5, message_bytes=10, bandwidth=20)
    sends = execution.of(lane="communication")
    assert [(s.rank, s.name, s.start, s.end) for s in sends] == [(0, "send F0", 1, 2), (1, "send B0", 5, 6)]
    assert execution.makespan == 8


def test_a_rank_sends_one_message_at_a_time():
    execution = simulate(make_schedule("gpipe", 2, 3), transfer=2)
    assert [(s.start, s.end) for s in execution.of(0, "communication")] == [(1, 3), (3, 5), (5, 7)]


def test_blocking_transfers_cost_what_overlap_hides():
    schedule = make_schedule("gpipe", 2, 4)
    assert simulate(schedule, transfer=1).starts[0][:4] == [0, 1, 2, 3]
    assert simulate(schedule, transfer=1, blocking=True).starts[0][:4] == [0, 2, 4, 6]


def test_no_transfer_at_the_turn_of_a_v():
    sends = simulate(make_schedule("zb-v", 2, 1), transfer=1).of(lane="communication")
    assert {s.name for s in sends} == {
        "send F0 stage 0",
        "send F0 stage 2",
        "send B0 stage 3",
        "send B0 stage 1",
    }


def test_a_deadlock_says_who_waits_for_whom():
    schedule = make_schedule("gpipe", 2, 1)
    backwards = (Action("BW", 1, 0), Action("F", 1, 0))
    with pytest.raises(ValueError) as refusal:
        simulate(replace(schedule, actions=(schedule.actions[0], backwards)))
    assert str(refusal.value) == (
        "gpipe never ends: rank 0 cannot do B0 of stage 0: it waits for B0 of stage 1, which rank 1 has not done; "
        "rank 1 cannot do B0 of stage 1: it waits for F0 of stage 1, which it does only later itself"
    )
    with pytest.raises(ValueError, match="it waits for F0 of stage 0, which no rank does"):
        simulate(replace(schedule, actions=((), schedule.actions[1])))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"forward": -1}, "forward must be a number of at least 0, not -1"),
        ({"transfer": float("nan")}, "transfer must be a number of at least 0, not nan"),
        ({"bandwidth": 0}, "bandwidth must be a number more than 0, or infinity, not 0"),
        ({"overlapped": -1}, "overlapped must be a number of at least 0, not -1"),
        ({"forward": [1, 2, 3]}, "forward must be one number, or one for each of 2 stages, not 3"),
        (
            {"backward_input": [[1], [1, 1]]},
            "backward_input must have one number for each of 2 microbatches, not 1",
        ),
        ({"speeds": [1]}, "speeds must be 2 positive numbers"),
        ({"speeds": [1, 0]}, "speeds must be 2 positive numbers"),
    ],
)
def test_refuses_in_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        simulate(make_schedule("1f1b", 2, 2), **options)


def test_imports_fast_and_neither_torch_nor_matplotlib():
    code = (
        "import sys, time; start = time.process_time(); import simulator, simulator.pipeline.schedules, "
        "simulator.pipeline.engine, "
        "simulator.plots, simulator.predict.overlap, simulator.predict.memory_over_time, simulator.pipeline.validate; "
        "took = time.process_time() - start; print(took, {'torch', 'matplotlib', 'course_lib'} & set(sys.modules))"
    )
    took, modules = min(
        subprocess.check_output([sys.executable, "-c", code], text=True).split(" ", 1) for _ in range(3)
    )
    assert modules.strip() == "set()"
    assert float(took) < 0.3


# ---- properties ------------------------------------------------------------------------------------------


@st.composite
def problems(draw):
    """A schedule of any kind and durations for every action, in quarters so that sums are exact."""
    ranks, microbatches = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    name = draw(st.sampled_from(list(SCHEDULES)))
    chunks = draw(st.integers(1, 3)) if name == "interleaved-1f1b" else None
    schedule = make_schedule(name, ranks, microbatches, chunks)
    quarters = st.integers(0, 12).map(lambda n: n / 4)
    row = st.lists(quarters, min_size=microbatches, max_size=microbatches)
    table = st.lists(row, min_size=schedule.stages, max_size=schedule.stages)
    times = {"forward": draw(table), "backward_input": draw(table), "backward_weight": draw(table)}
    times |= {"transfer": draw(quarters), "blocking": draw(st.booleans())}
    if name == "dualpipe-v":
        times["overlapped"] = draw(st.none() | quarters)
    return schedule, times


@settings(max_examples=60, deadline=None)
@given(problems())
def test_nothing_overlaps_on_a_lane_and_everything_is_done(problem):
    schedule, times = problem
    execution = simulate(schedule, **times)
    for rank in execution.ranks:
        for lane in execution.lanes:
            spans = execution.of(rank, lane)
            assert all(a.end <= b.start for a, b in pairwise(spans))
    assert sum(len(starts) for starts in execution.starts) == len(schedule)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_never_beats_the_longest_chain_or_the_busiest_rank(problem):
    schedule, times = problem
    times.pop("overlapped", None)
    F, B, W = times["forward"], times["backward_input"], times["backward_weight"]
    halves = {(a.stage, a.microbatch) for actions in schedule.actions for a in actions if a.kind == "B"}

    def hop(a: int, b: int) -> float:
        return 0 if schedule.rank_of(a) == schedule.rank_of(b) else times["transfer"]

    @cache
    def forward(s: int, i: int) -> float:  # the earliest end, were there a rank for every action
        return F[s][i] + (forward(s - 1, i) + hop(s - 1, s) if s else 0)

    @cache
    def backward(s: int, i: int) -> float:
        whole = B[s][i] + (0 if (s, i) in halves else W[s][i])
        last = s == schedule.stages - 1
        return whole + (forward(s, i) if last else max(forward(s, i), backward(s + 1, i) + hop(s, s + 1)))

    cells = [(s, i) for s in range(schedule.stages) for i in range(schedule.microbatches)]
    chain = max(backward(s, i) + (W[s][i] if (s, i) in halves else 0) for s, i in cells)
    busiest = max(
        sum(
            F[s][i] + B[s][i] + W[s][i]
            for s in schedule.stages_of(rank)
            for i in range(schedule.microbatches)
        )
        for rank in range(schedule.ranks)
    )
    assert max(max(ends) for ends in simulate(schedule, **times).ends) >= max(chain, busiest)


@settings(max_examples=60, deadline=None)
@given(problems(), st.data())
def test_a_slower_action_never_shortens_the_step(problem, data):
    schedule, times = problem
    before = max(ends[-1] for ends in simulate(schedule, **times).ends)
    kind = data.draw(st.sampled_from(["forward", "backward_input", "backward_weight"]))
    stage = data.draw(st.integers(0, schedule.stages - 1))
    microbatch = data.draw(st.integers(0, schedule.microbatches - 1))
    times[kind][stage][microbatch] += data.draw(st.integers(1, 20)) / 4
    assert max(ends[-1] for ends in simulate(schedule, **times).ends) >= before


@settings(max_examples=60, deadline=None)
@given(problems())
def test_the_critical_path_is_unbroken_and_as_long_as_the_step(problem):
    schedule, times = problem
    execution = simulate(schedule, **times)
    path = execution.critical_path()
    assert path[0].start == 0
    assert path[-1].end == max(ends[-1] for ends in execution.ends)
    assert all(a.end == b.start for a, b in pairwise(path))


@pytest.mark.parametrize("pair", [0.5, 2.5])
@pytest.mark.parametrize("slow", range(8))
def test_the_critical_path_goes_through_either_half_of_a_pair(pair, slow):
    """A pair waits for what its forward needs and for what its backward needs; either can be the last to come."""
    times = [[1 + 5 * (stage == slow)] * 10 for stage in range(8)]
    execution = simulate(
        make_schedule("dualpipe-v", 4, 10), times, times, times, transfer=0.25, overlapped=pair
    )
    path = execution.critical_path()
    assert path[0].start == 0
    assert all(a.end == b.start for a, b in pairwise(path))
