"""Pickles what is sent to the ranks: a function with all that it refers to, and the source of code without a file."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import sysconfig
import types
from collections.abc import Callable
from typing import Any

import cloudpickle


def pickle_call(fn: Callable[..., Any], args: tuple) -> bytes:
    """Pickle the function and its arguments.

    The function's code is sent with it (by value), unless its module is installed, so that a rank can import it.

    Raises:
        ValueError: ``fn`` cannot be called, or something that it refers to cannot be pickled.
    """
    if not callable(fn):
        raise ValueError(f"launch needs a function to run on every rank, not {fn!r}")
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    by_value = module is not None and module.__name__ != "__main__" and not _is_installed(module)
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps((fn, tuple(args)))
    except Exception as error:
        name = getattr(fn, "__name__", repr(fn))
        raise ValueError(
            f"{name} cannot be sent to the ranks ({error}): create files, locks, generators and process groups "
            "inside the function"
        ) from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _is_installed(module: types.ModuleType) -> bool:
    """Whether a fresh process can import the module: the standard library, installed packages, the course."""
    if module.__name__.partition(".")[0] in ("course_lib", "simulator"):
        return True
    file = getattr(module, "__file__", None)
    folders = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    return file is None or any(file.startswith(folder) for folder in folders)


def cells() -> dict[str, tuple[str, str]]:
    """File name -> (name to show, source) of code that is in no file, such as notebook cells. A rank needs it to print
    tracebacks."""
    numbers: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # not in IPython
        numbers = get_ipython().compile._filename_map  # noqa: F821  # pyright: ignore
    return {
        filename: (f"Cell In[{numbers[filename]}]" if filename in numbers else filename, "".join(entry[2]))
        for filename, entry in list(linecache.cache.items())
        if len(entry) == 4 and (filename in numbers or not os.path.exists(filename))
    }
