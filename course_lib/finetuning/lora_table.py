"""How a model with LoRA is cut by tensor parallelism: from a table of the plain model, one of the model with LoRA.

The styles are those of ``course_lib.tensor_parallel.apply``. Rank i has a part of W0, and the same part of B A:

    W0 cut by columns    B is cut as W0 is. Every rank has all of A, which is small; its gradient is a sum over the
                         ranks, because each rank's part of B gives a part of it.
    W0 cut by rows       A is cut as W0 is, and A_1 x_1 + … + A_p x_p is one more sum over the ranks, of r numbers
                         for each token. Every rank has all of B.

So each rank can merge what it holds, without a message. Sequence parallelism works on the same table.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from course_lib.finetuning.lora import LoRAMergedLinear
from course_lib.finetuning.lora_apply import lora_layers
from course_lib.finetuning.modules import name_matches

# style of the plain module -> those of A, B and dropout ("sequence": whole on every rank, for its share of the tokens)
STYLES: dict[str, tuple[str, str, str | None]] = {
    "column": ("copied", "column", None),
    "heads": ("copied", "heads", None),
    "kv heads": ("copied", "kv heads", None),
    "row": ("row", "sequence", "core"),
    "vocabulary": ("vocabulary", "sequence", None),
    "positions": ("positions", "sequence", None),
    "vocabulary head": ("sequence", "vocabulary head", "sequence"),
    "replicated": ("replicated", "replicated", None),
}


def lora_table(model: nn.Module, table: Mapping[str, str]) -> dict[str, str]:
    """A style for each module of a model with LoRA; of a model without it, the same table.

    >>> apply_tensor_parallel(model, mesh["tp"], lora_table(model, table_of(model)))  # doctest: +SKIP

    Args:
        table: for the plain model, ``*`` standing for one part of a name. Names that the model does not have are left
            out.

    Raises:
        ValueError: an adapted module that cannot be cut.
    """
    names = [name for name, _ in model.named_modules() if name]
    styles: dict[str, str] = {}
    for pattern, style in table.items():
        matching = (n for n in names if n.count(".") == pattern.count(".") and name_matches(n, pattern))
        styles |= dict.fromkeys(matching, style)
    for name, layer in lora_layers(model).items():
        style = styles.pop(name, None)
        if style is None:
            continue
        if style not in STYLES:
            raise ValueError(
                f"{name} has LoRA and the style {style!r}, which needs a module that LoRA does not adapt"
            )
        if isinstance(layer, LoRAMergedLinear) and style != "replicated":
            raise ValueError(
                f"{name} is several matrices in one, each of which would have to be cut: adapt separate ones"
            )
        a, b, dropout = STYLES[style]
        styles |= {f"{name}.base_layer": style, f"{name}.lora_A": a, f"{name}.lora_B": b}
        if dropout:
            styles[f"{name}.dropout"] = dropout
    return styles
