"""The memory calculator: what each rank holds under a plan, whether it fits, and the smallest changes that help."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from simulator.explorer.formulas import formulas
from simulator.explorer.from_page import FromPage
from simulator.inputs.checks import one_of
from simulator.inputs.hardware import Hardware
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.placement import SCHEDULES
from simulator.inputs.plan import ATTENTION, GRADIENTS, OPTIMIZERS, PRECISIONS, RECOMPUTE, Plan
from simulator.inputs.shape import ModelShape
from simulator.planner.fitting import changes_that_fit, largest_micro_batch
from simulator.plots.style import human
from simulator.predict.memory import plan_memory

# What the page's formulas do not know: two kinds of layers, latent attention, experts with a width of their own.
UNKNOWN = ("decoder_layers", "dense_layers", "kv_rank", "expert_ffn", "norm_biases", "other_layer_parameters")
PAGE_MODELS = {name: shape for name, shape in MODELS.items() if not any(getattr(shape, f) for f in UNKNOWN)}

CHOICES = {
    "model": tuple(PAGE_MODELS),
    "gpu": tuple(GPUS),
    "schedule": tuple(SCHEDULES),
    "zero": (0, 1, 2, 3),
    "recompute": tuple(way for way in RECOMPUTE if way != "offload"),
    "precision": tuple(PRECISIONS),
    "optimizer": tuple(name for name in OPTIMIZERS if name != "muon"),
    "gradients": GRADIENTS,
    "sequence_parallel": (False, True),
    "attention": (None, *ATTENTION),
}


@dataclass(frozen=True)
class MemoryQuestion(FromPage):
    """A model, a plan and a device.

    Args:
        model, gpu: names that the simulator knows.
        sequence: tokens of a sequence; None: as many as the model was trained with.
        dp, tp, pp, cp, zero, micro_batch, microbatches, schedule, recompute, precision, optimizer, gradients,
            sequence_parallel, attention: as for ``Plan``.
    """

    model: str = "llama-3-8b"
    gpu: str = "h100"
    sequence: int | None = None
    dp: int = 8
    tp: int = 1
    pp: int = 1
    cp: int = 1
    zero: int = 3
    micro_batch: int = 1
    microbatches: int | None = None
    schedule: str = "1f1b"
    recompute: str = "none"
    precision: str = "mixed"
    optimizer: str = "adam"
    gradients: str = "same"
    sequence_parallel: bool = False
    attention: str | None = None

    def __post_init__(self) -> None:
        for name, accepted in CHOICES.items():
            one_of(name, getattr(self, name), accepted)
        self.plan.check(self.shape)

    @property
    def shape(self) -> ModelShape:
        shape = MODELS[self.model]
        return shape if self.sequence is None else replace(shape, sequence=self.sequence)

    @property
    def hardware(self) -> Hardware:
        return GPUS[self.gpu]

    @property
    def plan(self) -> Plan:
        """The plan on the device, so that nothing is left open."""
        names = {field.name for field in fields(Plan)}
        return Plan(**{name: value for name, value in self.as_dict().items() if name in names}).on(
            self.hardware
        )


def known() -> dict[str, Any]:
    """What a page must be told to compute by itself: the values that are accepted, models, and devices."""
    needed = ("name", "memory", "attention", "fp8_flops", "context", "fragmentation")
    devices = {name: {part: getattr(gpu, part) for part in needed} for name, gpu in GPUS.items()}
    return {
        "choices": CHOICES,
        "models": {name: asdict(shape) for name, shape in PAGE_MODELS.items()},
        "gpus": devices,
    }


def calculate(question: MemoryQuestion) -> dict[str, Any]:
    """What a page draws: for the ranks of every stage bytes with their formulas, the verdict, changes that fit."""
    shape, plan, hardware = question.shape, question.plan, question.hardware
    held = plan_memory(shape, plan, hardware)
    peak = max(rank.occupied for rank in held)
    fitting = peak <= hardware.memory
    devices = "1 device" if plan.ranks == 1 else f"{plan.ranks} devices"
    return {
        "ranks": [
            {
                name: {"bytes": size, "terms": [list(term) for term in terms]}
                for (name, size), terms in zip(
                    memory.as_dict().items(),
                    formulas(shape, plan, rank, memory, hardware).values(),
                    strict=True,
                )
            }
            for rank, memory in enumerate(held)
        ],
        "names": names(question),
        "capacity": hardware.memory,
        "about": f"{question.model} has {shape.parameters / 1e9:.4g} billion parameters; the plan takes {devices}.",
        "fits": fitting,
        "verdict": _verdict(question, peak),
        "changes": [] if fitting else _changes(question),
    }


def names(question: MemoryQuestion) -> list[str]:
    """What stands at each bar: the stages that its ranks hold. Without a pipeline all ranks hold equally much.

    >>> names(MemoryQuestion("llama-2-7b", "h100", dp=2, pp=2))
    ['stage 0', 'stage 1']
    >>> names(MemoryQuestion("llama-2-7b", "h100", pp=2, schedule="zb-v"))
    ['stages 0, 3', 'stages 1, 2']
    """
    if question.pp == 1:
        return ["each rank"]
    held = [question.plan.stages_of(rank) for rank in range(question.pp)]
    return [f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}" for stages in held]


def _verdict(question: MemoryQuestion, peak: float) -> str:
    capacity = human(question.hardware.memory)
    if peak > question.hardware.memory:
        return (
            f"It does not fit: the fullest rank needs {human(peak)}, and one {question.gpu} has {capacity}."
        )
    largest = largest_micro_batch(
        question.plan,
        lambda plan: plan_memory(question.shape, plan, question.hardware),
        question.hardware.memory,
    )
    return (
        f"It fits: the fullest rank needs {human(peak)}, and one {question.gpu} has {capacity}. "
        f"The largest microbatch that fits has {largest} {'sequence' if largest == 1 else 'sequences'}."
    )


def _changes(question: MemoryQuestion) -> list[dict[str, Any]]:
    """Single changes after which it fits, each as values of the question."""
    found = changes_that_fit(
        question.plan,
        lambda plan: plan_memory(question.shape, plan, question.hardware),
        question.hardware.memory,
    )
    known = question.as_dict()
    changes = ({name: value for name, value in change.items() if name in known} for change in found)
    return [change for change in changes if _can_be_asked(question, change)]


def _can_be_asked(question: MemoryQuestion, change: dict[str, Any]) -> bool:
    try:
        replace(question, **change)
    except ValueError:
        return False
    return True
