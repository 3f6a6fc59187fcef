"""Kernels that are reached through files.

Jupyter looks for free ports, lets them go and tells the kernel to take them. Beside other tests, another process takes
one of them first in one start of some hundreds; that kernel never answers.
"""

import tempfile

from jupyter_client.manager import KernelManager


class FileKernelManager(KernelManager):
    """A kernel's manager whose sockets are files, in a temporary folder that goes with it."""

    def __init__(self, **options):
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-")
        super().__init__(transport="ipc", connection_file=f"{self._folder.name}/kernel.json", **options)
