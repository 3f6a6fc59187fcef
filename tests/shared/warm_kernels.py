"""A plugin of pytest, for nbval: notebooks' kernels begin with torch and matplotlib imported, and so do their ranks.

A kernel imports both, and the server from which it forks ranks imports torch again: with Jupyter's own imports that is
most of what a short notebook takes. Here one process imports them once (this file as a program), and reads the text
that every second notebook learns from. Each kernel is a fork of it, and so is each kernel's fork server: a second
fork, made beside the kernel, that waits until the kernel asks for one. What follows in a kernel is as ever.
``matplotlib.pyplot`` is left to the kernel: it looks for IPython's shell while it is imported.
"""

import fcntl
import gc
import importlib
import json
import multiprocessing.util
import os
import signal
import socket
import subprocess
import sys
import time

PRELOAD = (
    "course_lib",  # first: it chooses Triton's interpreter
    "torch._dynamo",
    "torch.distributed.fsdp",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "IPython.core.completer",
    "ipykernel.kernelapp",
    "ipywidgets",
    "course_lib.data.docs",
    "course_lib.parallelize",
    "simulator.plots",
)
MARK = {"COURSE_LIB_RANKS_OF": "0" * 32}  # as course_lib/processes/descendants.py wants it in a fork server
HIGH = 500  # a number that no file has yet

# ---- the tests' process -----------------------------------------------------------------------------------


class Kernel:
    """A kernel as Jupyter sees it: what it uses of a ``Popen``."""

    stdin = stdout = stderr = None

    def __init__(self, template, pid):
        self.template, self.pid, self.returncode = template, pid, None

    def poll(self):
        if self.returncode is None:
            self.returncode = self.template.ask(poll=self.pid)
        return self.returncode

    def wait(self):
        while self.poll() is None:
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


class Template:
    """The process from which kernels are forked. It ends with this one, and kernels with it."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        env = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", **os.environ, **MARK}
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env=env,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self.channel = ours.makefile("rw")
        ours.close()

    def ask(self, **question):
        print(json.dumps(question), file=self.channel, flush=True)
        return json.loads(self.channel.readline())

    def launch(self, cmd, env=None, cwd=None, **_):
        """In place of ``jupyter_client.launcher.launch_kernel``."""
        options = cmd[cmd.index("ipykernel_launcher") + 1 :]
        asked = {"options": options, "env": dict(env or os.environ), "cwd": str(cwd or os.getcwd())}
        return Kernel(self, self.ask(**asked))

    def close(self):
        self.channel.close()
        self.process.wait()


_template = []


def launch_kernel(cmd, **options):
    if not _template:
        _template.append(Template())
    return _template[0].launch(cmd, **options)


def pytest_configure():
    if not hasattr(os, "fork"):
        return
    import nbval.kernel
    import pytest
    from jupyter_client.provisioning import local_provisioner
    from kernels import FileKernelManager

    class WarmKernelManager(FileKernelManager):
        """nbval's. Kernels that a test starts are Jupyter's own."""

        def start_kernel(self, **options):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(local_provisioner, "launch_kernel", launch_kernel)
                super().start_kernel(**options)

    nbval.kernel.KernelManager = WarmKernelManager


def pytest_unconfigure():
    for template in _template:
        template.close()


# ---- the process from which kernels are forked ------------------------------------------------------------


def serve(channel):
    """Fork, or tell how a fork ended, as asked. Returns in a fork, with what it is to be."""
    for line in channel:
        asked = json.loads(line)
        if "poll" in asked:
            pid, status = os.waitpid(asked["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif os.fork():
            continue  # the fork answers, once it leads a group of processes
        else:
            os.setsid()
            answer = os.getpid()
        print(json.dumps(answer), file=channel, flush=True)
        if "options" in asked:
            return asked
    os._exit(0)  # or libraries complain of the objects that are frozen


def fork_server():
    """Fork a process that waits to become the kernel's fork server: (its number, the socket on which to tell it).

    In that process it returns the program that it is to run, and None.
    """
    ours, theirs = socket.socketpair()
    if pid := os.fork():
        theirs.close()
        return pid, ours
    ours.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, received, *_ = socket.recv_fds(theirs, 1, 16)
    text = theirs.makefile().read()
    theirs.close()
    if not text:  # the kernel has gone, and needed none
        os._exit(0)
    asked = json.loads(text)
    files = [fcntl.fcntl(file, fcntl.F_DUPFD, HIGH) for file in received]
    for file, number in zip(files, asked["files"], strict=True):
        os.dup2(file, number)
    for file in (*received, *files):
        if file not in asked["files"]:
            os.close(file)
    set_environment(asked["env"])
    return asked["program"], None


def set_environment(env):
    """Variables that stay the same are not written: ``MARK`` must stay where the system reads it. Triton's is set by
    an import, which is not repeated."""
    env = {name: os.environ[name] for name in ("TRITON_INTERPRET",) if name in os.environ} | env
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in env.items() if os.environ.get(name) != value})


def ask_for_fork_servers(pid, channel):
    """Let multiprocessing take the process that waits for its first fork server."""
    start, waiting = multiprocessing.util.spawnv_passfds, [channel]

    def spawnv_passfds(path, args, files):
        if not waiting or "multiprocessing.forkserver" not in args[-1]:
            return start(path, args, files)
        numbers = [0, 1, 2, *files]
        asked = {"program": args[-1], "files": numbers, "env": dict(os.environ)}
        with waiting.pop() as to:
            socket.send_fds(to, [b"!"], numbers)
            to.sendall(json.dumps(asked).encode())
        return pid

    multiprocessing.util.spawnv_passfds = spawnv_passfds


def main():
    channel = socket.socket(fileno=int(sys.argv[1])).makefile("rw")
    sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(__file__)]
    for module in PRELOAD:
        importlib.import_module(module)
    sys.modules["course_lib.data.docs"].corpus()  # kept: to parse Python's standard library takes a second
    gc.collect()
    gc.freeze()
    asked = serve(channel)
    channel.close()
    os.chdir(asked["cwd"])
    told, socket_of_kernel = fork_server()
    if socket_of_kernel is None:
        sys.argv = ["-c"]
        return exec(told, {"__name__": "__main__"})
    set_environment(asked["env"] | {"JPY_PARENT_PID": str(os.getppid())})
    ask_for_fork_servers(told, socket_of_kernel)
    sys.argv = ["ipykernel_launcher", *asked["options"]]
    sys.modules["ipykernel.kernelapp"].launch_new_instance()


if __name__ == "__main__":
    main()
