import unicodedata

import pytest
from tokenizers import normalizers

from course_lib.text.normalise import normalise


def test_each_form_joins_what_unicode_says():
    assert normalise("cafe\u0301", "NFC") == "caf\u00e9"
    assert normalise("ＬＬＭ ﬁne x²", "NFKC") == "LLM fine x2"
    assert normalise("ＬＬＭ", "NFC") == "ＬＬＭ"
    assert normalise("caf\u00e9", "NFD") == "cafe\u0301"
    assert normalise("a\u200bb\x00 \n c", None) == "ab c"


def test_case_and_accents_as_in_an_uncased_bert():
    library = normalizers.BertNormalizer(handle_chinese_chars=False)
    for text in ("Café ÉTÉ naïve", "Ångström\tÜber", "İstanbul"[1:]):
        assert normalise(text, None, lower=True, strip_accents=True) == " ".join(
            library.normalize_str(text).split()
        )
    assert normalise("Straße", lower=True) == "strasse"


def test_traditional_characters_are_no_unicode_form():
    text = "貓咪踢翻了滾燙的咖啡，頭髮與出發"
    for form in ("NFC", "NFKC", "NFD", "NFKD"):
        assert "貓" in normalise(text, form)
    assert normalise(text, "NFC", simplified=True) == "猫咪踢翻了滚烫的咖啡，头发与出发"
    assert unicodedata.is_normalized("NFC", text)


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="NFC, NFKC, NFD, NFKD"):
        normalise("a", "NFX")
