"""A measured step over its prediction: its actions are found, and the page says what differs, in Python's numbers."""

import random

import pytest

from simulator.explorer import explore
from simulator.explorer.measured import Measured
from simulator.explorer.question import OWN, Question
from simulator.ledgers.timeline import Span, Timeline
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule

SIZES = [("1f1b", 4, 8), ("zb-h1", 3, 7), ("interleaved-1f1b", 2, 4), ("dualpipe-v", 2, 5), ("gpipe", 1, 2)]


def recorded(name="1f1b", ranks=4, microbatches=8, seed=0):
    """A step whose actions and messages take another time each, and which starts at 5."""
    draw, schedule = random.Random(seed), make_schedule(name, ranks, microbatches)
    times = [[10 * draw.uniform(0.8, 1.6) for _ in range(schedule.stages)] for _ in range(3)]
    run = simulate(schedule, *times, transfer=0.75)
    late = [span._replace(start=span.start + 5, end=span.end + 5) for span in run.spans]
    return Timeline(late), run


@pytest.mark.parametrize(("name", "ranks", "microbatches"), SIZES)
def test_every_action_is_found_and_the_first_starts_at_0(name, ranks, microbatches):
    timeline, run = recorded(name, ranks, microbatches)
    found = Measured.of(timeline, run.schedule)
    for mine, theirs in ((found.starts, run.starts), (found.ends, run.ends)):
        assert [list(each) for each in mine] == [pytest.approx(list(each)) for each in theirs]
    assert found.timeline().bubble() == pytest.approx(run.bubble())


def test_two_actions_that_ran_as_one_are_both_found():
    run = simulate(make_schedule("dualpipe-v", 2, 6), 1, 1, 1, overlapped=2.5)
    assert any(" + " in span.name for span in run.spans)
    found = Measured.of(run, run.schedule)
    assert [list(each) for each in found.starts] == [list(each) for each in run.starts]


def test_the_prediction_begins_with_the_measured_times():
    schedule = make_schedule("interleaved-1f1b", 2, 4)
    run = simulate(schedule, 3, 2, 1.5, transfer=0.5)
    shown = explore("interleaved-1f1b", ranks=2, microbatches=4, measured=Timeline(run.spans), saved=2e9)
    asked = shown.question
    # The backward of this schedule is whole, so each part is taken to be half of it.
    assert (asked.forward, asked.backward_input, asked.backward_weight) == (6, 3.5, 3.5)
    assert (asked.transfer, asked.saved) == (0.5, 2e9)
    assert shown.execution().makespan == pytest.approx(run.makespan)
    mine = explore("interleaved-1f1b", ranks=2, microbatches=4, measured=run, forward=9, transfer=0)
    assert (mine.question.forward, mine.question.transfer, mine.question.backward_input) == (9, 0, 3.5)


def renamed(spans, old, rank, new):
    return [span._replace(name=new) if (span.name, span.rank) == (old, rank) else span for span in spans]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda spans: [s for s in spans if s.name != "B7"], "action 15 of rank 0 is missing there, not B7"),
        (
            lambda spans: [*spans, Span(2, "compute", "F0", 900, 901)],
            "action 16 of rank 2 is F0 there, not the end",
        ),
        (lambda spans: renamed(spans, "F0", 3, "B9"), "action 0 of rank 3 is B9 there, not F0"),
        (lambda spans: [s for s in spans if s.rank], "action 0 of rank 0 is missing there, not F0"),
        (lambda spans: [], "1f1b with 4 ranks and 8 microbatches: action 0 of rank 0 is missing"),
    ],
)
def test_another_step_is_refused_in_a_sentence(change, sentence):
    timeline, _ = recorded()
    with pytest.raises(ValueError, match=sentence):
        explore("1f1b", measured=Timeline(change(timeline.spans)))


def test_what_is_no_timeline_is_refused():
    with pytest.raises(ValueError, match="measured must be a Timeline, not 3"):
        explore(measured=3)
    with pytest.raises(ValueError, match="it would give the answer away"):
        explore(measured=recorded()[0], challenge={"makespan": 28, "bytes": 4e9})


