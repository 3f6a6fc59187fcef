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
    (r"Check failed: (\w+)Shape\[0\] \* worldSize == (\w+)Shape\[0\] \((\d+) vs\. (\d+)\)\.?",
     r"the \1s of all ranks have \3 rows together, and the \2 has \4"),
    (r"ProcessGroupGloo::(\w+): invalid tensor size at index \d+ \(expected \((.*?)\), got \((.*?)\)\)",
     r"\1: a tensor has the shape (\3), and (\2) is wanted"),
)  # fmt: skip

# A collective whose result is used: `return dist.all_reduce(t)`.
_RESULT = re.compile(r"(?:=|\breturn|[(,])\s*(dist\.(?:all|reduce|broadcast)\w*)\((?!.*async_op)")
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
    """Lines for what an answer raised (of ranks, a RankError): the fact, with the case before it, and what helps."""
    of_ranks = type(error).__name__ == "RankError"
    first, *more = _message(error, of_ranks) or [type(error).__name__]
    if not of_ranks and str(error).strip():
        first = f"{type(error).__name__}: {first}"
    text = first.partition(": ")[2] or first
    found = ((re.search(p, text) or re.search(p, first), said) for p, said in _MEANS)
    means = next((said.format(*match.groups()) for match, said in found if match), None)
    file, line, source = _frame(error, of_ranks) or ("", "", "")
    place = line and f"in line {line} of your answer" + (f": `{source[:LINE]}`" if source else "")
    if "NoneType" in text:
        if used := _RESULT.search("".join(linecache.getlines(file))):
            means = f"`{used[1]}` returns None: it writes into its tensor."
        elif ".grad" in source:
            means = "The `.grad` of a frozen parameter is None."
    return [f"{case}{first}", *filter(None, [*more, place, means])]


def _message(error: BaseException, of_ranks: bool) -> list[str]:
    """The first line; of failing ranks the first paragraph, since it says who waits for whom."""
    text = str(error).strip()
    for pattern, said in _SAID:
        text = re.sub(pattern, said, text)
    lines = text.splitlines() if of_ranks else text.splitlines()[:1]
    lines = [_MACHINERY.split(line)[0].rstrip() for line in lines]
    return [line.strip()[:300] for line in itertools.takewhile(bool, lines[:12])]


def _frame(error: BaseException, of_ranks: bool) -> tuple[str, str, str] | None:
    """File, number and source of the last line of the learner's own on the way to the exception, if there is one."""
    if of_ranks:
        frames = [found for found in _RANK_FRAME.findall(str(error)) if not _INSTALLED.search(found[0])]
    else:
        frames = [
            (file := frame.f_code.co_filename, str(line), linecache.getline(file, line).strip())
            for frame, line in traceback.walk_tb(error.__traceback__)
            if frame.f_globals.get("__name__") == "__main__"
        ]
    return frames[-1] if frames else None
