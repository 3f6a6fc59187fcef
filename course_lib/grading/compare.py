"""Compare what an answer gave with what was expected, and say how they differ."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

_TRUSTED = ("builtins", "numpy", "fractions", "decimal")

LONGEST = 100  # characters of a value in a message


def _is_tensor(value: Any) -> bool:
    """Torch's own tensors and parameters; a subclass made in an answer could compare as it likes."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")


def same(got: Any, want: Any) -> bool:
    """Exactly equal: the same kind of thing, the same shape and type, the same values."""
    if _is_tensor(got) or _is_tensor(want):
        if not (_is_tensor(got) and _is_tensor(want)):
            return False
        return got.dtype == want.dtype and got.shape == want.shape and bool((got == want).all())
    if isinstance(got, np.ndarray) or isinstance(want, np.ndarray):
        return type(got) is type(want) and np.array_equal(got, want)
    if isinstance(want, list | tuple):
        if not isinstance(got, list | tuple) or len(got) != len(want):
            return False
        return all(same(one, other) for one, other in zip(got, want, strict=True))
    if isinstance(want, Mapping):
        if not isinstance(got, Mapping) or got.keys() != want.keys():
            return False
        return all(same(got[key], want[key]) for key in want)
    # Whose `==` is asked matters: an answer's own class might say yes to anything.
    return _plain(got) == _plain(want) and bool(want == got)


def _plain(value: Any) -> type | None:
    """The family of a plain value, where 1, 1.0 and True are numbers alike; of other things, their class."""
    return (
        complex if isinstance(value, numbers.Number) and type(value).__module__ in _TRUSTED else type(value)
    )


def describe(value: Any) -> str:
    """The value in at most a hundred characters: short tensors in full, long ones by shape."""
    if _is_tensor(value):
        if value.numel() > 12:
            return f"a tensor of shape {tuple(value.shape)}"
        numbers = str([float(f"{x:.4g}") for x in value.detach().flatten().tolist()])
        kind = str(value.dtype).removeprefix("torch.")
        text = numbers if value.dim() == 1 else f"{numbers} of shape {tuple(value.shape)}"
        return f"{text} ({kind})"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def difference(got: Any, want: Any, tolerance: float) -> str | None:
    """How ``got`` departs from ``want``, to be read after the name of the quantity; None when it does not.

    "is 2.000 times what is expected" where that is all; else the largest difference and where it is.
    """
    if got is None:
        return "is None"
    try:
        a, b = _array(got), _array(want)
    except (TypeError, ValueError, RuntimeError):
        return f"is {describe(got)}, not numbers"
    if a.shape != b.shape:
        return f"has shape {a.shape}, expected {b.shape}"
    if not np.isfinite(a).all() and np.isfinite(b).all():
        return f"holds {int((~np.isfinite(a)).sum())} values that are not finite"
    if np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    norm = float((b * b).sum())
    ratio = float((a * b).sum()) / norm if norm > 0 else 0.0
    if a.size > 1 and ratio and np.allclose(a, ratio * b, rtol=max(tolerance, 1e-4), atol=tolerance):
        return f"is {ratio:.3f} times what is expected"
    if a.ndim == 0:
        return f"is {float(a):.6g}, expected {float(b):.6g}"
    where = np.unravel_index(int(np.nan_to_num(np.abs(a - b), nan=np.inf).argmax()), a.shape)
    place = ", ".join(str(int(index)) for index in where)
    return f"differs most at [{place}]: {a[where]:.4g}, expected {b[where]:.4g}"


def _array(value: Any) -> np.ndarray:
    if isinstance(value, list | tuple) and any(_is_tensor(item) for item in value):
        value = np.stack([_array(item) for item in value])
    if _is_tensor(value):
        value = value.detach().double().cpu().numpy()
    return np.asarray(value, dtype=np.float64)
