"""The third input: what one device can do, and the links between devices.

``simulator.inputs.known_devices`` has the devices that the course knows, and ``simulator.inputs.hardware_file`` reads
and writes files that describe others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from simulator.inputs.checks import (
    at_least,
    not_negative,
    one_of,
    part,
    positive,
    positive_or_infinite,
    refuse,
)

Sizes = tuple[tuple[float, float], ...]  # (size, part of the peak reached there), sizes ascending


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
        not_negative(latency=self.latency)
        positive_or_infinite(bandwidth=self.bandwidth)
        part(efficiency=self.efficiency)

    @property
    def rate(self) -> float:
        """Bytes a second that really flow."""
        return self.bandwidth * self.efficiency

    def seconds(self, size: float, messages: int = 1) -> float:
        """Time for ``messages`` that carry ``size`` bytes together."""
        not_negative(size=size)
        at_least(0, messages=messages)
        return messages * self.latency + size / self.rate


@dataclass(frozen=True)
class Hardware:
    """One kind of device, and how such devices are joined. Bytes, seconds and FLOP/s throughout.

    Args:
        name: as the command line calls it.
        peak_flops: 16-bit matrix FLOP/s that the maker prints, without sparsity.
        memory: bytes of device memory; infinity: it is never full.
        memory_bandwidth: bytes a second to that memory, as the maker prints them.
        node: a link to a device of the same node (the NVLink domain), and
        network: to one of another node on the same rail, each as the maker prints it.
        spine: to a device that no rail switch reaches; None: one rail reaches all.
        node_size: devices in a node.
        rail_size: devices that one rail tier joins; 0: all of them.
        flat_ring: part of one network card's bandwidth that the gathers and scatters of ZeRO 2 and 3 reach across
            nodes in one flat ring, of which one rank in eight sends off its node; 0: they use all cards of a node.
        fp8_flops: 8-bit matrix FLOP/s; 0: the device has no 8-bit arithmetic.
        units: processors that share a matrix product tile by tile (streaming multiprocessors).
        matmul_efficiency: part of the peak that the inner loop of a large matrix product reaches.
        sustained: part of the 16-bit peak that the power supply lets long products hold; 1: no limit.
        sustained_fp8: the same, of the 8-bit peak.
        matmul_sizes: (FLOP of one product, part of the peak reached), measured: used instead of the tile model.
        tile_start: columns' worth of time to fill and drain one tile of a matrix product.
        flash_forward, flash_backward: part of the 16-bit peak that fused attention reaches.
        memory_efficiency: part of the memory bandwidth that an elementwise kernel reaches.
        memory_sizes: (bytes moved by one kernel, part of the bandwidth reached), measured; used instead.
        loss_efficiency: part of the memory bandwidth that the cross entropy's kernels reach.
        overlap: part of a collective beside computation that costs nothing: it takes processors and memory too, and
            the computation beside it is short (tensor and context parallelism).
        data_overlap: the same for gradients and parameters over the data axis, issued layers ahead of their use.
        launch: seconds before a kernel starts to be of use.
        attention: the kernel that training code of its time uses, where a plan does not say.
        context: bytes that the driver and the libraries take before the first tensor.
        fragmentation: part that the allocator holds beyond the bytes of the tensors.
    """

    name: str
    peak_flops: float
    memory: float
    memory_bandwidth: float
    node: Link
    network: Link
    spine: Link | None = None
    node_size: int = 8
    rail_size: int = 0
    flat_ring: float = 0.0
    fp8_flops: float = 0.0
    units: int = 108
    matmul_efficiency: float = 0.88
    sustained: float = 1.0
    sustained_fp8: float = 1.0
    matmul_sizes: Sizes = ()
    tile_start: int = 450
    flash_forward: float = 0.484
    flash_backward: float = 0.484
    memory_efficiency: float = 0.85
    memory_sizes: Sizes = ()
    loss_efficiency: float = 0.85
    overlap: float = 0.5
    data_overlap: float = 0.8
    launch: float = 5e-6
    attention: str = "unfused"
    context: float = 0.0
    fragmentation: float = 0.0

    def __post_init__(self) -> None:
        positive(peak_flops=self.peak_flops, memory_bandwidth=self.memory_bandwidth)
        positive_or_infinite(memory=self.memory)
        at_least(1, node_size=self.node_size, units=self.units)
        at_least(0, rail_size=self.rail_size, tile_start=self.tile_start)
        parts = ("matmul_efficiency", "sustained", "sustained_fp8", "flash_forward", "flash_backward")
        for name in (*parts, "memory_efficiency", "loss_efficiency", "overlap", "data_overlap"):
            part(**{name: getattr(self, name)})
        for name in ("flat_ring", "fp8_flops", "launch", "context", "fragmentation"):
            not_negative(**{name: getattr(self, name)})
        for name in ("node", "network", "spine"):
            link = getattr(self, name)
            if not isinstance(link, Link) and (name != "spine" or link is not None):
                refuse(name, "a Link", link)
        for name in ("matmul_sizes", "memory_sizes"):
            _check_sizes(name, getattr(self, name))
        one_of("attention", self.attention, ("unfused", "flash"))

    @classmethod
    def of(
        cls, peak_flops: float, memory_bandwidth: float, link_bandwidth: float, memory: float = inf
    ) -> Hardware:
        """Your own device by three numbers: FLOP/s, bytes a second of its memory and of its link to the others."""
        positive_or_infinite(link_bandwidth=link_bandwidth)
        link = Link(5e-6, link_bandwidth)
        return cls("own", peak_flops, memory, memory_bandwidth, link, link)

    def slowed(self, factor: float, memory: float | None = None) -> Hardware:
        """The same device, on which every kernel takes ``factor`` times as long; its links stay as they are.

        Args:
            memory: bytes, if it is not as large as this device's.
        """
        positive(factor=factor)
        return replace(
            self,
            name=self.name if factor == 1 else f"{self.name} slowed by {factor:g}",
            peak_flops=self.peak_flops / factor,
            fp8_flops=self.fp8_flops / factor,
            memory_bandwidth=self.memory_bandwidth / factor,
            launch=self.launch * factor,
            memory=self.memory if memory is None else memory,
        )


def _check_sizes(name: str, points: Sizes) -> None:
    """Measured points, if there are any: sizes above 0 that ascend, and parts in (0, 1]."""
    last = 0.0
    for point in points:
        if not (isinstance(point, Sequence) and len(point) == 2):
            refuse(name, "points (size, part of the peak)", point)
        size, reached = point
        positive(**{f"each_size_of_{name}": size})
        part(**{f"each_part_of_{name}": reached})
        if size <= last:
            refuse(name, f"ascending sizes, above {last:g} after it", size)
        last = size
