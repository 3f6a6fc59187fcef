"""How many parameters papers print that their method trains, beside the number that follows from the shapes.

Each model is built on the meta device, where it takes no memory. The method is applied as the course applies it, and
what is trained is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from course_lib.finetuning.adapter import add_adapters, add_llama_adapter
from course_lib.finetuning.freeze import ParameterCount, count_parameters, mark_only_as_trainable
from course_lib.finetuning.lora_apply import apply_lora, mark_only_lora_as_trainable
from course_lib.finetuning.prompt import add_prompt
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table

_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
BERT_LARGE, ROBERTA_BASE = BertConfig(**_LARGE), BertConfig(**_ROBERTA)
ROBERTA_LARGE = BertConfig(**_LARGE, **_ROBERTA)
GPT2_MEDIUM = GPTConfig(vocab_size=50257, max_length=1024, num_layers=24, num_heads=16, hidden_size=1024)
GPT_3 = GPTConfig(vocab_size=50257, max_length=2048, num_layers=96, num_heads=96, hidden_size=12288)
# A soft prompt's size depends on the width alone: a GPT of one layer as wide as T5-XXL has the same prompt.
AS_WIDE_AS_T5_XXL = GPTConfig.tiny(num_layers=1, hidden_size=4096)
SCALES = {"M": 1e6, "%": 1.0, "": 1.0}


@dataclass(frozen=True)
class Count:
    """One printed figure.

    Attributes:
        method: ``"LoRA"``, ``"adapters"``, ``"LLaMA-Adapter"``, ``"BitFit"`` or ``"prompt tuning"``.
        formula: what is counted, with the shape's numbers in it.
        computed: trained parameters, or per cent of the model where the paper prints that; None: it cannot be computed.
        printed: as the paper prints it: ``"37.7 M"``, ``"0.08 %"``, ``"20,480"``; a formula with its value behind "=".
        note: why the two differ, or why nothing can be computed.
    """

    method: str
    model: str
    formula: str
    computed: float | None
    printed: str
    source: str
    note: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the two differ by less than one in the last printed digit: papers round, and some cut off."""
        number, digits, unit = self._figure
        return self.computed is not None and abs(self.computed / SCALES[unit] - number) < 10**-digits

    @property
    def said(self) -> str:
        """The computed number in the paper's unit, with one digit more where it was rounded."""
        if self.computed is None:
            return "cannot be computed"
        _, digits, unit = self._figure
        return f"{self.computed / SCALES[unit]:,.{digits + bool(unit)}f} {unit}".strip()

    @property
    def _figure(self) -> tuple[float, int, str]:
        """The printed number, its decimals and its unit."""
        number, _, unit = self.printed.rpartition("= ")[2].partition(" ")
        return float(number.replace(",", "")), len(number.partition(".")[2]), unit


def published_counts(*methods: str) -> list[Count]:
    """The printed figures of these methods; without names, of all.

    Raises:
        ValueError: a method of which no figure is kept here.
    """
    for method in methods:
        if method not in _COUNTS:
            raise ValueError(f"no figure of {method!r} is kept; choose from {', '.join(_COUNTS)}.")
    with torch.device("meta"):
        return [count for method in methods or _COUNTS for count in _COUNTS[method]()]


def counts_table(*methods: str) -> Shown:
    """``published_counts`` as a table. Where the two numbers are not equal, the printed one is marked."""
    rows = [
        [f"{c.method}, {c.model}", c.formula, c.said, c.printed + ("" if c.agrees else ", differs"), c.source]
        for c in published_counts(*methods)
    ]
    return table(["method and model", "trained", "computed", "printed", "where"], rows)


