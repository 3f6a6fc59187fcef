"""Each technique for training large models, minimal and runnable, on laptop CPU ranks or many GPUs."""

from __future__ import annotations

import ctypes
import os
from typing import Any

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    # No driver of a GPU: Triton's kernels run on the CPU. Triton reads this when it is imported, and parts of torch
    # import it, so it is set first.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext course_lib``: the magics ``%%ranks`` and ``%%rank``."""
    from course_lib.runtime import magics  # imports torch, which importing the package alone must not

    magics.load_ipython_extension(shell)
