"""Timelines: the three bubbles, why ranks wait, the critical path, and the trace."""

import json

import pytest

from simulator.ledgers.timeline import Span, Timeline
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule
from simulator.plots import plot_timeline

UNEVEN = Timeline(
    [
        Span(0, "compute", "F0", 0, 4),
        Span(0, "compute", "B0", 6, 8),
        Span(1, "compute", "F0", 4, 6),
        Span(1, "communication", "send B0", 6, 10),
    ]
)


def test_the_three_bubbles_by_hand():
    # Busy 6 and 2, mean 4; from 0 to 10 in all; the longest span of a rank is 0 to 8.
    assert UNEVEN.bubble("idle") == 6 / 10
    assert UNEVEN.bubble("internal") == 4 / 8
    assert UNEVEN.bubble("overhead") == 6 / 4
    assert UNEVEN.bubble("internal", lane="communication") == 0


@pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 8), (8, 64)])
def test_each_definition_is_its_papers(p, m):
    gpipe, one_f_one_b = simulate(make_schedule("gpipe", p, m)), simulate(make_schedule("1f1b", p, m))
    assert gpipe.bubble("idle") == pytest.approx((p - 1) / (m + p - 1))  # arXiv:1811.06965
    assert one_f_one_b.bubble("overhead") == pytest.approx((p - 1) / m)  # arXiv:2104.04473
    h2 = simulate(make_schedule("zb-h2", p, max(m, 2 * p)))
    assert h2.bubble("internal") == 0  # arXiv:2401.10241: zero when F = B = W …
    assert h2.bubble("idle") > 0  # … although ranks start and end one after another


def test_bubble_refuses_in_a_sentence():
    with pytest.raises(ValueError, match="bubble 'total' is unknown: choose from idle, internal, overhead"):
        UNEVEN.bubble("total")
    with pytest.raises(ValueError, match="no span lies on lane 'copy': the lanes are communication, compute"):
        UNEVEN.bubble(lane="copy")


def test_a_span_of_no_length_comes_before_the_one_that_starts_with_it():
    timeline = Timeline([Span(0, "compute", "a", 1, 2), Span(0, "compute", "b", 1, 1)])
    assert [span.name for span in timeline.of(0)] == ["b", "a"]


def test_every_gap_has_its_cause():
    gaps = simulate(make_schedule("1f1b", 3, 4), transfer=0.5).idle_gaps()
    assert [(gap.start, gap.end, gap.cause) for gap in gaps if gap.rank == 1] == [
        (0, 1.5, "rank 1 waits for F0 of rank 0"),
        (3.5, 6.5, "rank 1 waits for B0 of rank 2"),
        (11.5, 12.5, "rank 1 waits for F3 of rank 0"),
        (15.5, 17.5, "rank 1 waits for B3 of rank 2"),
        (19.5, 22, "rank 1 has finished"),
    ]


def test_gaps_fill_exactly_the_idle_time():
    for name in ("gpipe", "interleaved-1f1b", "zb-v", "dualpipe-v"):
        execution = simulate(make_schedule(name, 4, 6), 1, 2, 0.5, transfer=0.25)
        for rank in range(4):
            idle = sum(gap.end - gap.start for gap in execution.idle_gaps() if gap.rank == rank)
            assert idle == pytest.approx(execution.makespan - execution.busy(rank))


def test_a_gap_after_a_blocking_send_is_the_ranks_own():
    gaps = simulate(make_schedule("gpipe", 2, 2), transfer=1, blocking=True).idle_gaps()
    assert gaps[0][:] == (0, 1, 2, "rank 0 is still sending F0")


def test_the_critical_path_by_hand():
    path = simulate(make_schedule("gpipe", 2, 2), [1, 3], [1, 2], transfer=0.5).critical_path()
    assert [(span.rank, span.name) for span in path] == [
        (0, "F0"),
        (0, "send F0"),
        (1, "F0"),
        (1, "F1"),
        (1, "B0"),
        (1, "B1"),
        (1, "send B1"),
        (0, "B1"),
    ]


def test_the_trace_holds_every_span_in_microseconds(tmp_path):
    UNEVEN.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in complete} == {
        (0, 0, "F0", 0, 4e6),
        (0, 0, "B0", 6e6, 2e6),
        (1, 0, "F0", 4e6, 2e6),
        (1, 1, "send B0", 6e6, 4e6),
    }
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"
    }
    assert threads == {(0, 0): "compute", (1, 0): "compute", (1, 1): "communication"}


class Counted(tuple):
    """Spans that count how often somebody looks at all of them."""

    looks = 0

    def __iter__(self):
        Counted.looks += 1
        return super().__iter__()


def test_a_trace_and_a_picture_look_at_all_spans_a_few_times_not_once_a_span(monkeypatch):
    monkeypatch.setattr(Counted, "looks", 0)
    run = Timeline(simulate(make_schedule("1f1b", 12, 12), transfer=0.1).spans)
    vars(run)["spans"] = Counted(run.spans)
    run.chrome_trace()
    plot_timeline(run)
    assert 0 < Counted.looks < 12
