"""What a page sends, as a dataclass: every name is known, every value is checked by the class itself."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, Self


class FromPage:
    """For frozen dataclasses: made from what a page sends, and back."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """The question that a page sends: names it does not know are refused.

        Raises:
            ValueError: a name or a value is wrong, in one sentence.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(values.keys() - known):
            raise ValueError(
                f"there is nothing called {unknown[0]!r}: choose from {', '.join(sorted(known))}"
            )
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """Name -> value, for a page."""
        return asdict(self)
