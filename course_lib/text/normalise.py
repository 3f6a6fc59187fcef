"""One way to write a text: Unicode forms, case, accents, traditional and simplified Chinese.

Unicode can write the same word in several ways, and a tokenizer takes them for different words. NFC joins a letter and
its accent where one character exists for both. NFKC also replaces what only looks different: full-width letters,
ligatures, a superscript. NFD and NFKD take accents apart.

Traditional characters are no form of the simplified ones, so no Unicode form joins them: that takes a table of words,
since one simplified character may stand for several traditional ones (发 for 發, to send, and for 髮, hair).
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Any

FORMS = ("NFC", "NFKC", "NFD", "NFKD")


def normalise(
    text: str,
    form: str | None = "NFKC",
    *,
    lower: bool = False,
    strip_accents: bool = False,
    simplified: bool = False,
) -> str:
    """``text`` in one way of writing. White space becomes single spaces, and control characters go.

    Args:
        form: one of Unicode's four, or None: the characters as they are.
        lower: no capitals, as for an uncased BERT. ``casefold`` makes ss of ß as well.
        strip_accents: é becomes e, as in an uncased BERT.
        simplified: traditional Chinese characters become simplified ones, by OpenCC's tables.

    Raises:
        ValueError: an unknown form.
    """
    if form is not None and form not in FORMS:
        raise ValueError(f"form is {form!r}; choose one of {', '.join(FORMS)}, or None.")
    text = unicodedata.normalize(form, text) if form else text
    text = "".join(c for c in text if c.isspace() or unicodedata.category(c) not in ("Cc", "Cf"))
    text = " ".join(text.split())
    if strip_accents:
        text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
        text = unicodedata.normalize(form or "NFC", text)
    if simplified:
        text = _to_simplified().convert(text)
    return text.casefold() if lower else text


@cache
def _to_simplified() -> Any:
    from opencc import OpenCC

    return OpenCC("t2s")
