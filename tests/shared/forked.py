"""Python programs without a Python's start and torch's import: forks of this process, which has done both.

Within ``forked()``, ``subprocess.Popen([sys.executable, …])`` forks, and what is forked forks its fork server: for
kernels, and for programs that launch ranks; ``forked_programs.py`` is for torchrun. Pipes, signals, exit codes and
parents are as ever; only the environment that the system shows of a fork is this process's. Where there is a GPU all is
started as ever: a fork cannot use it.
"""

import asyncio
import atexit
import gc
import inspect
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import warnings
import weakref
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, process, resource_tracker, util
from pathlib import Path

import torch

execute_child, spawnv_passfds = subprocess.Popen._execute_child, util.spawnv_passfds
PARAMETERS = inspect.signature(execute_child)
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


@contextmanager
def forked():
    if hasattr(os, "fork") and not torch.cuda.is_available():
        subprocess.Popen._execute_child, util.spawnv_passfds = fork_program, fork_server
    try:
        yield
    finally:
        subprocess.Popen._execute_child, util.spawnv_passfds = execute_child, spawnv_passfds


def fork_program(popen, *values):
    """In place of ``Popen._execute_child``."""
    given = PARAMETERS.bind(popen, *values).arguments
    if given["shell"] or isinstance(given["args"], str) or given["args"][0] != sys.executable:
        return execute_child(popen, *values)
    ready, begun = os.pipe()
    if pid := os.fork():
        os.close(begun)
        os.read(ready, 1)  # it has left our session, and has its pipes
        os.close(ready)
        popen.pid, popen._child_created = pid, True
        return popen._close_pipe_fds(*(given[name] for name in PIPES))
    try:
        if given["start_new_session"]:
            os.setsid()
        for number, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
            if (file := given[name]) != -1:
                os.dup2(file, number)
        if given["preexec_fn"]:
            given["preexec_fn"]()
        begin_anew({0, 1, 2, *given["pass_fds"]}, given["env"], given["cwd"])
        run_and_leave([os.fspath(each) for each in given["args"][1:]])
    finally:
        os._exit(70)


def fork_server(path, args, files):
    """In place of ``multiprocessing.util.spawnv_passfds``, for fork servers."""
    if "multiprocessing.forkserver" not in args[-1]:
        return spawnv_passfds(path, args, files)
    if pid := os.fork():
        return pid
    try:
        begin_anew({0, 1, 2, *files})
        # Some do something when a fork server imports them, and one has a lock, which this process was forked under.
        for name in [name for name in sys.modules if name.startswith("course_lib.")]:
            del sys.modules[name]
        run_and_leave(["-c", args[-1]])
    finally:
        os._exit(70)


def begin_anew(files, env=None, cwd=None):
    """Forget what this process has open, has started, and would do at its end."""
    subprocess.Popen._execute_child = (
        execute_child  # from here on there may be threads, which a fork would lack
    )
    gc.freeze()  # nothing that it has may close a file under a number that is another file's now
    for number in map(int, os.listdir("/dev/fd")):
        if number not in files:
            with suppress(OSError):
                os.close(number)
    if cwd is not None:
        os.chdir(cwd)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    util._finalizer_registry.clear()
    atexit.register(util._exit_function)
    process._children.clear()
    process.current_process()._config["tempdir"] = tempfile.tempdir = None
    server, tracker = forkserver._forkserver, resource_tracker._resource_tracker
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None
    tracker._fd = tracker._pid = None
    asyncio._set_running_loop(None)
    asyncio.set_event_loop_policy(None)
    sys.stdin, sys.stdout, sys.stderr = (open(n, "rw"[n > 0], 1, closefd=False) for n in range(3))  # noqa: SIM115


def run_and_leave(argv):
    """As ``python`` with these arguments, to the end of this process."""
    code = 0
    try:
        run([each for each in argv if each != "-u"])
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exc()
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def run(argv):
    what, *others = argv
    if what == "-m":
        sys.argv, sys.path[:0] = others, [os.getcwd()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it has been imported
            runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv, sys.path[:0] = [what, *others[1:]], [""]
        be_main(others[0], "<string>")
    else:
        sys.argv, sys.path[:0] = argv, [os.path.dirname(os.path.abspath(what))]
        be_main(Path(what).read_text(encoding="utf-8"), what)


def be_main(code, file):
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = file
    exec(compile(code, file, "exec"), vars(main))
