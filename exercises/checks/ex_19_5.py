"""19.5: how long five ways to average take on a link, and which one is the fastest."""

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.alive import Alive

METHODS = ("full", "8 bits", "top-k", "low rank", "local")
PAIR = "returns a pair: the name of the fastest method, and a dict from each name to its mean seconds for a…"
FACTS = {
    "pair": Fact("what is returned", PAIR),
    **{method: Fact(f"microseconds of {method!r}", PAIR, tolerance=1e-6) for method in METHODS},
    "fastest": Fact("the fastest", "If several are equally fast, take the one that stands first in the…"),
    "bytes": Fact("bytes of tensors made", "The answer is computed from the sizes alone: it makes…", most=0),
}

Case = record("name rows columns ranks link k r every compress")
QUICK = {"full": 0.0, "8 bits": 1e-3, "top-k": 4e-3, "low rank": 2e-3, "local": 0.0}
NONE_FREE = QUICK | {"full": 2e-5, "local": 3e-4}
FREE = dict.fromkeys(METHODS, 0.0)
CASES = [
    Case("4 ranks, a fast link", 1000, 1000, 4, (1e-6, 100e9), 10_000, 4, 1, QUICK),
    Case("4 ranks, a slow link", 1000, 1000, 4, (1e-4, 12.5e6), 1000, 4, 10, NONE_FREE),
    Case("8 ranks, a slow link, few numbers kept", 600, 800, 8, (1e-5, 1e6), 50, 8, 20, NONE_FREE),
    Case("16 ranks far apart", 100, 200, 16, (0.05, 1e8), 200, 2, 50, NONE_FREE),
    Case("3 ranks, a link of middling speed", 900, 500, 3, (2e-5, 3e8), 45_000, 90, 1, QUICK),
    Case("2 ranks, compression takes no time", 64, 32, 2, (1e-3, 1e6), 100, 1, 2, FREE),
    Case("64 ranks, compression takes no time", 500, 400, 64, (0.0, 1e7), 2000, 1, 4, FREE),
    Case("1 rank", 10, 20, 1, (1e-3, 1e6), 5, 1, 4, QUICK),
    Case("1 rank, compression takes no time", 10, 20, 1, (1e-3, 1e6), 5, 1, 4, FREE),
]


def observe(choose, case: Case) -> dict:
    with Alive() as alive:
        answer = choose(*case[1:-2], dict(case.compress))
    if not (isinstance(answer, tuple | list) and len(answer) == 2 and isinstance(answer[1], dict)):
        return {"pair": "the answer is not a pair of a name and a dict"}
    fastest, seconds = answer
    if seconds.keys() != set(METHODS):
        return {"pair": f"the dict has the names {', '.join(map(repr, seconds))}"}
    found = {method: 1e6 * seconds[method] for method in METHODS}
    return found | {"fastest": fastest, "bytes": alive.most}
