"""The process from which ranks are forked, and the folder that it shares with the process that starts it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import tempfile
import types
from collections.abc import Iterator
from multiprocessing import util
from multiprocessing.util import get_temp_dir
from typing import Any

from course_lib.processes import descendants
from course_lib.runtime import cleanup as leftovers

# The fork server imports these once, and LAST after them; every rank is forked from it.
PRELOAD = [
    "course_lib.runtime.cleanup",
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "course_lib.runtime.rank",
]
LAST = "course_lib.runtime.frozen"
# The path of a Unix socket has 103 bytes at most (macOS; 107 on Linux). Below the temporary folder come
# pymp-…/ranks-…/listener-…, which is 47.
LONGEST = 103 - 47
SHORT = ("/tmp", "/var/tmp")


def preload(module: str) -> None:
    """Let the server from which ranks are forked import ``module``, so that no rank has to; before the first launch."""
    if module not in PRELOAD:
        PRELOAD.append(module)


def context() -> Any:
    """multiprocessing's way of starting ranks, with the fork server running."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver  # exists on POSIX alone

    ctx = multiprocessing.get_context("forkserver")
    ctx.set_forkserver_preload([*PRELOAD, LAST])
    given = {leftovers.VARIABLE: scratch_folder(), descendants.MARK: descendants.UNMARKED}
    before = {name: os.environ.get(name) for name in given}
    _open_standard_streams()
    os.environ.update(given)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return ctx


def scratch_folder() -> str:
    """multiprocessing's folder, which is removed when this process ends. It is made anew if it is gone.

    Raises:
        ValueError: no folder is usable.
    """
    process: Any = multiprocessing.current_process()
    config = process._config
    if (known := config.get("tempdir")) is not None and not os.path.isdir(known):
        _forget(known)  # someone has tidied up, and the socket of the fork server is gone with it
        config["tempdir"] = None
    if config.get("tempdir") is None:
        before = tempfile.tempdir
        try:
            if not os.path.isdir(tempfile.gettempdir()):
                tempfile.tempdir = before = None
            if len(os.fsencode(tempfile.gettempdir())) > LONGEST and os.name != "nt":
                tempfile.tempdir = next((f for f in SHORT if os.access(f, os.W_OK | os.X_OK)), None)
            get_temp_dir()
        except OSError as error:
            raise ValueError(f"ranks need a temporary folder, and none can be made: {error}") from None
        finally:
            tempfile.tempdir = before
    return get_temp_dir()


def _forget(folder: str) -> None:
    """multiprocessing's folder, which is gone, and the fork server in it: the next rank gets another one.

    That server ends with its last rank.
    """
    from multiprocessing import forkserver

    for finalizer in list(vars(util)["_finalizer_registry"].values()):
        if folder in finalizer._args:
            finalizer.cancel()
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


def _open_standard_streams() -> None:
    """Where one is closed, the next file that is opened gets its number, and a program takes it for its input."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
            os.set_inheritable(number, True)


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Hide the caller's script: multiprocessing would run it again in every rank, guard or no guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
