"""The page that runs without Python computes the same as Python: every action, time and byte, and every sentence."""

from dataclasses import replace

import pytest

from simulator.explorer.answer import answer
from simulator.explorer.question import Question
from simulator.inputs.placement import SCHEDULES
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule
from simulator.predict.memory_over_time import replay

SIZES = [(1, 1), (1, 4), (2, 1), (2, 5), (3, 7), (4, 8), (5, 3), (4, 12), (6, 13)]
UNEVEN = {"forward": 0.7, "backward_input": 1.1, "backward_weight": 0.3, "transfer": 0.13}
QUESTIONS = [Question(name, p, m) for name in SCHEDULES for p, m in SIZES]
QUESTIONS += [replace(q, **UNEVEN, kept=0.4) for q in QUESTIONS]
QUESTIONS += [Question("interleaved-1f1b", 3, 8, chunks=v, transfer=0.2) for v in (1, 3, 4)]
QUESTIONS += [Question("dualpipe-v", p, m, together=2.5, transfer=0.1) for p, m in SIZES]
QUESTIONS += [
    Question(name, 4, 9, speeds=[1, 0.5, 0.8, 1.25], recompute="full", checkpoint=0.2, kept=0.5, **UNEVEN)
    for name in SCHEDULES
]
WRONG = [
    {"schedule": "2f2b"},
    {"ranks": 0},
    {"ranks": 2.5},
    {"ranks": "four"},
    {"microbatches": -1},
    {"microbatches": None},
    {"ranks": 400, "microbatches": 400},
    {"chunks": 2},
    {"chunks": 0},
    {"schedule": "zb-v", "chunks": 3},
    {"forward": -1},
    {"transfer": "x"},
    {"forward": 0, "backward_input": 0, "backward_weight": 0},
    {"together": -2},
    {"speeds": [1, 2]},
    {"speeds": [1, 0, 1, 1]},
    {"speeds": [1, "fast", 1, 1]},
    {"saved": -5},
    {"kept": 1.5},
    {"checkpoint": 2},
    {"recompute": "some"},
]
PROGRAM = """
const { answer } = modules.answer, { criticalPath, gapsOf, causeOf, nameOf, rankAt, before } = modules.causes;
const plain = (run) => Object.fromEntries(Object.entries(run).map(([k, v]) => [k, ArrayBuffer.isView(v) ? [...v] : v]));
const told = questions.map((question) => {
  try {
    const run = answer(question);
    return {
      run: plain(run), summary: modules.summary.summaryOf(run),
      path: criticalPath(run).map(({ at, message }) => [rankAt(run, at), message, nameOf(run, at)]),
      gaps: gapsOf(run).map((gap) => [gap.rank, gap.start, gap.end, causeOf(run, gap)]),
      said: [...run.kind.keys()].map((at) => modules.sentences.explainAction(run, at)),
    };
  } catch (error) { return { error: error.message }; }
});
console.log(JSON.stringify(told));
"""


@pytest.fixture(scope="module")
def page(run_in_node):
    """What the page says to every question."""
    asked = [question.as_dict() for question in QUESTIONS] + [Question().as_dict() | wrong for wrong in WRONG]
    return run_in_node(PROGRAM, asked)


def execution(question):
    schedule = make_schedule(question.schedule, question.ranks, question.microbatches, question.chunks)
    return simulate(schedule, **question.times)


def test_every_event_is_the_same(page):
    for question, told in zip(QUESTIONS, page, strict=False):
        assert told["run"] == answer(question).as_dict(), question


def test_the_reasons_are_the_same(page):
    for question, told in zip(QUESTIONS, page, strict=False):
        run = execution(question)
        assert told["gaps"] == [list(gap) for gap in run.idle_gaps()], question
        path = [
            [span.rank, span.lane == "communication", span.name.removeprefix("send ").partition(" + ")[0]]
            for span in run.critical_path()
        ]
        assert told["path"] == path, question


def test_the_numbers_are_the_same(page):
    for question, told in zip(QUESTIONS, page, strict=False):
        run, summary = execution(question), told["summary"]
        assert summary["makespan"] == pytest.approx(run.makespan, rel=1e-12)
        assert summary["bubble"] == pytest.approx(run.bubble(), abs=1e-9)
        assert summary["internal"] == pytest.approx(run.bubble("internal"), abs=1e-9)
        assert [row["inFlight"] for row in summary["ranks"]] == run.peak_in_flight
        saved, brought, kept = question.bytes_of_a_stage
        histories = replay(run, saved, kept, recomputed=brought)
        assert [row["peak"] for row in summary["ranks"]] == pytest.approx([h.peak.bytes for h in histories])


def test_what_is_wrong_is_refused_in_the_same_sentence(page):
    for wrong, told in zip(WRONG, page[len(QUESTIONS) :], strict=True):
        with pytest.raises(ValueError) as error:
            Question.of(Question().as_dict() | wrong)
        assert told == {"error": str(error.value)}, wrong


def test_a_sentence_says_what_an_action_waits_for_and_keeps(page):
    at = QUESTIONS.index(Question("1f1b", 4, 8))
    said = page[at]["said"]
    assert said[0] == (
        "F0 on rank 0: forward of microbatch 0 in stage 0, from 0 to 1. It needs nothing that another action makes. "
        "It keeps 1 GB alive until B0 ends at 12."
    )
    assert (
        "B0 on rank 0: backward of microbatch 0 in stage 0, from 10 to 12. It waited for B0 of rank 1, which ended "
        "at 10. Its end frees 1 GB."
    ) in said
    split = page[QUESTIONS.index(Question("zb-h1", 3, 7, **UNEVEN, kept=0.4))]["said"]
    assert any("400 MB of them stay until W0 ends at" in sentence for sentence in split)
    assert any("It waited for the message with" in sentence for sentence in split)
