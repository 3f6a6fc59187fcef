"""Published tokenizers, read from their files where a package brings them."""

import json
from importlib.util import find_spec

import pytest

from course_lib.text import published
from course_lib.text.published import (
    NAMES,
    NEXT_MESSAGE,
    RECORDED,
    SENTENCES,
    TRANSLATED,
    RankedBytes,
    chinese_pieces,
    pieces,
)

HERE = {name: find_spec(name) is not None for name in ("mistral_common", "dashscope")}
BRINGS = {"Mistral 7B": "mistral_common", "Tekken": "mistral_common", "Qwen": "dashscope"}


def test_ranks_merge_the_lowest_first():
    ranks = {bytes([b]): b for b in range(256)} | {b"bc": 256, b"ab": 257, b"abc": 258}
    tokenizer = RankedBytes(ranks, r"\p{L}+|\s+")
    assert tokenizer.pieces("abc ab") == [b"abc", b" ", b"ab"]
    assert tokenizer.cut(b"abcd") == [b"abc", b"d"]
    assert tokenizer.encode("猫") == [*"猫".encode()]


@pytest.mark.parametrize("name", NAMES)
def test_the_sentences_of_the_chapter_are_cut_with_and_without_the_packages(name):
    counts = {language: len(pieces(name, text)) for language, text in SENTENCES.items()}
    assert counts["English"] in (11, 12)
    assert counts["Chinese"] == {"MiniLM": 21, "Mistral 7B": 32, "Tekken": 28, "Qwen": 16}[name]
    if name != "MiniLM":
        greek = pieces(name, TRANSLATED["Greek"])
        assert len(greek) == {"Mistral 7B": 60, "Tekken": 28, "Qwen": 47}[name]


@pytest.mark.parametrize("name", NAMES[1:])
def test_what_was_recorded_is_what_the_package_does(name):
    if not HERE[BRINGS[name]]:
        pytest.skip(f"{BRINGS[name]} is not installed")
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    for text in (*SENTENCES.values(), *TRANSLATED.values()):
        assert published._cutter(name)(text) == recorded[text][name]


@pytest.mark.parametrize(("name", "load"), [("Tekken", "load_tekken"), ("Qwen", "load_qwen")])
def test_the_library_of_these_files_cuts_the_same(name, load):
    tiktoken = pytest.importorskip("tiktoken")
    if not HERE[BRINGS[name]]:
        pytest.skip(f"{BRINGS[name]} is not installed")
    ours = getattr(published, load)()
    theirs = tiktoken.Encoding(
        name, pat_str=ours.words.pattern, mergeable_ranks=ours.ranks, special_tokens={}
    )
    for text in (*SENTENCES.values(), "It's 1,234.5 naïve\n\n\tŁódź 東京 🙂 don't", ""):
        assert ours.encode(text) == theirs.encode(text)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(published, "find_spec", lambda name: None)
    published._cutter.cache_clear()
    published.load_qwen.cache_clear()
    try:
        with pytest.raises(ValueError, match="pip install --no-deps dashscope"):
            pieces("Qwen", "a text that nobody recorded")
        assert len(pieces("Qwen", SENTENCES["Chinese"])) == 16
    finally:
        published._cutter.cache_clear()
    with pytest.raises(ValueError, match="no tokenizer is called 'GPT-9'"):
        pieces("GPT-9", "a")


def test_mistral_has_three_pieces_of_several_chinese_characters():
    known = chinese_pieces()
    assert [piece for piece in known if len(piece) > 1] == ["数据", "获取", "一个"]
    if HERE["mistral_common"]:
        assert known == published._chinese_pieces()
    assert (len(pieces("Mistral 7B", NEXT_MESSAGE)), len(pieces("Qwen", NEXT_MESSAGE))) == (22, 16)
