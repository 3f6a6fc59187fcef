"""The ways of fine-tuning a classifier that are compared, and for each what is tried: starts and learning rates.

The linear probe is not here: it trains no model, and ``probe.py`` has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from course_lib.finetuning.adapter import add_adapters
from course_lib.finetuning.freeze import mark_only_as_trainable, mark_only_biases_as_trainable
from course_lib.finetuning.lora_apply import apply_lora, mark_only_lora_as_trainable
from course_lib.finetuning.prefix import add_deep_prompts, add_prefix
from course_lib.finetuning.prompt import add_p_tuning, add_prompt
from course_lib.finetuning.side import add_side
from course_lib.models.bert import BertClassifier
from simulator.predict.finetuning import MATRICES

HEAD = ("classifier",)  # new, and trained by every method
VIRTUAL_TOKENS = 10
ALL_MATRICES = (
    "query",
    "key",
    "value",
    "attention.output.dense",
    "intermediate.dense",
    "layer.*.output.dense",
)
PROBE = "probe"
HIGH = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # learning rates where little is trained

Adapt = Callable[[BertClassifier], object]


@dataclass(frozen=True)
class Keeps:
    """What decides the activations that are kept for backward; see ``simulator.predict.finetuning``.

    Attributes:
        matrices: that are trained, or have LoRA of this rank beside them; the others keep no input.
        embeddings: something in the embeddings is trained, so that every layer passes a gradient on.
        virtual_tokens: before each text.
    """

    matrices: tuple[str, ...] = ()
    rank: int = 0
    embeddings: bool = False
    virtual_tokens: int = 0


@dataclass(frozen=True)
class Method:
    """One row of the table.

    Attributes:
        title: as the table calls it.
        starts: initialisations that are tried; each adapts a ``BertClassifier`` in place and freezes the rest.
        lrs: learning rates that are tried with each of them.
        keeps: None where no formula says what is kept.
    """

    title: str
    starts: dict[str, Adapt]
    lrs: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
    keeps: Keeps | None = None


def _full(model: BertClassifier) -> None:
    """All parameters; this is how a model comes."""
    model.requires_grad_(True)


def _lora(rank: int, targets: tuple[str, ...], model: BertClassifier) -> None:
    """Alpha is twice the rank, so ΔW has the scale 2 at every rank."""
    apply_lora(model.bert, targets, rank=rank, alpha=2 * rank)
    mark_only_lora_as_trainable(model, also=HEAD)


def _lora_methods() -> dict[str, Method]:
    places = {
        "qv": (("query", "value"), ("query", "value"), "query and value"),
        "all": (ALL_MATRICES, MATRICES, "all six matrices"),
    }
    return {
        f"lora-{place}-r{rank}": Method(
            f"LoRA, rank {rank}, {what}", {"": partial(_lora, rank, targets)}, keeps=Keeps(matrices, rank)
        )
        for place, (targets, matrices, what) in places.items()
        for rank in (1, 2, 4, 8, 16)
    }


def _adapters(kind: str, model: BertClassifier) -> None:
    add_adapters(model, m=16, kind=kind)


def _added(add: Callable[..., nn.Module], *args: object, **settings: object) -> Adapt:
    return lambda model: add(model, *args, **settings)


# A text to start from, as ids of MiniLM's vocabulary: "is the order of the words in this sentence right"
TEXT = (2003, 1996, 2344, 1997, 1996, 2616, 1999, 2023, 6251, 2157)

METHODS: dict[str, Method] = {
    "full": Method(
        "Full fine-tuning", {"": _full}, (1e-5, 3e-5, 1e-4, 3e-4, 1e-3), Keeps(MATRICES, embeddings=True)
    ),
    "head": Method("Head only", {"": partial(mark_only_as_trainable, trained=HEAD)}, HIGH, Keeps()),
    "bias": Method(
        "Biases only (BitFit)",
        {"": partial(mark_only_biases_as_trainable, also=HEAD)},
        keeps=Keeps(embeddings=True),
    ),
    **_lora_methods(),
    "houlsby": Method("Adapters (Houlsby)", {"": partial(_adapters, "houlsby")}),
    "pfeiffer": Method("Adapters (Pfeiffer)", {"": partial(_adapters, "pfeiffer")}),
    "side": Method("Side tuning", {"": _added(add_side)}),
    "prompt": Method(
        "Prompt tuning",
        {
            "random": _added(add_prompt, VIRTUAL_TOKENS, "random"),
            "vocabulary": _added(add_prompt, VIRTUAL_TOKENS, "vocabulary"),
            "text": _added(add_prompt, VIRTUAL_TOKENS, TEXT),
        },
        HIGH,
        Keeps(embeddings=True, virtual_tokens=VIRTUAL_TOKENS),
    ),
    "p-tuning": Method(
        "P-tuning",
        {
            "lstm": _added(add_p_tuning, VIRTUAL_TOKENS, "lstm"),
            "mlp": _added(add_p_tuning, VIRTUAL_TOKENS, "mlp"),
        },
        keeps=Keeps(embeddings=True, virtual_tokens=VIRTUAL_TOKENS),
    ),
    "prefix": Method("Prefix tuning", {"": _added(add_prefix, VIRTUAL_TOKENS)}),
    "p-tuning-v2": Method(
        "P-tuning v2",
        {
            "random": _added(add_deep_prompts, VIRTUAL_TOKENS),
            "text": _added(add_deep_prompts, VIRTUAL_TOKENS, TEXT),
        },
        HIGH,
    ),
}
NAMES = (PROBE, *METHODS)  # the table's order
# In this order they are run, so that a comparison that is stopped early has what says most.
BY_IMPORTANCE = (
    *("full", "lora-all-r8", PROBE, "head", "lora-qv-r8", "bias", "pfeiffer", "houlsby", "prefix"),
    *("p-tuning-v2", "side", "prompt", "p-tuning", "lora-all-r1", "lora-all-r4", "lora-all-r16"),
    *("lora-qv-r1", "lora-qv-r4", "lora-qv-r16", "lora-all-r2", "lora-qv-r2"),
)


def checked_names(text: str) -> tuple[str, ...]:
    """Names from a list with commas; ``"all"``: every method, those first that say most.

    Raises:
        ValueError: a name that no method has.
    """
    asked = BY_IMPORTANCE if text == "all" else tuple(name.strip() for name in text.split(","))
    for name in asked:
        if name not in NAMES:
            raise ValueError(f"methods has {name!r}; choose 'all', or from {', '.join(NAMES)}.")
    return tuple(dict.fromkeys(asked))
