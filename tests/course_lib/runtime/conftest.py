"""A real IPython kernel, driven as JupyterLab drives it, and what it may not leave behind."""

import contextlib
import os
import time

import psutil
import pytest
from kernels import FileKernelManager

PATIENCE = 120  # seconds, for a machine on which much else runs


class Kernel:
    """A kernel and its client; ``messages`` are those of the last cell."""

    def __init__(self, scratch, **environment):
        self.scratch = scratch
        env = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        self.manager = FileKernelManager(kernel_name="python3")
        self.manager.start_kernel(env={**env, "TMPDIR": str(scratch), **environment})
        self.connect()

    def connect(self):
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    @property
    def pid(self):
        return self.manager.provisioner.pid

    def start(self, code, in_a_page=False):
        """Send a cell; as a page of JupyterLab does, or as nbclient."""
        self.messages = []
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        metadata = {"cellId": "a-cell"} if in_a_page else {}
        request = self.client.session.msg("execute_request", content, metadata=metadata)
        self.client.shell_channel.send(request)
        self.request = request["header"]["msg_id"]

    def wait_until(self, holds):
        """Take in messages until ``holds(message)``."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") == self.request:
                self.messages.append(message)
                if holds(message):
                    return
        raise TimeoutError(f"not within {PATIENCE} s; the cell has shown: {self.shown()}")

    def finish(self):
        """Wait for the cell's end; what it has shown."""
        self.wait_until(lambda m: m["content"].get("execution_state") == "idle")
        return self.shown()

    def run(self, code, **options):
        self.start(code, **options)
        return self.finish()

    def wait_for_text(self, text):
        self.wait_until(lambda m: text in self.shown())

    def kinds(self):
        return {m["msg_type"] for m in self.messages}

    def shown(self):
        """Streams, results and tracebacks of the cell, as one text."""
        text = ""
        for message in self.messages:
            content = message["content"]
            if message["msg_type"] == "stream":
                text += content["text"]
            elif message["msg_type"] in ("execute_result", "display_data"):
                text += content["data"]["text/plain"] + "\n"
            elif message["msg_type"] == "error":
                text += "\n".join(content["traceback"]) + "\n"
        return text

    def family(self):
        """All processes below the kernel."""
        return psutil.Process(self.pid).children(recursive=True)

    def left_nothing(self, family):
        """Whether these processes have ended and the temporary folder is empty; waits a while for both."""
        _, alive = psutil.wait_procs(family, timeout=PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while (left := self._folders()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return alive == [] and left == []

    def _folders(self):
        return [name for name in os.listdir(self.scratch) if name.startswith(("pymp-", "ranks-"))]

    def close(self):
        family = []
        with contextlib.suppress(psutil.Error):  # a test has killed it
            family = self.family()
        with contextlib.suppress(Exception):
            self.client.stop_channels()
            self.manager.shutdown_kernel(now=True)
        assert self.left_nothing(family)


@pytest.fixture(scope="module")
def start_kernel(tmp_path_factory):
    """Starts kernels that end with the module's tests."""
    kernels = []

    def start():
        kernels.append(Kernel(tmp_path_factory.mktemp("kernel")))
        return kernels[-1]

    yield start
    for kernel in kernels:
        kernel.close()


@pytest.fixture
def kernel(tmp_path_factory):
    """A kernel for one test."""
    kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    yield kernel
    kernel.close()
