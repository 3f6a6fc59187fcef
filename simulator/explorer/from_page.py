"""What a page sends, as a dataclass: every name is known, every value is checked by the class itself."""

from __future__ import annotations

import json
from dataclasses import Field, asdict, fields
from typing import Any, ClassVar, Self
from urllib.parse import urlencode


class FromPage:
    """For frozen dataclasses: made from what a page sends, and back."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

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

    def address(self) -> str:
        """What stands behind the # of a page's address when it shows this: the first value, and what is no default."""
        shown = [field for field in fields(self) if getattr(self, field.name) != field.default]
        named = {field.name: getattr(self, field.name) for field in dict.fromkeys([fields(self)[0], *shown])}
        texts = {
            k: v if isinstance(v, str) else json.dumps(v, separators=(",", ":")) for k, v in named.items()
        }
        return urlencode(texts)
