"""A schedule that a learner has written: drawn where it is a whole step, refused in a sentence where it is not."""

from dataclasses import replace

import pytest

from simulator.explorer import explore
from simulator.explorer.answer import answer
from simulator.explorer.own import lists_of, schedule_of
from simulator.explorer.question import OWN, Question
from simulator.explorer.widget import reply_to
from simulator.pipeline.actions import Action
from simulator.pipeline.schedules import make_schedule

ASKED = Question(OWN, 3, 4)


def gpipe(ranks, microbatches):
    order = [f"F{i}" for i in range(microbatches)] + [f"B{i}" for i in range(microbatches)]
    return [order] * ranks


def split(ranks, microbatches):
    return [
        [f"{kind}{i} stage {rank}" for i in range(microbatches) for kind in "FBW"] for rank in range(ranks)
    ]


def test_names_are_those_of_the_timeline():
    assert schedule_of(ASKED, gpipe).actions == make_schedule("gpipe", 3, 4).actions
    found = schedule_of(ASKED, split)
    assert found.actions[1][:3] == (Action("F", 1, 0), Action("B", 1, 0), Action("W", 1, 0))
    interleaved = make_schedule("interleaved-1f1b", 3, 4)
    named = [[interleaved.span_name(action) for action in actions] for actions in interleaved.actions]
    assert schedule_of(ASKED, lambda p, m: named).actions == interleaved.actions
    plain = make_schedule("zb-v", 3, 4)
    assert schedule_of(ASKED, plain) == replace(plain, name=OWN)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda p, m: [["F0"]] * p, "rank 0 never does B0 of stage 0"),
        (lambda p, m: [["B0", "F0"]] * p, "rank 0 does B0 of stage 0 before F0 of stage 0"),
        (lambda p, m: [["G0"]] * p, "rank 0 has an action 'G0': write F3, B3 or W3, or F3 stage 5"),
        (lambda p, m: [["F0"]], "a schedule for 3 ranks needs as many lists, not 1"),
        (lambda p, m: [["F9"]] * p, "rank 0 has F9 of stage 0: there are 3 stages and 4 microbatches"),
        (lambda p, m: 1 // 0, "your schedule ended with ZeroDivisionError: "),
        (lambda p, m: None, "your schedule ended with TypeError: "),
        (
            make_schedule("1f1b", 2, 4),
            "your schedule is written for 2 ranks and 4 microbatches, not for 3 and 4",
        ),
        (None, "there is no schedule of your own yet"),
    ],
)
def test_what_is_no_whole_step_is_refused_in_a_sentence(wrong, sentence):
    reply, _ = reply_to({"id": 1, "question": ASKED.as_dict()}, wrong)
    assert reply["error"].startswith(sentence)


def test_ranks_that_would_wait_for_ever_are_named():
    def stuck(ranks, microbatches):
        return [["F0", "B0", "F1", "B1"], ["F1", "B1", "F0", "B0"]]

    with pytest.raises(ValueError, match="rank 0 cannot do B0 of stage 0: it waits for B0 of stage 1"):
        explore(stuck, ranks=2, microbatches=2)


def test_the_page_draws_it_without_python(run_in_node):
    own = replace(make_schedule("dualpipe-v", 3, 8), name=OWN)
    question = Question(OWN, 3, 8, transfer=0.1, together=2.0)
    program = """
const run = modules.answer.answer(questions[0], questions[1]);
let error = null;
try { modules.answer.answer({ ...questions[0], ranks: 4 }, questions[1]); } catch ({ message }) { error = message; }
const plain = Object.entries(run).map(([k, v]) => [k, ArrayBuffer.isView(v) ? [...v] : v]);
console.log(JSON.stringify({ run: Object.fromEntries(plain), error }));
"""
    told = run_in_node(program, [question.as_dict(), lists_of(own)])
    assert told["run"] == answer(question, own).as_dict()
    assert told["error"] == "your schedule is written for 3 ranks and 8 microbatches, not for 4 and 8"
    assert '"name": "your own"' in explore(own, transfer=0.1).html()