@cache
def _lora() -> list[Count]:
    paper = "arXiv:2106.09685, table "
    rows = (  # model, its class and configuration, matrices, rank, printed, source, note
        ("GPT-3 175B", GPT, GPT_3, ("query", "value"), 8, "37.7 M", "4", ""),
        ("GPT-3 175B", GPT, GPT_3, ("query", "value"), 1, "4.7 M", "4", ""),
        ("GPT-3 175B", GPT, GPT_3, ("query",), 8, "18 M", "5", ""),
        ("RoBERTa base", Bert, ROBERTA_BASE, ("query", "value"), 8, "0.3 M", "2", ""),
        ("RoBERTa large", Bert, ROBERTA_LARGE, ("query", "value"), 8, "0.8 M", "2", ""),
        (
            *("GPT-2 medium", GPT, GPT2_MEDIUM, ("query", "value"), 4, "0.35 M", "3"),
            "rank 4 on query and value gives more; the paper does not say what it counted",
        ),
    )
    counts = []
    for model, kind, config, targets, rank, printed, number, note in rows:
        layers = config.num_hidden_layers if kind is Bert else config.num_layers
        formula = f"2 × {layers * len(targets)} matrices × {config.hidden_size:,} × rank {rank}"
        trained = _count(kind(config), lambda m, t=targets, r=rank: _only_lora(m, t, r)).trainable
        counts.append(Count("LoRA", model, formula, trained, printed, paper + number, note))
    return counts


def _only_lora(model: nn.Module, targets: Sequence[str], rank: int) -> None:
    apply_lora(model, targets, rank=rank)
    mark_only_lora_as_trainable(model)


@cache
def _adapters() -> list[Count]:
    paper, d = "arXiv:1902.00751, ", BERT_LARGE.hidden_size
    m = 64
    one = count_parameters(add_adapters(Bert(BERT_LARGE), m)[0]).trainable
    printed = f"2md + d + m = {2 * m * d + d + m:,}"
    return [
        Count(
            "adapters", "BERT large", f"one adapter, m = {m}, d = {d:,}", one, printed, f"{paper}section 2.1"
        ),
        Count(
            *(
                "adapters",
                "BERT large on GLUE",
                "adapters and norms, mean over tasks",
                None,
                "3.6 %",
                f"{paper}table 1",
            ),
            "m was chosen from 8, 64 and 256 for each task; printed are two tasks' choices alone",
        ),
    ]


@cache
def _llama_adapter() -> list[Count]:
    """The printed figure counts the prompts, and leaves out a gate for each layer."""
    prompts = sum(a.P.numel() for a in add_llama_adapter(Llama(LlamaConfig()), K=10, layers=30))
    formula = "30 layers × 10 tokens × 4,096"
    return [Count("LLaMA-Adapter", "LLaMA-7B", formula, prompts, "1.2 M", "arXiv:2303.16199")]


@cache
def _bitfit() -> list[Count]:
    """Those of the queries and inside the MLPs, which the paper says are half of all biases."""
    count = _count(
        Bert(BERT_LARGE, pooler=True),
        lambda model: mark_only_as_trainable(model, ["attention.self.query.bias", "intermediate.dense.bias"]),
    )
    formula = f"biases of queries and inside MLPs: {count.trainable:,} of {count.total:,}"
    return [Count("BitFit", "BERT large", formula, count.percent, "0.04 %", "arXiv:2106.10199, section 1")]


@cache
def _prompt() -> list[Count]:
    trained = _count(GPT(AS_WIDE_AS_T5_XXL), lambda model: add_prompt(model, 5)).trainable
    return [Count("prompt tuning", "T5-XXL", "5 tokens × 4,096", trained, "20,480", "arXiv:2104.08691")]


_COUNTS: dict[str, Callable[[], list[Count]]] = {
    "LoRA": _lora,
    "adapters": _adapters,
    "LLaMA-Adapter": _llama_adapter,
    "BitFit": _bitfit,
    "prompt tuning": _prompt,
}


def _count(model: nn.Module, adapt: Callable[[nn.Module], object]) -> ParameterCount:
    adapt(model)
    return count_parameters(model)
