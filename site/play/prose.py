"""The sentences above a cell: the end of the notebook's Markdown, as HTML, with its simple formulas."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt

MOST = 1200  # letters above one cell; what comes earlier is read in the chapter
SIGNS = {r"\times": "×", r"\cdot": "·", r"\top": "⊤", r"\,": "\u202f", "-": "−"}
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")


def heading(markdown: str) -> str:
    """The last heading of a Markdown cell as plain text, or an empty string."""
    found = re.findall(r"^##+ (.*)$", markdown, re.MULTILINE)
    return found[-1] if found else ""


def sentences(markdown: str, gap: bool = False) -> str:
    """The last paragraphs of a Markdown cell below its last heading, as HTML.

    Tables, lists and displayed formulas end it: what is said above them is read in the chapter. Links inside of
    the course become plain words.

    Args:
        gap: whether the first paragraph may be about a cell that is not on the page: then, if there is no heading
            below which another subject begins, only the last paragraph is taken.
    """
    most = 0 if gap and not heading(markdown) else MOST
    body = re.split(r"^##+ .*$", markdown, flags=re.MULTILINE)[-1].strip()
    kept: list[str] = []
    for block in reversed(re.split(r"\n\s*\n", body)):
        is_paragraph = not re.match(r"\s*(\||[-*] |\d+\. |\$\$|```|>|<)", block)
        if kept and (not is_paragraph or sum(map(len, kept)) + len(block) > most):
            break
        if is_paragraph:
            kept.insert(0, block)
    text = LINK.sub(r"\1", "\n\n".join(kept))
    formulas: list[str] = []

    def put_aside(match: re.Match) -> str:
        formulas.append(formula(match[1]))
        return f"\ue000{len(formulas) - 1}\ue001"

    html = MarkdownIt("commonmark").render(re.sub(r"\$([^$]+)\$", put_aside, text))
    return re.sub("\ue000(\\d+)\ue001", lambda match: formulas[int(match[1])], html)


def formula(tex: str) -> str:
    """A short formula as HTML: letters in italics, powers raised, fractions on one line."""
    tex = re.sub(
        r"\\frac\{([^{}]*)\}\{([^{}]*)\}(\()?", lambda m: f"{m[1]}/{m[2]}" + (" · (" if m[3] else ""), tex
    )
    for sign, shown in SIGNS.items():
        tex = tex.replace(sign, shown)
    if left := re.search(r"\\\w+", tex):
        raise ValueError(f"the formula {tex!r} has {left[0]}, which prose.py cannot show")
    tex = re.sub(r"\s*([=+×·−])\s*", " \\1 ", tex).strip()
    tex = re.sub(r"[A-Za-z]", r"<i>\g<0></i>", tex)
    return re.sub(r"([\^_])(?:\{([^{}]*)\}|(\S(?:[^<]</i>)?|<i>.</i>))", _raised, tex)


def _raised(match: re.Match) -> str:
    tag = "sup" if match[1] == "^" else "sub"
    return f"<{tag}>{match[2] or match[3]}</{tag}>"
