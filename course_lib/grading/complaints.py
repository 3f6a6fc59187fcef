"""What an answer raised, told in one line, with the probable slip."""

from __future__ import annotations

import itertools
import linecache
import re
import traceback
from types import FrameType

_LIKELY: tuple[tuple[type[Exception], str, str], ...] = (
    (TypeError, r"positional argument|unexpected keyword", "keep the names and arguments that were given."),
    (
        TypeError,
        r"NoneType",
        "something is None: a `return` is missing, or a gradient that was not computed?",
    ),
    (AttributeError, r"NoneType", "something is None: a `return` is missing, or a gradient not computed?"),
    (
        NameError,
        r"is not defined",
        "an answer is graded without your other cells: define or import it in the answer.",
    ),
    (
        RuntimeError,
        r"shapes cannot be multiplied|must match|size mismatch",
        "compare the shapes with the task's.",
    ),
    (
        RuntimeError,
        r"leaf Variable|in-place operation",
        "write where autograd does not look: torch.no_grad().",
    ),
    (
        RuntimeError,
        r"killed by signal 6",
        "a message was longer than the tensor that was to take it: has `like` the shape of what comes?",
    ),
    (RecursionError, "", "the recursion has no end: what stops it?"),
)

# A frame in a rank's traceback, which reaches us as text: file, line, source.
_RANK_FRAME = re.compile(r'File "([^"]+)", line (\d+), in .*\n\s+(\S.*)')
_INSTALLED = re.compile(
    r"course_lib|simulator|site-packages|dist-packages|[/\\]lib[/\\]python|multiprocessing"
)


def explain(error: BaseException, exercise: str, case: str) -> tuple[str, str | None]:
    """``(fact, likely)`` for an exception that an answer raised while it was checked.

    Args:
        error: what was raised; for failing ranks, a RankError.
        exercise: such as ``"05.2"``: its unwritten answer is recognised by the number.
        case: what was being tried, to go before the fact.
    """
    message = _message(error)
    if f"{exercise}: " in message and "NotImplementedError" in f"{type(error).__name__} {message}":
        task = message.partition(f"{exercise}: ")[2]
        return f"not written yet: {task}", None
    likely = next(
        (hint for kind, pattern, hint in _LIKELY if isinstance(error, kind) and re.search(pattern, message)),
        None,
    )
    name = type(error).__name__
    said = message if name == "RankError" else f"{name}: {message}" if message else name
    return f"{case}{said}{_place(error)}", likely


def _message(error: BaseException) -> str:
    """The first line; of failing ranks the first paragraph, since it says who waits for whom."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if type(error).__name__ == "RankError":
        return "; ".join(itertools.takewhile(bool, lines))[:400]
    return lines[0][:200] if lines else ""


def _place(error: BaseException) -> str:
    """The last line of the learner's own code on the way to the exception, if it went through any."""
    if type(error).__name__ == "RankError":
        own = [found for found in _RANK_FRAME.findall(str(error)) if not _INSTALLED.search(found[0])]
        return f" (line {own[-1][1]} of the answer: `{own[-1][2][:80]}`)" if own else ""
    frames: list[tuple[FrameType, int]] = list(traceback.walk_tb(error.__traceback__))
    for frame, line in reversed(frames):
        if frame.f_globals.get("__name__") == "__main__":
            source = linecache.getline(frame.f_code.co_filename, line).strip()
            return (
                f" (line {line} of the answer: `{source[:80]}`)"
                if source
                else f" (line {line} of the answer)"
            )
    return ""
