"""What an answer raised, told by its own lines: no frame of a library, no line of C++."""

from __future__ import annotations

import itertools
import linecache
import re
import traceback

# Facts that explain a message, each true whenever its pattern matches.
_MEANS = (
    (r"^name '(\w+)' is not defined", "`{}` is defined neither in the answer nor in the course's cells above it."),
    (r"killed by signal 6", "A rank ends so when a message is longer than the tensor that is to take it, in bytes."),
    (r"a leaf Variable that requires grad is being used in an in", "Autograd records here; torch.no_grad() stops it."),
    (r"Boolean value of Tensor with more than one", "`==`, `in` and `or` compare tensors element by element; `is` asks "
     "whether two are one tensor, and a dict or a set finds a tensor by that."),
)  # fmt: skip

# What libraries write in words of their own code, said in ours.
_SAID = (
    (r"(\[rank\d+\]:)?\[\w\d{4} [\d:.]+ +\w+\.(cpp|cc|h|cu):\d+\] ", ""),
    (r"Check failed: outputShape\[0\] \* worldSize == inputShape\[0\] \((\d+) vs\. (\d+)\)\.?",
     r"the outputs of all ranks have \1 rows together, and the input has \2"),
    (r"Check failed: inputShape\[0\] \* worldSize == outputShape\[0\] \((\d+) vs\. (\d+)\)\.?",
     r"the inputs of all ranks have \1 rows together, and the output has \2"),
    (r"ProcessGroupGloo::(\w+): invalid tensor size at index \d+ \(expected \((.*?)\), got \((.*?)\)\)",
     r"\1: a tensor has the shape (\3), and (\2) is wanted"),
)  # fmt: skip

# A frame in a rank's traceback, which reaches us as text: file, line, source.
_RANK_FRAME = re.compile(r'File "([^"]+)", line (\d+), in .*\n\s+(\S.*)')
_INSTALLED = re.compile(
    r"course_lib|simulator|exercises[/\\]checks|site-packages|dist-packages|[/\\]lib[/\\]python|multiprocessing"
)
_MACHINERY = re.compile(r"Exception raised from|^frame #|\[[\w/.]+\.(cpp|cc|h|cu):\d+\]")
NOT_WRITTEN = "not written yet"
LINE = 100  # characters of a source line that are shown


def unwritten(error: BaseException, exercise: str) -> str | None:
    """What the stub says is to be written, where it was the stub that raised; else None."""
    found = re.search(rf"{re.escape(exercise)}: (.*)", str(error))
    is_stub = "NotImplementedError" in f"{type(error).__name__} {error}"
    return found[1] if found and is_stub else None


def not_written(what: str) -> None:
    """Say that an answer is still the stub. Nothing is wrong with it, so a reader's notebook runs on.

    Raises:
        NotImplementedError: a program runs the cell, such as nbval, and sees nothing but exceptions. By Jupyter's
            protocol it has said that nobody is there to answer ``input()``.
    """
    from IPython import get_ipython

    print(f"  ○ {NOT_WRITTEN}: {what}")
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel and not kernel.get_parent().get("content", {}).get("allow_stdin", True):
        raise NotImplementedError(f"{NOT_WRITTEN}: {what}")


def explain(error: BaseException, case: str = "") -> list[str]:
    """Lines for an exception that an answer raised while it was checked: the fact, then what helps.

    Args:
        error: what was raised; for failing ranks, a RankError.
        case: what was being tried, to go before the fact.
    """
    of_ranks = type(error).__name__ == "RankError"
    first, *more = _message(error, of_ranks) or [type(error).__name__]
    if not of_ranks and str(error).strip():
        first = f"{type(error).__name__}: {first}"
    text = first.partition(": ")[2] if ": " in first else first
    means = next(
        (said.format(*m.groups()) for p, said in _MEANS if (m := re.search(p, text) or re.search(p, first))),
        None,
    )
    return [f"{case}{first}", *filter(None, [*more, _place(error, of_ranks), means])]


def _message(error: BaseException, of_ranks: bool) -> list[str]:
    """The first line; of failing ranks the first paragraph, since it says who waits for whom."""
    text = str(error).strip()
    for pattern, said in _SAID:
        text = re.sub(pattern, said, text)
    lines = [line.rstrip() for line in text.splitlines()]
    lines = [
        _MACHINERY.split(line)[0].rstrip() if of_ranks or i == 0 else line for i, line in enumerate(lines)
    ]
    paragraph = list(itertools.takewhile(bool, lines))
    if of_ranks:
        return [line.strip()[:300] for line in paragraph[:12]]
    return [lines[0][:300]] if lines and lines[0] else []


def _place(error: BaseException, of_ranks: bool) -> str | None:
    """The last line of the learner's own code on the way to the exception, if it went through any."""
    if of_ranks:
        own = [found for found in _RANK_FRAME.findall(str(error)) if not _INSTALLED.search(found[0])]
        return f"in line {own[-1][1]} of your answer: `{own[-1][2][:LINE]}`" if own else None
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_globals.get("__name__") == "__main__":
            source = linecache.getline(frame.f_code.co_filename, line).strip()
            return f"in line {line} of your answer" + (f": `{source[:LINE]}`" if source else "")
    return None
