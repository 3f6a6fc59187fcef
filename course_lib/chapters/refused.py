"""A setting of a learner's that cannot be, told in one line."""


class Refused(ValueError):  # noqa: N818 - it is read as a sentence
    """A setting that cannot be; a notebook shows its one sentence, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]
