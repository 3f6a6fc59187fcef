"""Reads the line of a ``%%ranks`` or ``%%rank`` magic."""

from __future__ import annotations

from dataclasses import dataclass, field

from IPython.core.error import UsageError

from course_lib.runtime.devices import BACKENDS
from course_lib.runtime.launch import check_timeout, checked_ranks
from course_lib.runtime.world import check_number

TAKES_NAMES = ("--with", "--get")
TAKES_A_VALUE = ("--timeout", "--backend")
OPTIONS = (*TAKES_NAMES, *TAKES_A_VALUE, "--quiet")


@dataclass
class Options:
    """What the line asks for.

    Args:
        size: how many ranks; ``None`` for those that are there.
        mesh: axes and their sizes, if the line names them.
        only: the numbers after ``%%rank``.
        send: names after ``--with``.
        get: names after ``--get``.
    """

    size: int | None = None
    mesh: dict[str, int] = field(default_factory=dict)
    only: list[int] = field(default_factory=list)
    send: list[str] = field(default_factory=list)
    get: list[str] = field(default_factory=list)
    timeout: float | None = None
    backend: str | None = None
    quiet: bool = False


def parse(magic: str, line: str) -> Options:
    """Read the line; ``UsageError`` (one line in the notebook) if it cannot be understood."""
    options, option = Options(), ""
    for word in line.replace(",", " ").split():
        if word.startswith("--"):
            if word not in OPTIONS:
                raise UsageError(f"%%{magic} has no option {word}: it has {', '.join(OPTIONS)}")
            option = word
            options.quiet |= word == "--quiet"
        elif option in TAKES_NAMES:
            (options.send if option == "--with" else options.get).append(_name(option, word))
        elif option == "--timeout":
            options.timeout, option = _seconds(word), ""
        elif option == "--backend":
            options.backend, option = _backend(magic, word), ""
        else:
            _read_ranks(options, magic, word)
    if option in TAKES_A_VALUE or (option in TAKES_NAMES and not (options.send or options.get)):
        raise UsageError(f"{option} needs a value, such as {option} {_EXAMPLES[option]}")
    if options.mesh and options.size is None:
        options.size = _usable(options.mesh)
    return options


_EXAMPLES = {"--with": "batch, model", "--get": "loss", "--timeout": "60", "--backend": "gloo"}


def ranks_of(options: Options, size: int) -> list[int]:
    """The ranks that ``%%rank`` names."""
    if not options.only:
        raise UsageError("%%rank needs the number of a rank, such as %%rank 0")
    if wrong := [r for r in options.only if r >= size]:
        raise UsageError(f"there is no rank {wrong[0]}: the ranks are 0 to {size - 1}")
    if twice := [r for r in options.only if options.only.count(r) > 1]:
        raise UsageError(f"%%rank names rank {twice[0]} twice; a rank runs the cell once")
    return sorted(options.only)


def _read_ranks(options: Options, magic: str, word: str) -> None:
    if magic == "rank":
        if not word.isdecimal():
            raise UsageError(f"%%rank takes numbers of ranks, such as %%rank 0 or %%rank 0,2; not {word!r}")
        options.only.append(int(word))
        return
    axis, equals, number = word.partition("=")
    if not number.isdecimal() if equals else not word.isdecimal():
        raise UsageError(f"%%ranks takes a number (%%ranks 4) or a mesh (%%ranks dp=2 tp=2), not {word!r}")
    if equals and axis in options.mesh:
        raise UsageError(f"%%ranks names the mesh axis {axis} twice; each axis has one size")
    if equals and options.size is None:
        options.mesh[axis] = int(number)
    elif not equals and options.size is None and not options.mesh:
        options.size = _usable(int(word))
    else:
        raise UsageError("%%ranks takes one number or one mesh: %%ranks 4, or %%ranks dp=2 tp=2")


def _usable(asked: int | dict[str, int]) -> int:
    try:
        ranks = checked_ranks(None, asked) if isinstance(asked, dict) else checked_ranks(asked, None)
        check_number(ranks)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return ranks


def _backend(magic: str, word: str) -> str:
    if magic == "rank":
        raise UsageError("%%rank starts no ranks: --backend belongs to the %%ranks that does")
    if word not in BACKENDS:
        raise UsageError(f"--backend takes one of {', '.join(BACKENDS)}, not {word!r}")
    return word


def _name(option: str, word: str) -> str:
    if not word.isidentifier():
        raise UsageError(
            f"{option} takes names of variables, such as {option} {_EXAMPLES[option]}; not {word!r}"
        )
    return word


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
        check_timeout(seconds)
    except ValueError:
        raise UsageError(f"--timeout takes a positive number of seconds, not {word!r}") from None
    return seconds
