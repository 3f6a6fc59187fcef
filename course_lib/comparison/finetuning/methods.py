"""The ways of fine-tuning a classifier that are compared, and for each what is tried: starts and learning rates.

The linear probe is not here: it trains no model, and ``probe.py`` has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from course_lib.finetuning.methods import TUNINGS
from course_lib.models.bert import BertClassifier
from course_lib.train.tuning import tune
from simulator.predict.finetuning import MATRICES

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
        tuning: its name in ``finetuning.methods.TUNINGS``.
        starts: initialisations that are tried, each with the settings of the tuning.
        lrs: learning rates that are tried with each of them.
        keeps: None where no formula says what is kept.
        variant: what a tuning of several rows has in its title.
    """

    tuning: str
    starts: dict[str, dict[str, Any]]
    lrs: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
    keeps: Keeps | None = None
    variant: str = ""

    @property
    def title(self) -> str:
        return TUNINGS[self.tuning].title + self.variant

    def adapt(self, model: BertClassifier, start: str) -> None:
        """In place, and all else is frozen, but for the new classifier."""
        tune(model, self.tuning, **self.starts[start])


def _lora_methods() -> dict[str, Method]:
    """Alpha is twice the rank, so ΔW has the scale 2 at every rank."""
    places = {
        "qv": (("query", "value"), ("query", "value"), "query and value"),
        "all": (ALL_MATRICES, MATRICES, "all six matrices"),
    }
    return {
        f"lora-{place}-r{rank}": Method(
            "lora",
            {"": {"targets": targets, "rank": rank, "alpha": 2 * rank}},
            keeps=Keeps(matrices, rank),
            variant=f", rank {rank}, {what}",
        )
        for place, (targets, matrices, what) in places.items()
        for rank in (1, 2, 4, 8, 16)
    }


# A text to start from, as ids of MiniLM's vocabulary: "is the order of the words in this sentence right"
TEXT = (2003, 1996, 2344, 1997, 1996, 2616, 1999, 2023, 6251, 2157)

TOKENS = {"tokens": VIRTUAL_TOKENS}

METHODS: dict[str, Method] = {
    "full": Method("full", {"": {}}, (1e-5, 3e-5, 1e-4, 3e-4, 1e-3), Keeps(MATRICES, embeddings=True)),
    "head": Method("head", {"": {}}, HIGH, Keeps()),
    "bias": Method("bias", {"": {}}, keeps=Keeps(embeddings=True)),
    **_lora_methods(),
    **{
        f"adapter-{kind}": Method("adapter", {"": {"width": 16, "kind": kind}}, variant=f" ({kind.title()})")
        for kind in ("houlsby", "pfeiffer")
    },
    "llama-adapter": Method("llama-adapter", {"": {"length": VIRTUAL_TOKENS}}),
    "side": Method("side", {"": {}}),
    "prompt": Method(
        "prompt",
        {
            "random": {"start": "random", **TOKENS},
            "vocabulary": {"start": "vocabulary", **TOKENS},
            "text": {"start": TEXT, **TOKENS},
        },
        HIGH,
        Keeps(embeddings=True, virtual_tokens=VIRTUAL_TOKENS),
    ),
    "p-tuning": Method(
        "p-tuning",
        {"lstm": {"encoder": "lstm", **TOKENS}, "mlp": {"encoder": "mlp", **TOKENS}},
        keeps=Keeps(embeddings=True, virtual_tokens=VIRTUAL_TOKENS),
    ),
    "prefix": Method("prefix", {"": TOKENS}),
    "p-tuning-v2": Method("p-tuning-v2", {"random": TOKENS, "text": {"start": TEXT, **TOKENS}}, HIGH),
}
NAMES = (PROBE, *METHODS)  # the table's order
# In this order they are run, so that a comparison that is stopped early has what says most.
BY_IMPORTANCE = (
    *("full", "lora-all-r8", PROBE, "head", "lora-qv-r8", "bias", "adapter-pfeiffer"),
    *(
        "adapter-houlsby",
        "prefix",
        "p-tuning-v2",
        "llama-adapter",
        "side",
        "prompt",
        "p-tuning",
        "lora-all-r1",
        "lora-all-r4",
        "lora-all-r16",
    ),
    *("lora-qv-r1", "lora-qv-r4", "lora-qv-r16", "lora-all-r2", "lora-qv-r2"),
)
