"""Chapter 00's last table: on how few GPUs a model trains with Adam, as more of a step is divided or dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from course_lib.chapters.refused import Refused
from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table
from simulator.inputs.hardware import Hardware
from simulator.inputs.known_devices import GPUS, find_device
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.memory import plan_memory

SMALLEST, LARGEST = 1e8, 1e13  # parameters of a model without a name
MOST = 2**20  # copies; what does not fit on so many fits on no number


def fewest_gpus(model: str | float | ModelShape, gpu: str | float) -> Shown:
    """A row for each step of chapter 00 that helps: the fewest GPUs, its cost, its call in PyTorch, and its chapter.

    The last row has the largest GPT that one such GPU trains alone, with activations computed again. Each group of GPUs
    trains on one text at a time, as long as the model was trained with.

    Args:
        model: a name that the simulator knows, the sizes of another model, or only how many parameters it has: about
            so many are then given to a GPT, in the proportions of GPT-3.
        gpu: a name that it knows, or the GB of another GPU, which is otherwise like an H100.

    Raises:
        Refused: there is no such model or GPU, or no GPU with such a memory.
    """
    shape = _shape_of(model)
    device = _device_of(gpu)
    shared = {tp: _fewest(shape, device, tp=tp, recompute="full") for tp in (1, 2, 4, 8) if _cuts(shape, tp)}
    fitting = {tp: copies * tp for tp, copies in shared.items() if copies}
    tp = min(fitting, key=lambda width: (fitting[width], width), default=1)
    states, matrices = ceil(16 * shape.parameters / device.memory), f"and share matrices, tp={tp}"
    largest = _largest(device)
    alone = f"train a GPT of {largest / 1e9:.1f} billion weights instead"
    rows = [
        ["hold 16 bytes for each weight, divided", states, "each layer is gathered", "fully_shard", "06, 07"],
        [f"and train on {shape.sequence:,} tokens each", _fewest(shape, device) or "no number", "", "", "03"],
        ["and compute activations again", shared[1] or "no number", "a second forward", "checkpoint", "08"],
        [matrices, fitting.get(tp), "messages in every layer", "parallelize_module", "09"],
        [alone, 1 if largest else "no number", "a second forward", "checkpoint", "08"],
    ]  # fmt: skip
    rows = [row for row in rows if tp > 1 or row[0] != matrices]  # shared by one, they are not shared
    return table(["GPUs that", "at least", "costs", "in PyTorch", "chapter"], rows)


def _device_of(gpu: str | float) -> Hardware:
    if isinstance(gpu, str):
        try:
            return find_device(gpu)
        except ValueError:
            known = ", ".join(GPUS)
            raise Refused(f"the GPU must be one of {known}, or its GB, such as 24, not {gpu!r}") from None
    if not 1 <= gpu <= 1000:
        raise Refused(f"the memory of a GPU must be 1 to 1,000 GB, not {gpu}")
    return replace(GPUS["h100"], memory=gpu * 1e9)


def _shape_of(model: str | float | ModelShape) -> ModelShape:
    if isinstance(model, ModelShape):
        return model
    if isinstance(model, (int, float)):
        return _gpt_of(model)
    if model not in MODELS:
        known = ", ".join(MODELS)
        raise Refused(f"the model must be one of {known}, or a number of parameters, not {model!r}")
    return MODELS[model]


def _gpt_of(parameters: float) -> ModelShape:
    """As GPT-3: h = 128 l, so 12 l h^2 = 12 h^3 / 128; by eight heads of 128, which tensor parallelism can divide."""
    if not SMALLEST <= parameters <= LARGEST:
        raise Refused(
            f"the parameters must be {SMALLEST:.0e} to {LARGEST:.0e}, such as 7e9, not {parameters}"
        )
    gpt3 = MODELS["gpt3-175b"]
    heads = 8 * max(1, round((128 * parameters / 12) ** (1 / 3) / 1024))
    hidden = 128 * heads
    layers = max(1, round((parameters - gpt3.vocab * hidden) / (12 * hidden**2)))
    return replace(gpt3, layers=layers, hidden=hidden, heads=heads, kv_heads=heads, ffn=4 * hidden)


def _cuts(shape: ModelShape, tp: int) -> bool:
    try:
        Plan(tp=tp).check(shape)
    except ValueError:
        return False
    return True


def _largest(device: Hardware) -> float:
    """Parameters of the largest GPT that one GPU trains, among sizes that differ by a hundredth; 0: none."""
    alone = Plan(recompute="full")
    sizes = (_gpt_of(SMALLEST * 1.01**power) for power in range(1150))
    fitting = (shape for shape in sizes if plan_memory(shape, alone, device)[0].occupied <= device.memory)
    return max((shape.parameters for shape in fitting), default=0)


def _fewest(shape: ModelShape, device: Hardware, tp: int = 1, recompute: str = "none") -> int:
    """The fewest copies, each with its own text, with which a step fits; 0: none."""

    def fits(copies: int) -> bool:
        plan = Plan(dp=copies, tp=tp, zero=3, recompute=recompute)
        return plan_memory(shape, plan, device)[0].occupied <= device.memory

    return 1 if fits(1) else _first(fits, 2, MOST)


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first number for which it holds, if it holds for all that follow; 0: it does not hold at ``high``."""
    if not holds(high):
        return 0
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
