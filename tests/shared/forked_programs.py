"""Python programs that are forked from a process that has imported torch: ``python -m …`` without its imports.

``run_forked([sys.executable, "-m", "course_lib.train", …])`` is ``subprocess.run`` of it, with text captured;
``Program`` is ``Popen``, as far as tests use it. The first of them starts a process that imports ``PRELOAD`` (this file
as a program). For each program that one forks a process, which forks the program, waits for it and tells how it ended.
A program's fork server and torchrun's workers are forks, too. All else is as ever, and without fork nothing is forked.
With ``NETWORK`` in its environment a program is in that network namespace.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from subprocess import DEVNULL, PIPE

from warm_kernels import MARK, ask_for_fork_servers, fork_server, set_environment

PRELOAD = (
    "course_lib",  # first: it chooses Triton's interpreter
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.launcher.api",
    "course_lib.runtime.rank",
    "course_lib.train.start",
)
TEMPLATE, NETWORK = "FORKED_PROGRAMS", "NETWORK_NAMESPACE"
STATUS = struct.Struct("i")

# ---- who starts a program ---------------------------------------------------------------------------------


class Program:
    """``Popen([sys.executable, …], text=True)`` of a program that reads no input."""

    stdin = None

    def __init__(self, args, *, stdout=None, stderr=None, env=None, cwd=None, **_):
        self.args, self.returncode = list(map(str, args)), None
        self.stdout, out = _stream(stdout, 1)
        self.stderr, err = _stream(stderr, 2)
        self.channel = socket.socket(socket.AF_UNIX)
        self.channel.connect(os.environ.get(TEMPLATE) or template())
        socket.send_fds(self.channel, [b"!"], [out, err])
        asked = {"args": self.args[1:], "env": dict(env or os.environ), "cwd": str(cwd or os.getcwd())}
        self.channel.sendall(json.dumps(asked).encode() + b"\n")
        for number in {out, err} - {1, 2}:
            os.close(number)
        self.pid = self._told()

    def _told(self):
        return STATUS.unpack(self.channel.recv(STATUS.size))[0]

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self.channel], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = self._told()
            self.channel.close()
        return self.returncode

    def communicate(self, timeout=None):
        """What it printed. Unlike ``Popen`` this kills a program that is not done in time."""
        streams = [stream for stream in (self.stdout, self.stderr) if stream and not stream.closed]
        with ThreadPoolExecutor(2) as readers:
            said = {stream: readers.submit(stream.read) for stream in streams}
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        for stream in streams:
            stream.close()
        return tuple(said[s].result() if s in said else None for s in (self.stdout, self.stderr))

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


def _stream(given, number):
    """What the starter reads, and the number of the file that the program gets."""
    if given == PIPE:
        ours, theirs = os.pipe()
        return open(ours), theirs
    if given == DEVNULL:
        return None, os.open(os.devnull, os.O_WRONLY)
    return None, number if given is None else os.dup(given if isinstance(given, int) else given.fileno())


if not hasattr(os, "fork"):
    Program = functools.partial(subprocess.Popen, text=True)


def run_forked(args, timeout=None, env=None, cwd=None):
    program = Program(args, stdout=PIPE, stderr=PIPE, env=env, cwd=cwd)
    said = program.communicate(timeout)
    return subprocess.CompletedProcess(args, program.returncode, *said)


@functools.cache
def template():
    """The socket of the process that forks: started once, it ends with this one."""
    folder = tempfile.mkdtemp(prefix="forked-")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/socket")
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-u", __file__, str(listener.fileno())],
            env={**os.environ, **MARK},
            pass_fds=[listener.fileno()],
            stdin=PIPE,
            stdout=DEVNULL,
            start_new_session=True,
        )

    def end():
        process.stdin.close()
        process.wait()
        shutil.rmtree(folder)

    atexit.register(end)
    return f"{folder}/socket"


# ---- the process from which programs are forked -----------------------------------------------------------


def serve(listener):
    """Fork for each that connects; returns in the fork, with the connection."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        channel = listener.accept()[0]
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return channel
        channel.close()
    os._exit(0)


def fork_program(channel):
    """Fork, wait for the fork's end and tell of it; returns in the fork, with what was asked for."""
    _, (out, err), *_ = socket.recv_fds(channel, 1, 2)
    asked = json.loads(channel.makefile().readline())
    if pid := os.fork():
        channel.sendall(STATUS.pack(pid))
        os.close(out)
        os.close(err)
        with contextlib.suppress(OSError):  # nobody waits for it
            channel.sendall(STATUS.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        os._exit(0)
    channel.close()
    os.setsid()
    for file, number in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(file, number)
        os.close(file)
    return asked


def enter(path):
    """A network namespace."""
    with open(path) as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"setns {path}")


def be_program(args, cwd):
    while args[0] == "-u":
        del args[0]
    if args[0] == "-m":
        sys.argv, sys.path[:0] = args[1:], [cwd]
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    elif args[0] == "-c":
        sys.argv, sys.path[:0] = [args[0], *args[2:]], [""]
        exec(args[1], {"__name__": "__main__"})
    else:
        sys.argv, sys.path[:0] = args, [os.path.dirname(os.path.abspath(args[0]))]
        runpy.run_path(args[0], run_name="__main__")


def main():
    listener = socket.socket(fileno=int(sys.argv[1]))
    home = listener.getsockname()
    sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(__file__)]
    for module in PRELOAD:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    asked = fork_program(serve(listener))
    atexit.register(gc.unfreeze)  # or libraries complain of objects that are left
    os.chdir(asked["cwd"])
    if network := asked["env"].get(NETWORK):
        enter(network)
    told, channel = fork_server()
    if channel is None:
        sys.argv = ["-c"]
        return exec(told, {"__name__": "__main__"})
    set_environment(asked["env"] | {TEMPLATE: home})
    ask_for_fork_servers(told, channel)
    handler = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
    sys.modules[handler].Popen = Program
    try:
        be_program(asked["args"], asked["cwd"])
    except SystemExit as ended:
        end_early(ended.code)
        raise
    end_early(None)


def end_early(code):
    """To free all that was imported takes longer than many a program. A rank may fail while it does so: it does it."""
    if not sys.modules["torch.distributed"].is_initialized() and not isinstance(code, str):
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code or 0)


if __name__ == "__main__":
    main()
