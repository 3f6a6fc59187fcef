"""Numbers with their units, as tables and pictures print them."""

from __future__ import annotations

from collections.abc import Sequence

# unit -> its multiples, largest first; sizes are decimal, as vendors and papers count them
_PREFIXES = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")]


_SCALES: dict[str, list[tuple[float, str]]] = {
    "B": [(factor, prefix + "B") for factor, prefix in _PREFIXES],
    "B/s": [(factor, prefix + "B/s") for factor, prefix in _PREFIXES],
    "FLOP": [(factor, prefix + "FLOP") for factor, prefix in _PREFIXES],
    "FLOP/s": [(factor, prefix + "FLOP/s") for factor, prefix in _PREFIXES],
    "s": [(3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")],
    "%": [(0.01, "%")],
    "": [(1, "")],
}


def scale_of(value: float, unit: str) -> tuple[float, str]:
    """The multiple of ``unit`` in which ``value`` reads best, and its name.

    >>> scale_of(67.1e6, "B")
    (1000000.0, 'MB')
    """
    if unit not in _SCALES:
        raise ValueError(f"unit {unit!r} is not known; known are {', '.join(map(repr, _SCALES))}")
    scales = _SCALES[unit]
    return next(((f, name) for f, name in scales if abs(value) >= f), scales[-1] if value else (1, unit))


def unit_named(name: str) -> tuple[str, float] | None:
    """The base unit of a unit's name, and how many of it one is; ``None`` where the name is not known.

    >>> unit_named("MB"), unit_named("%"), unit_named("GPUs")
    (('B', 1000000.0), ('%', 0.01), None)
    """
    return next(((b, f) for b, scales in _SCALES.items() for f, n in scales if n == name), None)


def amount(value: float, unit: str = "") -> str:
    """A number with its unit, to three or four digits.

    >>> amount(67_108_864, "B"), amount(0.00125, "s"), amount(11_689_512), amount(0.25, "%")
    ('67.1 MB', '1.25 ms', '11,689,512', '25 %')
    """
    factor, name = scale_of(value, unit)
    return f"{same_digits([value / factor])[0]} {name}".strip()


def same_digits(values: Sequence[float | None]) -> list[str | None]:
    """Numbers that stand side by side, all with as many decimals as the largest of them needs."""
    known = [value for value in values if value is not None]
    largest = max(map(abs, known), default=0)
    whole = all(float(value).is_integer() for value in known)
    decimals = 0 if whole else 1 if largest >= 10 else 2 if largest >= 1 else 3
    return [None if value is None else f"{value:,.{decimals}f}" for value in values]
