"""What an answer prints while it is checked: no fact, and shown only to whoever looks for a mistake."""

from __future__ import annotations

PRINTED_LIMIT = 1_000_000  # characters an answer may print during one check
PRINTED_SHOWN = 20  # lines of them shown when the check fails


class Printed:
    """Stands in for stdout while a check runs: what the answer prints is no fact."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0

    def write(self, text: str) -> int:
        self._size += len(text)
        if self._size > PRINTED_LIMIT:
            raise RuntimeError(f"the answer printed more than {PRINTED_LIMIT:,} characters")
        self._parts.append(text)
        return len(text)

    def flush(self) -> None:
        pass

    def show(self) -> None:
        """Print the first lines, for whoever put a ``print`` there to find out."""
        lines = "".join(self._parts).splitlines()
        if lines:
            print("  your answer printed:")
            for line in lines[:PRINTED_SHOWN]:
                print(f"    {line[:200]}")
            if len(lines) > PRINTED_SHOWN:
                print(f"    … and {len(lines) - PRINTED_SHOWN:,} more lines")
