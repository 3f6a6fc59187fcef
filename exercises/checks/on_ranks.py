"""What ranks saw, put together."""

from collections.abc import Callable, Mapping

from course_lib.grading.judge import Fact
from course_lib.grading.ranks import launch


def on_ranks(
    on_rank: Callable[..., dict], ranks: int | None, facts: Mapping[str, Fact], *args, **how
) -> dict:
    """One entry a rank, and of a target or of a text that says what is wrong the largest.

    What a rank did not come to is left out.
    """
    seen = launch(on_rank, ranks, args=args, backend="gloo", timeout=60.0, **how)
    found = {key: [one[key] for one in seen] for key in (*facts, "trace") if all(key in one for one in seen)}
    one_for_all = {key for key, fact in facts.items() if fact.most is not None or fact.each is None}
    return {key: max(each) if key in one_for_all else each for key, each in found.items()}
