"""One layer of BERT on a fast and a slow device (chapter 13)."""

from __future__ import annotations

from dataclasses import replace

from simulator.figures.figure import Figure, Slider
from simulator.inputs.checks import positive
from simulator.inputs.hardware import Link
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.planner.layer_split import FP32, price_layer
from simulator.predict.shares import device_seconds

RATES = [float(f"{10 ** (7 + k / 20):.2g}") for k in range(61)]  # bytes a second, 10 MB to 10 GB
CALLS = {"all-gather": 4, "reduce-scatter": 4}  # of each in one layer, forward and backward together


def explore_unequal(slowness: float = 3, bandwidth: float = 9.75e7, heads: int | None = None) -> Figure:
    """One layer of BERT-base on a laptop and on another one that is slower: two timelines, and the break-even.

    Heads and columns of the MLP are divided by what the fast device keeps, the tokens of the connections by half
    (the placement ``"galaxy"``). The numbers are those of ``price_layer`` for ``laptop-cpu`` in fp32.

    Args:
        slowness: of the slow device: 3 takes three times as long for everything; 1 to 8.
        bandwidth: bytes a second that the link between both really carries (``Link.rate``), from 1e7 to 1e10;
            the default is that of gigabit Ethernet.
        heads: of 12, that the fast device keeps; None: so many that both end together.
    """
    positive(slowness=slowness)
    laptop, bert = GPUS["laptop-cpu"], MODELS["bert-base"]
    if heads is None:
        heads = round(bert.heads * slowness / (1 + slowness))
    seconds = device_seconds(bert, FP32.on(laptop), [laptop])  # (block, rank, share) -> forward, backward
    columns = bert.ffn // bert.heads

    def messages(latency: float, bandwidth: float) -> dict[str, float]:
        devices = [replace(laptop, node=Link(latency, bandwidth))] * 2
        return price_layer(bert, devices, "galaxy").communication

    size, rounds = messages(0, 1), messages(1, 1e30)  # so the seconds count bytes, and rounds
    return Figure(
        "unequal",
        "One layer on a fast and a slow device",
        [
            Slider("bandwidth", bandwidth, RATES, "bandwidth of the link", "B/s"),
            Slider("heads", heads, range(bert.heads + 1), "heads that the fast device keeps"),
            Slider("slowness", slowness, [1 + k / 2 for k in range(15)], "slowness of the slow device"),
        ],
        table={  # of block -> by heads kept: seconds of forward, of backward
            "attention": [seconds("attention", 0, own) for own in range(bert.heads + 1)],
            "mlp": [seconds("mlp", 0, own * columns) for own in range(bert.heads + 1)],
            "connection": [seconds("connection", 0, bert.sequence // 2)] * (bert.heads + 1),
        },
        whole=seconds("connection", 0, bert.sequence),
        messages={
            name: [size[name] / CALLS.get(name, 1), round(rounds[name]) / CALLS.get(name, 1)] for name in size
        },
        latency=laptop.node.latency,
        range=[RATES[0], RATES[-1]],
    )
