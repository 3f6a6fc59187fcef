"""What the commands of both comparisons have in common. Imports neither torch nor rich, so ``--help`` is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import click

Told = Callable[
    [str, int, int], None
]  # what is being done, how much is done, how much there is in all (at most)


def parsed_rates(text: str) -> tuple[float, ...]:
    """``"1e-4,1e-3"`` -> ``(1e-4, 1e-3)``.

    Raises:
        ValueError: not all are positive numbers.
    """
    try:
        rates = tuple(float(rate) for rate in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise ValueError(
            f"lrs is {text!r}; give positive numbers with commas between them, such as 1e-4,1e-3."
        )
    return rates


def checked_names(text: str, names: Sequence[str], best_first: Sequence[str] = ()) -> tuple[str, ...]:
    """The methods named in ``text``, with commas between them; ``"all"`` is each, those of ``best_first`` first.

    Raises:
        ValueError: a name that no method has.
    """
    asked = (*best_first, *names) if text == "all" else [name.strip() for name in text.split(",")]
    for name in asked:
        if name not in names:
            raise ValueError(f"methods has {name!r}; choose 'all', or from {', '.join(names)}.")
    return tuple(dict.fromkeys(asked))


@contextmanager
def progress_bar(first: str) -> Iterator[Told]:
    """A bar on stderr that begins with the text ``first``; call what is yielded to move it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(first, total=None)
        yield lambda text, done, total: progress.update(bar, description=text, completed=done, total=total)


@contextmanager
def ended_in_one_sentence() -> Iterator[None]:
    """A ``ValueError`` ends the program with its sentence and the code 2, Ctrl-C with 130."""
    try:
        yield
    except ValueError as error:
        end(f"Error: {error}", 2)
    except KeyboardInterrupt:
        end("stopped; the runs that were finished are kept, and the same command goes on from there", 130)


def end(sentence: str, code: int) -> NoReturn:
    click.echo(sentence, err=True)
    sys.exit(code)
