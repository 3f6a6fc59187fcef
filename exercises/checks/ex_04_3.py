"""04.3: a broadcast in as few rounds as can be, from any rank."""

from course_checks.collectives import BASE, VIEWS, run, whole_numbers
from course_checks.on_ranks import count

from course_lib.grading.judge import Fact, record
from simulator.predict.message_rounds import in_rounds

TARGET = "p − 1 messages in all, in ceil(log2 p) rounds."
FACTS = BASE | {
    "tensor": Fact("the tensor", "Every rank returns the `t` of rank `src`", each="rank"),
    "messages": Fact("messages in all beyond p − 1", TARGET, most=0),
    "rounds": Fact("rounds beyond ceil(log2 p)", TARGET, most=0),
}

Case = record(
    "ranks src shape", lambda c: f"{count(c.ranks)}, src {c.src}" + f", {VIEWS}" * c.views, views=False
)
PLAIN = [(2, 0, (3,)), (3, 2, (1,)), (4, 1, (3,)), (5, 3, (2, 2)), (6, 5, (3,)), (7, 0, (3,)), (1, 0, (3,))]
CASES = [*(Case(*case) for case in PLAIN), Case(2, 1, (2, 2), views=True)]


def observe(answer, case: Case) -> dict:
    found = run(answer, whole_numbers(case.seed, *[case.shape] * case.ranks, views=case.views), case.src)
    messages = in_rounds(found.logs)
    rounds = max((message.round for message in messages), default=0)
    return found.said | {
        "tensor": found.results,
        "messages": max(0, len(messages) - (case.ranks - 1)),
        "rounds": max(0, rounds - (case.ranks - 1).bit_length()),
        "trace": found.logs,
    }
