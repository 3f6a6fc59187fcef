"""A setting of a learner's that cannot be, told in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from course_lib.runtime import RankError


class Refused(ValueError):  # noqa: N818 - it is read as a sentence
    """A setting that cannot be; a notebook shows its one sentence, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@contextmanager
def refused_on_ranks() -> Iterator[None]:
    """What a rank refuses is refused here, in the same sentence."""
    try:
        yield
    except RankError as error:
        if isinstance(error.__cause__, Refused):
            raise error.__cause__ from None
        raise