def test_the_still_picture_and_the_page_hold_both():
    timeline, run = recorded()
    shown = explore("1f1b", measured=timeline)
    picture, alone = shown.still(), explore("1f1b").still()
    assert picture["text/html"].startswith('<div class="explorer-still"><img alt=')
    assert picture["text/html"] != alone["text/html"]
    assert f"{run.makespan:.3g} long" in picture["text/plain"]
    assert '"measured": {"name": "1f1b", "ranks": 4' in shown.html()
    assert '"measured": null' in explore().html()

    def mine(ranks, microbatches):
        return make_schedule("1f1b", ranks, microbatches).actions

    own = explore(mine, ranks=4, microbatches=8, measured=timeline)
    assert own.measured.as_dict()["name"] == OWN
    assert len(own.measured.as_dict()["end"]) == len(run.schedule)


PROGRAM = """
const { answer } = modules.answer, { withMeasured, ...measured } = modules.measured, { summaryOf } = modules.summary;
console.log(JSON.stringify(questions.map(([question, real]) => {
  const run = withMeasured(answer(question), real), summary = summaryOf(run);
  if (!run.measured) return null;
  return {
    summary: run.measured.summary, end: measured.endOf({ run, summary }), words: measured.besideInWords(run, summary),
    rows: measured.besideRows(run, summary)[1],
    said: [...run.kind.keys()].map((at) => measured.explainMeasured(run, at)),
    gaps: modules.causes.gapsOf(run.measured).map((gap) => measured.explainMeasuredGap(run, gap)),
  };
})));
"""


def test_the_page_says_what_differs(run_in_node):
    asked, runs = [], []
    for size in SIZES:
        timeline, real = recorded(*size)
        shown = explore(*size, measured=timeline)
        asked.append([shown.question.as_dict(), shown.measured.as_dict()])
        runs.append((shown.execution(), real))
    other = Question("gpipe", 4, 8).as_dict()
    *told, nothing = run_in_node(PROGRAM, [*asked, [other, asked[0][1]]])
    assert nothing is None, "the measured step is one of another schedule"
    for (foreseen, real), page in zip(runs, told, strict=True):
        assert page["summary"]["makespan"] == pytest.approx(real.makespan)
        assert page["summary"]["bubble"] == pytest.approx(real.bubble())
        assert page["end"] == pytest.approx(max(real.makespan, foreseen.makespan))
        longer = real.makespan - foreseen.makespan
        how = f"{abs(longer):.4g} s {'shorter' if longer < 0 else 'longer'} than predicted"
        assert f"The measured step took {real.makespan:.4g} s. This is {how}" in page["words"]
        busy = sum(real.busy(rank) - foreseen.busy(rank) for rank in real.ranks) / len(real.ranks)
        assert f"computed {abs(busy):.4g} s {'shorter' if busy < 0 else 'longer'}" in page["words"]
        for rank, row in enumerate(page["rows"]):
            numbers = [float(each) for each in row[1:7]]
            computes = foreseen.busy(rank), real.busy(rank)
            waits = [run.makespan - each for run, each in zip((foreseen, real), computes, strict=True)]
            ends = foreseen.ends[rank][-1], real.ends[rank][-1]
            assert numbers == pytest.approx([*computes, *waits, *ends], rel=1e-3, abs=1e-9)
        assert len(page["said"]) == len(real.schedule)
        assert len(page["gaps"]) == len(real.idle_gaps())
    foreseen, real = runs[0]
    at = real.schedule.actions[0].index(("BW", 0, 0))
    late = real.starts[0][at] - foreseen.starts[0][at]
    took = real.ends[0][at] - real.starts[0][at] - (foreseen.ends[0][at] - foreseen.starts[0][at])
    assert told[0]["said"][at] == (
        f"Measured: from {real.starts[0][at]:.4g} to {real.ends[0][at]:.4g} s. It started {abs(late):.4g} s "
        f"{'earlier' if late < 0 else 'later'} and was {abs(took):.4g} s {'shorter' if took < 0 else 'longer'} "
        "than predicted."
    )
    gap = next(g for g in real.idle_gaps() if g.rank == 3)
    assert told[0]["gaps"][len([g for g in real.idle_gaps() if g.rank < 3])].startswith(
        f"In the measured step rank 3 computed nothing from 0 to {gap.end:.4g} s. Then it began F0,"
    )
