"""The third input: what one device can do, and the links between devices.

Peaks are the makers' dense 16-bit figures. The efficiencies are one set for each kind of device, not for a model
or a row: ``python -m simulator validate`` shows how far they carry.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Link:
    """A connection as alpha-beta: a message of n bytes takes ``latency + n / bandwidth`` seconds.

    ``bandwidth`` is what one rank can send, in bytes a second, in one direction, as the maker prints it;
    collectives reach the part ``efficiency`` of it.
    """

    latency: float
    bandwidth: float
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        if self.latency < 0 or self.bandwidth <= 0 or not 0 < self.efficiency <= 1:
            raise ValueError(
                f"a link needs a latency >= 0, a bandwidth > 0 and an efficiency in (0, 1], not {self}"
            )

    @property
    def rate(self) -> float:
        """Bytes a second that really flow."""
        return self.bandwidth * self.efficiency

    def seconds(self, size: float, messages: int = 1) -> float:
        """Time for ``messages`` that carry ``size`` bytes together."""
        return messages * self.latency + size / self.rate


@dataclass(frozen=True)
class Hardware:
    """One kind of device, and how such devices are joined.

    Args:
        name: as the command line calls it.
        peak_flops: 16-bit matrix FLOP/s that the maker prints, without sparsity.
        memory: bytes of device memory.
        memory_bandwidth: bytes a second to that memory, as the maker prints them.
        node: a link to a device of the same node, and
        network: to one of another node, each as the maker prints it.
        node_size: devices in a node.
        units: processors that share a matrix product tile by tile (streaming multiprocessors).
        matmul_efficiency: part of the peak that a large matrix product reaches.
        tile_start: columns' worth of time to fill and drain one tile of a matrix product.
        memory_efficiency: part of the memory bandwidth that an elementwise kernel reaches.
        overlap: part of a collective beside computation that costs nothing: it takes processors and memory too.
        launch: seconds before a kernel starts to be of use.
        attention: the kernel that training code of its time uses, where a plan does not say.
    """

    name: str
    peak_flops: float
    memory: float
    memory_bandwidth: float
    node: Link
    network: Link
    node_size: int = 8
    units: int = 108
    matmul_efficiency: float = 0.88
    tile_start: int = 450
    memory_efficiency: float = 0.85
    overlap: float = 0.5
    launch: float = 5e-6
    attention: str = "unfused"

    def __post_init__(self) -> None:
        for name in ("peak_flops", "memory", "memory_bandwidth", "node_size", "units"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name.replace('_', ' ')} must be more than 0, not {getattr(self, name)}")
        for name in ("matmul_efficiency", "memory_efficiency", "overlap"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name.replace('_', ' ')} must be in (0, 1], not {getattr(self, name)}")

    @classmethod
    def of(
        cls, peak_flops: float, memory_bandwidth: float, link_bandwidth: float, memory: float = inf
    ) -> Hardware:
        """Your own device by three numbers: FLOP/s, bytes a second of its memory and of its link to the others."""
        link = Link(5e-6, link_bandwidth)
        return cls("own", peak_flops, memory, memory_bandwidth, link, link)


def _gpu(
    name: str,
    tflops: float,
    gigabytes: float,
    memory: float,
    node: float,
    network: float,
    network_efficiency: float = 0.25,
    **more: float | str,
) -> Hardware:
    """In the units of data sheets: TFLOP/s, GB, and GB/s in one direction."""
    links = Link(3e-6, node * 1e9, 0.78), Link(6e-6, network * 1e9, network_efficiency)
    return Hardware(name, tflops * 1e12, gigabytes * 1e9, memory * 1e9, *links, **more)


# Where the efficiencies come from. A100: one rounded compromise over the rows of simulator/published.py. A quarter
# of a 200 Gb/s card is what it takes to explain the 1.3 s that eight copies of a 530B model add to a step
# (arXiv:2205.05198, abstract and table 5). V100: adjusted to the 62 TFLOP/s that Megatron-LM 1.0 reports for
# 1.2B parameters. H100 and H200 hold less of their peak, for want of power: adjusted to the 400 TFLOP/s of
# arXiv:2407.21783, table 4. B200 takes their constants and has been compared with nothing.
_HOPPER = {
    "units": 132,
    "matmul_efficiency": 0.72,
    "tile_start": 600,
    "network_efficiency": 0.5,
    "attention": "flash",
}
_LIST = [
    _gpu("v100", 125, 32, 900, 150, 12.5, units=80, tile_start=200),
    _gpu("a100-40gb", 312, 40, 1555, 300, 25),
    _gpu("a100-80gb", 312, 80, 2039, 300, 25),
    _gpu("h100", 989, 80, 3350, 450, 50, **_HOPPER),
    _gpu("h200", 989, 141, 4800, 450, 50, **_HOPPER),
    _gpu("b200", 2250, 180, 8000, 900, 50, **(_HOPPER | {"units": 148})),
    # Four cores that reach 0.4 TFLOP/s in fp32, the precision to plan with; ranks talk through memory.
    _gpu("laptop-cpu", 0.8, 16, 50, 2, 0.125, units=4, tile_start=16),
]
GPUS = {device.name: device for device in _LIST}


def find_device(name: str) -> Hardware:
    """The device of that name, or of which it is an unmistakable part: ``"H100"``, ``"cpu"``."""
    found = [device for known, device in GPUS.items() if name.lower() in known]
    if name.lower() in GPUS or len(found) == 1:
        return GPUS.get(name.lower(), found[0])
    raise ValueError(f"gpu must be one of {', '.join(GPUS)}, or three numbers with commas, not {name}")
