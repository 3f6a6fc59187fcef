"""What ranks saw, put together."""

from collections.abc import Callable, Mapping

from course_lib.grading.judge import Fact
from course_lib.runtime.kept import launch


def on_ranks(facts: Mapping[str, Fact], ranks: Callable = lambda case: case.ranks, **how) -> Callable:
    """Observe on every rank: one entry a rank, and of a target or of a text that says what is wrong the largest.

    What a rank did not come to is left out, but for texts. ``ranks`` of a case is a number, or the axes of a mesh.
    """
    one_for_all = {key for key, fact in facts.items() if fact.most is not None or fact.each is None}

    def observes(on_rank: Callable[..., dict]) -> Callable[..., dict]:
        def observe(answer, case) -> dict:
            where = {"mesh": axes} if isinstance(axes := ranks(case), dict) else {"ranks": axes}
            seen = launch(on_rank, args=(answer, case), backend="gloo", timeout=60.0, **where, **how)
            texts = {key for one in seen for key, value in one.items() if isinstance(value, str)}
            keys = [key for key in (*facts, "trace") if key in texts or all(key in one for one in seen)]
            found = {key: [one.get(key, "") for one in seen] for key in keys}
            return {key: max(each) if key in one_for_all else each for key, each in found.items()}

        return observe

    return observes


def count(n: int, noun: str = "rank", plural: str = "s") -> str:
    """``"1 rank"``, ``"2 ranks"``."""
    return f"{n} {noun}{plural * (n != 1)}"
