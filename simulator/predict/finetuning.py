"""What fine-tuning keeps for its backward when only a part of a BERT is trained.

A matrix needs its input for the gradient of its own weight, so a frozen matrix keeps no input. All else (query, key and
value, the scores, the input of GELU, dropout masks, the inputs of norms) is kept to pass a gradient on, wherever there
is something trained at or below that place. The terms are those of arXiv:2205.05198, section 4.1, for a layer whose
norms stand behind the residuals.
"""

from __future__ import annotations

from collections.abc import Collection

from simulator.inputs.checks import at_least, one_of, yes_or_no
from simulator.inputs.shape import ModelShape

MATRICES = ("query", "key", "value", "projection", "up", "down")


def kept_terms(
    shape: ModelShape,
    batch: int,
    trained: Collection[str] = MATRICES,
    *,
    rank: int = 0,
    below: bool = True,
    itemsize: int = 4,
    mask_itemsize: int = 1,
) -> dict[str, float]:
    """Bytes that one layer keeps, by what they are; what is not kept has 0.

    Attention computes the scores as a matrix, as PyTorch does on a CPU where dropout is on.

    Args:
        shape: its ``sequence``, ``hidden``, ``heads``, ``ffn`` and ``dropout`` count.
        trained: the matrices that are trained, from ``MATRICES``, or that have LoRA beside them.
        rank: of LoRA, which keeps A x for each of these matrices; 0: the matrices themselves are trained.
        below: something below this layer is trained, so that a gradient passes through all of it.
        mask_itemsize: bytes of one element of a dropout mask: 1 on a GPU, ``itemsize`` on a CPU.
    """
    at_least(1, batch=batch, itemsize=itemsize, mask_itemsize=mask_itemsize)
    at_least(0, rank=rank)
    yes_or_no(below=below)
    for name in trained:
        one_of("trained", name, MATRICES)
    own = {name: name in trained for name in MATRICES}
    q, k, v = (below or own[name] for name in ("query", "key", "value"))  # which get a gradient
    attended = q or k or v
    after_projection = attended or own["projection"]
    after_up = after_projection or own["up"]
    after_down = after_up or own["down"]

    tokens = batch * shape.sequence
    wide, inner = tokens * shape.hidden, tokens * shape.ffn
    scores = batch * shape.heads * shape.sequence**2
    dropped = 1 if shape.dropout else 0
    norm = wide + 2 * tokens  # its input, and a mean and a deviation for each token
    kept: dict[str, float] = {
        "input of query, key and value": wide * any(own[name] for name in ("query", "key", "value")),
        "query, key and value": wide * (k + q + (q or k)),  # a gradient of q needs k, and the other way round
        "softmax of the scores": scores * (q or k),
        "softmax after dropout": scores * v * (dropped or not (q or k)),
        "input of the projection": wide * own["projection"],
        "inputs of the two norms": norm * after_projection + norm * after_down,
        "input of the first linear layer": wide * own["up"],
        "input of GELU": inner * after_up,
        "input of the second linear layer": inner * own["down"],
        "A x of LoRA": tokens * rank * sum(own.values()),
    }
    masks = dropped * (scores * (q or k) + wide * after_projection + wide * after_down)
    return {name: itemsize * count for name, count in kept.items()} | {"dropout masks": mask_itemsize * masks}


def kept_activations(
    shape: ModelShape,
    batch: int,
    trained: Collection[str] = MATRICES,
    *,
    rank: int = 0,
    embeddings: bool = False,
    itemsize: int = 4,
    mask_itemsize: int = 1,
) -> float:
    """Bytes that the embeddings and all layers keep; a few vectors of the pooler and the classifier are left out.

    Args:
        trained, rank: see ``kept_terms``; the same in every layer.
        embeddings: something in or below the embeddings' norm is trained (its bias, a soft prompt).
    """
    yes_or_no(embeddings=embeddings)
    sizes = {"rank": rank, "itemsize": itemsize, "mask_itemsize": mask_itemsize}
    first = sum(kept_terms(shape, batch, trained, below=embeddings, **sizes).values())
    other = sum(kept_terms(shape, batch, trained, below=embeddings or bool(trained), **sizes).values())
    tokens = batch * shape.sequence
    norm = itemsize * (tokens * shape.hidden + 2 * tokens)
    mask = mask_itemsize * tokens * shape.hidden if shape.dropout else 0
    return first + (shape.layers - 1) * other + embeddings * (norm + mask)
