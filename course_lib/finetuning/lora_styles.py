"""How tensor parallelism cuts a layer with LoRA: by the style that the plain module has in a model's table.

The styles are those of ``course_lib.tensor_parallel.apply``. Rank i has a part of W0, and the same part of B A:

    W0 cut by columns    B is cut as W0 is. Every rank has all of A, which is small; its gradient is a sum over the
                         ranks, because each rank's part of B gives a part of it.
    W0 cut by rows       A is cut as W0 is, and A_1 x_1 + … + A_p x_p is one more sum over the ranks, of r numbers
                         for each token. Every rank has all of B.

So each rank can merge what it holds, without a message. Sequence parallelism works with the same styles.
"""

from __future__ import annotations

# style of the plain module -> those of A, B and dropout ("sequence": whole on every rank, for its share of the tokens)
STYLES: dict[str, tuple[str, str, str | None]] = {
    "column": ("copied", "column", None),
    "heads": ("copied", "heads", None),
    "kv heads": ("copied", "kv heads", None),
    "grouped heads": ("copied", "grouped heads", None),
    "row": ("row", "sequence", "core"),
    "vocabulary": ("vocabulary", "sequence", None),
    "positions": ("positions", "sequence", None),
    "vocabulary head": ("sequence", "vocabulary head", "sequence"),
    "replicated": ("replicated", "replicated", None),
}


def lora_styles(style: str) -> dict[str, str]:
    """The styles of the layer's parts, by their names in it.

    >>> lora_styles("row")
    {'base_layer': 'row', 'lora_A': 'row', 'lora_B': 'sequence', 'dropout': 'core'}

    Raises:
        ValueError: a style of modules that LoRA does not adapt.
    """
    if style not in STYLES:
        raise ValueError(
            f"a layer with LoRA cannot have the style {style!r}: choose one of {', '.join(STYLES)}"
        )
    a, b, dropout = STYLES[style]
    return {"base_layer": style, "lora_A": a, "lora_B": b} | ({"dropout": dropout} if dropout else {})
