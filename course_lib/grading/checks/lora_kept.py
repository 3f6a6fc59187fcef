"""The check of 17.3: what autograd keeps of a row of linear layers, some of them frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import gelu, linear

from course_lib.grading.alive import Alive
from course_lib.grading.report import Report, check

Layer = tuple[int, int, str]  # inputs, outputs, what is trained
CASES: dict[str, tuple[list[Layer], int, int]] = {  # layers, rank, tokens
    "an MLP, all trained": ([(6, 24, "all"), (24, 6, "all")], 4, 5),
    "an MLP with two LoRAs": ([(6, 24, "lora"), (24, 6, "lora")], 4, 5),
    "LoRA in the first layer": ([(8, 10, "lora"), (10, 12, "nothing"), (12, 9, "nothing")], 2, 7),
    "LoRA in the last layer": ([(8, 10, "nothing"), (10, 12, "nothing"), (12, 9, "lora")], 3, 7),
    "LoRA in the middle": (
        [(7, 11, "nothing"), (11, 13, "lora"), (13, 5, "nothing"), (5, 6, "nothing")],
        3,
        4,
    ),
    "biases only": ([(7, 11, "bias"), (11, 13, "bias"), (13, 5, "bias")], 3, 4),
    "one bias at the bottom": ([(7, 11, "bias"), (11, 13, "nothing"), (13, 5, "nothing")], 3, 4),
    "one bias at the top": ([(7, 11, "nothing"), (11, 13, "nothing"), (13, 5, "bias")], 3, 4),
    "of every kind": (
        [
            (6, 8, "nothing"),
            (8, 9, "bias"),
            (9, 5, "nothing"),
            (5, 12, "lora"),
            (12, 7, "all"),
            (7, 4, "nothing"),
        ],
        2,
        9,
    ),
    "nothing is trained": ([(7, 11, "nothing"), (11, 5, "nothing")], 3, 4),
    "one layer": ([(7, 11, "lora")], 3, 1),
    "one frozen layer": ([(7, 11, "nothing")], 3, 4),
    "two LoRAs and a frozen layer between": ([(5, 9, "lora"), (9, 14, "nothing"), (14, 3, "lora")], 1, 8),
}


class Kept(saved_tensors_hooks):
    """Counts the bytes of the storages that autograd keeps, those of ``own`` left out."""

    def __init__(self, own: Iterable[Tensor]) -> None:
        self.own = {t.untyped_storage().data_ptr() for t in own}
        self.storages: dict[int, torch.UntypedStorage] = {}  # held, so that no other gets the address
        super().__init__(self._pack, lambda t: t)

    def __enter__(self) -> Kept:
        super().__enter__()
        return self

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.own:
            self.storages[storage.data_ptr()] = storage
        return tensor

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())


def measured(layers: Sequence[Layer], rank: int, tokens: int) -> int:
    """Run it, and count what autograd keeps."""
    own, rows = [], []
    for inputs, outputs, what in layers:
        base = nn.Linear(inputs, outputs)
        base.weight.requires_grad_(what == "all")
        base.bias.requires_grad_(what in ("all", "bias"))
        A, B = nn.Parameter(torch.ones(rank, inputs)), nn.Parameter(torch.ones(outputs, rank))
        own += [base.weight, base.bias, A, B]
        rows.append((base, A, B, what))
    with Kept(own) as kept:
        x = torch.zeros(tokens, layers[0][0])
        for number, (base, A, B, what) in enumerate(rows):
            x = gelu(x) if number else x
            x = base(x) + 2.0 * linear(linear(x, A), B) if what == "lora" else base(x)
    return kept.bytes


def counted(
    layers: Sequence[Layer],
    rank: int,
    tokens: int,
    *,
    below: bool = False,
    narrow: bool = True,
    bias_needs_input: bool = False,
    frozen_keep: bool = False,
    frozen_above_keep: bool = False,
    lora_keeps: bool = True,
    gelus: bool = True,
    lowest_gelu: bool = True,
    bias_passes: bool = True,
    itemsize: int = 4,
    first: bool = False,
    matrices: bool = False,
) -> int:
    """The rules of the chapter, with one of them left out or changed."""
    numbers, passes, passed = 0, below, below  # passed: as passes was one layer earlier
    weights = 0
    for place, (inputs, outputs, what) in enumerate(layers):
        if (place or first) and gelus and (passes if lowest_gelu else passed):
            numbers += inputs
        weights += inputs * outputs if passes and matrices else 0
        passed = passes
        reads = what == "all" or (what == "lora" and lora_keeps) or (what == "bias" and bias_needs_input)
        if reads or (frozen_keep and (passes or what != "nothing")) or (frozen_above_keep and passes):
            numbers += inputs
        if what == "lora" and narrow:
            numbers += rank
        passes = passes or what in ("all", "lora") or (what == "bias" and bias_passes)
    return itemsize * (tokens * numbers + weights)


def replaced(
    layers: Sequence[Layer],
    rank: int,
    tokens: int,
    gelu_keeps: Callable[[int], int] | None = None,
    layer_keeps: Callable[[int, int, str], int] = lambda inputs, outputs, what: 0,
) -> int:
    """The rules of the chapter; a GELU may keep something else, by the place of the layer below, and a layer more."""
    numbers = counted(layers, rank, tokens, gelus=gelu_keeps is None) // (4 * tokens)
    numbers += sum(layer_keeps(*layer) for layer in layers)
    return 4 * tokens * (numbers + sum(map(gelu_keeps or (lambda place: 0), range(len(layers)))))


def gelus(rule: Callable[[Sequence[Layer], int], int]) -> Callable[..., int]:
    """``replaced``, by what the GELU above the layer at a place keeps."""
    return lambda layers, rank, tokens: replaced(layers, rank, tokens, lambda place: rule(layers, place))


def trains(layers: Sequence[Layer]) -> bool:
    return any(what != "nothing" for *_, what in layers)


def last(layers: Sequence[Layer], place: int) -> bool:
    return place == len(layers) - 1


MISTAKES: dict[str, Callable[..., int]] = {
    "when GELUs below the lowest trained parameter are counted": lambda *g: counted(*g, below=True),
    "when a GELU before the first layer is counted, too": lambda *g: counted(*g, below=True, first=True),
    "when the numbers between A and B are not counted": lambda *g: counted(*g, narrow=False),
    "when a trained bias keeps the input of its layer": lambda *g: counted(*g, bias_needs_input=True),
    "when a frozen matrix keeps its input": lambda *g: counted(*g, frozen_keep=True),
    "when a frozen matrix above a trained layer keeps its input": lambda *g: counted(
        *g, frozen_above_keep=True
    ),
    "when the input that A reads is not counted": lambda *g: counted(*g, lora_keeps=False),
    "when the inputs of GELUs are not counted": lambda *g: counted(*g, gelus=False),
    "when the GELU just above the lowest trained layer is not counted": lambda *g: counted(
        *g, lowest_gelu=False
    ),
    "when GELUs above a trained bias are not counted": lambda *g: counted(*g, bias_passes=False),
    "when a GELU keeps its input only if the layer just below it trains something": gelus(
        lambda rows, i: rows[i][1] * (not last(rows, i) and trains(rows[i : i + 1]))
    ),
    "when a GELU keeps its input only if a layer above it trains something": gelus(
        lambda rows, i: rows[i][1] * trains(rows[i + 1 :])
    ),
    "when a GELU after the last layer is counted, too": gelus(
        lambda rows, i: rows[i][1] * trains(rows[: i + 1])
    ),
    "when a GELU keeps its output beside its input": gelus(
        lambda rows, i: 2 * rows[i][1] * (not last(rows, i) and trains(rows[: i + 1]))
    ),
    "when a GELU is counted with the inputs of the layer below it, not with its outputs": gelus(
        lambda rows, i: rows[i][0] * (not last(rows, i) and trains(rows[: i + 1]))
    ),
    "when B is counted with its outputs, not with the numbers that it reads": lambda rows, rank, tokens: (
        replaced(rows, rank, tokens, layer_keeps=lambda n, out, what: (out - rank) * (what == "lora"))
    ),
    "when the outputs of B are counted beside the numbers that it reads": lambda rows, rank, tokens: replaced(
        rows, rank, tokens, layer_keeps=lambda n, out, what: out * (what == "lora")
    ),
    "when a layer with LoRA keeps its input twice": lambda rows, rank, tokens: replaced(
        rows, rank, tokens, layer_keeps=lambda n, out, what: n * (what == "lora")
    ),
    "when a trained bias keeps the output of its layer": lambda rows, rank, tokens: replaced(
        rows, rank, tokens, layer_keeps=lambda n, out, what: out * (what == "bias")
    ),
    "when a trained matrix keeps its output, too": lambda rows, rank, tokens: replaced(
        rows, rank, tokens, layer_keeps=lambda n, out, what: out * (what == "all")
    ),
    "when matrices that a gradient goes through are counted": lambda *g: counted(*g, matrices=True),
    "when numbers are counted, and not bytes": lambda *g: counted(*g, itemsize=1),
    "when a number takes two bytes": lambda *g: counted(*g, itemsize=2),
    "when one token is counted, and not all": lambda layers, rank, tokens: counted(layers, rank, 1),
}


@check
def check_17_3(report: Report, kept_bytes: Callable[[list[Layer], int, int], int]) -> None:
    for name, (layers, rank, tokens) in CASES.items():
        with report.case(name):
            got = kept_bytes(list(layers), rank, tokens)
            report.equal(
                "bytes",
                got,
                measured(layers, rank, tokens),
                mistakes=MISTAKES,
                given=(layers, rank, tokens),
                task="Return how many **bytes** autograd keeps for backward. Forward gets `tokens` tokens in fp32",
            )
    with report.case("three layers of 64 to 64"):
        layers = [(64, 64, "nothing"), (64, 64, "lora"), (64, 64, "nothing")]
        with Alive() as alive:
            kept_bytes(layers, 8, 32)
        report.at_most(
            "bytes of tensors made",
            alive.most,
            0,
            task="The answer is computed from the sizes alone: 0 bytes of tensors are made.",
        )
