"""Compare what an answer gave with what was expected, and say how they differ.

Right answers come in many styles. Where a number is expected, an int, float, Fraction, Decimal, NumPy scalar or
tensor without dimensions is one; where a list of numbers is expected, a tuple, range, generator, array or tensor
is one as well. A tensor's dtype counts only in ``same``: a check that uses ``difference`` accepts double precision.
"""

from __future__ import annotations

import numbers
import re
import types
from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np

_TRUSTED = ("builtins", "numpy", "fractions", "decimal")
_READ_ONCE: Any = (types.GeneratorType, range, map, zip, filter, type({}.keys()), type({}.values()))
LONGEST = 100  # characters of a value in a message


def _is_tensor(value: Any) -> TypeGuard[Any]:
    """Torch's own tensors and parameters; a subclass made in an answer could compare as it likes."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")


def settle(got: Any, want: Any) -> Any:
    """The answer's result in the form of the expected one, where it is the same thing in another style."""
    in_list = isinstance(want, list | tuple)
    if in_list and isinstance(got, _READ_ONCE):
        got = list(got)
    if _is_tensor(got) or type(got) is np.ndarray:
        number = isinstance(want, numbers.Number) and np.ndim(got) == 0
        return got.tolist() if in_list or number else got
    if in_list and isinstance(got, list | tuple) and len(got) == len(want):
        settled = [settle(one, other) for one, other in zip(got, want, strict=True)]
        return tuple(settled) if isinstance(want, tuple) else settled
    return got


def same(got: Any, want: Any) -> bool:
    """Exactly equal: the same kind of thing, the same shape and type, the same values."""
    if _is_tensor(got) or _is_tensor(want):
        alike = _is_tensor(got) and _is_tensor(want) and got.dtype == want.dtype and got.shape == want.shape
        return alike and bool((got == want).all())
    if isinstance(got, np.ndarray) or isinstance(want, np.ndarray):
        return type(got) is type(want) and np.array_equal(got, want)
    if isinstance(got, list | tuple) and isinstance(want, list | tuple):
        got, want = dict(enumerate(got)), dict(enumerate(want))
    if isinstance(want, Mapping):
        alike = isinstance(got, Mapping) and got.keys() == want.keys()
        return alike and all(same(got[key], want[key]) for key in want)
    # Whose `==` is asked matters: an answer's own class might say yes to anything.
    return _plain(got) == _plain(want) and bool(want == got)


def _plain(value: Any) -> type:
    """The family of a plain value, where 1, 1.0 and True are numbers alike; of other things, their class."""
    trusted = isinstance(value, numbers.Number) and type(value).__module__ in _TRUSTED
    return complex if trusted else type(value)


def describe(value: Any) -> str:
    """The value in at most a hundred characters: short tensors in full, long ones by shape."""
    if _is_tensor(value):
        if value.numel() > 12:
            return f"a tensor of shape {tuple(value.shape)}"
        text = str([float(f"{x:.4g}") for x in value.detach().flatten().tolist()])
        return text + (f" of shape {tuple(value.shape)}" if value.dim() != 1 else "") + f" ({_dtype(value)})"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def inequality(got: Any, want: Any) -> tuple[str, ...]:
    """How ``got`` is not ``same`` as ``want``: a clause to follow the fact's name, then lines that help."""
    if got is None:
        return ("is None: nothing was returned",)
    if _is_tensor(got) and _is_tensor(want):
        if got.dtype != want.dtype:
            return (f"has dtype {_dtype(got)}, expected {_dtype(want)}",)
        return difference(got, want, 0.0) or ("differs",)
    clause = f"is {describe(got)}, expected {describe(want)}"
    lists = isinstance(got, list | tuple) and isinstance(want, list | tuple) and len(want) > 3
    many = f"{len(got)} entries, expected {len(want)}; " if lists and len(got) != len(want) else ""
    if lists:
        got, want = dict(enumerate(got)), dict(enumerate(want))
    if not (isinstance(got, Mapping) and isinstance(want, Mapping)):
        return (clause,)
    key = next(k for k in [*want, *got] if k not in got or k not in want or not same(got[k], want[k]))
    have, expected = (describe(d[key]) if key in d else "nothing" for d in (got, want))
    place = [key] if lists else key
    return clause, f"({many}first difference at {place!r}: got {have}, expected {expected})"


_PLURAL = {"differs": "differ", "is": "are", "has": "have", "holds": "hold"}
_NOUN_ENDS = re.compile(r",| (?:of|on|after|at|in|by|with|from|for|that) ")


def in_number(fact: str, clause: str) -> str:
    """The clause with its verb in the plural where the fact is several things: "the positions" "differ in …"."""
    noun = _NOUN_ENDS.split(fact)[0]
    several = not noun.startswith("what ") and (" and " in noun or re.search(r"[^aisu]s$", noun))
    verb, space, rest = clause.partition(" ")
    return _PLURAL.get(verb, verb) + space + rest if several else clause


def difference(got: Any, want: Any, tolerance: float) -> tuple[str, ...]:
    """How ``got`` departs from ``want``, to be read after the name of the quantity; nothing when it does not.

    The first line says "is 2.000 times what is expected" where that is all, else in how many places they differ;
    a second line, in brackets, says where the first difference is.
    """
    if got is None:
        return ("is None: nothing was returned",)
    try:
        a, b = _array(got), _array(want)
    except (TypeError, ValueError, RuntimeError):
        return (f"is {describe(got)}, not numbers",)
    if a.shape != b.shape:
        return (f"has shape {a.shape}, expected {b.shape}",)
    if (many := int((~np.isfinite(a)).sum())) and np.isfinite(b).all():
        return (f"holds {many} value{'s that are' if many > 1 else ' that is'} not finite",)
    near = np.isclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    if near.all():
        return ()
    norm = float((b * b).sum())
    ratio = float((a * b).sum()) / norm if norm > 0 else 0.0
    if a.ndim == 0:
        # So many digits that the two differ: "1 times" would say that nothing is wrong.
        times = f" ({_digits(ratio, 1.0, (3, 5, 8, 12))} times)" if ratio else ""
        return (f"is {_digits(a, b)}, expected {_digits(b, a)}{times}",)
    place = tuple(int(index) for index in np.argwhere(~near)[0])
    first = f"(first difference at {list(place)}: got {a[place]:.6g}, expected {b[place]:.6g})"
    if not a.any():
        return "is zero everywhere", first
    close = np.allclose(a, ratio * b, rtol=max(tolerance, 1e-4), atol=tolerance)
    if a.size > 1 and ratio and f"{ratio:.3f}" != "1.000" and close:
        return f"is {ratio:.3f} times what is expected", first
    return f"differs in {int((~near).sum())} of {a.size} places", first


def _digits(one: Any, other: Any, tried: tuple[int, ...] = (6, 9, 12)) -> str:
    """The number with as many digits as tell it from the other one."""
    digits = next((d for d in tried if f"{float(one):.{d}g}" != f"{float(other):.{d}g}"), 17)
    return f"{float(one):.{digits}g}"


def _array(value: Any) -> np.ndarray:
    value = list(value) if isinstance(value, _READ_ONCE) else value
    if isinstance(value, list | tuple) and any(_is_tensor(item) for item in value):
        value = np.stack([_array(item) for item in value])
    if _is_tensor(value):
        value = value.detach().double().cpu().numpy()
    return np.asarray(value, dtype=np.float64)
