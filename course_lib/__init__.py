"""Each technique for training large models, minimal and runnable, on laptop CPU ranks or many GPUs."""

from __future__ import annotations

from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext course_lib``: the magics ``%%ranks`` and ``%%rank``."""
    from course_lib.runtime import magics  # imports torch, which importing the package alone must not

    magics.load_ipython_extension(shell)
