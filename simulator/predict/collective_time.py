"""How long an all-reduce takes: rounds and bytes of each algorithm over links of the alpha-beta kind.

A message of m bytes takes ``latency + m / rate`` seconds, and a rank sends one and receives one at a time
(Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005). What
the additions cost is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.inputs.checks import at_least, is_number, not_negative, one_of, refuse
from simulator.inputs.hardware import Hardware, Link

ALGORITHMS = ("naive", "tree", "ring")


def all_reduce_rounds(algorithm: str, ranks: int) -> int:
    """Messages that follow each other: 2 (p-1) one by one, 2 ceil(log2 p) in a tree, 2 (p-1) around a ring."""
    one_of("algorithm", algorithm, ALGORITHMS)
    at_least(1, ranks=ranks)
    one_way = (ranks - 1).bit_length() if algorithm == "tree" else ranks - 1
    return 2 * one_way


def all_reduce_seconds(algorithm: str, payload: float, ranks: int, link: Link) -> float:
    """Rounds times the time of one message: all n bytes of ``payload``, in a ring n / p of them."""
    not_negative(payload=payload)
    rounds = all_reduce_rounds(algorithm, ranks)
    message = payload / ranks if algorithm == "ring" else payload
    return link.seconds(rounds * message, rounds)


def tree_ring_crossover(ranks: int, link: Link) -> float:
    """Bytes from which the ring is as fast as the tree or faster; 0 where it is so at every size.

    The ring has p-1 - L more latencies each way (L = ceil(log2 p)), the tree moves L - (p-1)/p more tensors:
    n = latency x rate x (p-1 - L) / (L - (p-1)/p).
    """
    levels = all_reduce_rounds("tree", ranks) / 2
    if ranks <= 3:
        return 0.0
    return link.latency * link.rate * (ranks - 1 - levels) / (levels - (ranks - 1) / ranks)


def group_link(ranks: int, stride: int, hardware: Hardware, flat: bool = False) -> Link:
    """The link that bounds a ring over ``ranks`` devices which stand ``stride`` apart.

    A ring inside a node runs at the node's rate. Across nodes a library runs as many rings at once as the group has
    members in a node, each through another network card. In one flat ring instead, only one rank of each node sends
    off its node, so that one card bounds all.

    Args:
        flat: one ring, at ``hardware.flat_ring`` of a card's bandwidth, if the device's file says so.
    """
    at_least(1, ranks=ranks, stride=stride)
    node, network = hardware.node, hardware.network
    members = max(1, min(ranks, hardware.node_size // stride))
    if members == ranks:
        return Link(node.latency, node.rate)
    if hardware.spine is not None and hardware.rail_size and ranks * stride > hardware.rail_size:
        network = hardware.spine
    together = members * network.rate
    if flat and hardware.flat_ring:
        together = network.bandwidth * hardware.flat_ring
    return Link(network.latency, min(node.rate, together))


def slowest_link(devices: Sequence[Hardware]) -> Link:
    """The ring has every device in it, so the longest latency and the lowest rate of all hold for all.

    Devices that do not fit into one node send over the network.
    """
    at_least(1, devices=len(devices))
    links = [device.node if len(devices) <= device.node_size else device.network for device in devices]
    return Link(max(link.latency for link in links), min(link.rate for link in links))


def collective_seconds(
    collective: str, payload: float, ranks: int, stride: int, hardware: Hardware, flat: bool = False
) -> float:
    """A ring collective on ``payload`` bytes (the whole tensor): p - 1 steps of payload / p, twice to all-reduce.

    All-to-all sends each of its p - 1 messages straight to its receiver, most of them to other nodes.
    """
    not_negative(payload=payload)
    at_least(1, ranks=ranks, stride=stride)
    if ranks == 1:
        return 0.0
    steps = (ranks - 1) * (2 if collective == "all-reduce" else 1)
    if collective == "all-to-all" and ranks * stride > hardware.node_size:
        return hardware.network.seconds(payload * (ranks - 1) / ranks, ranks - 1)
    return group_link(ranks, stride, hardware, flat).seconds(steps * payload / ranks, steps)


def dispatch_seconds(
    tokens: float,
    copies: int,
    size: float,
    ranks: int,
    stride: int,
    node_limit: int | None,
    hardware: Hardware,
) -> float:
    """Tokens on their way to their experts, or back.

    A copy travels by itself in one all-to-all, or (arXiv:2412.19437, section 3.2.2) a token travels once to each node
    that it visits, at most ``node_limit``, and is forwarded over the node's links meanwhile. k experts drawn among m
    nodes stand on m (1 - (1 - 1/m)^k) of them.

    Args:
        tokens, copies, size: of one rank: tokens, experts of each, and bytes of one.
        ranks, stride: of the expert-parallel group.
    """
    not_negative(tokens=tokens, size=size)
    at_least(1, copies=copies, ranks=ranks, stride=stride)
    nodes = ranks * stride / hardware.node_size
    if node_limit is None or nodes <= 1:
        return collective_seconds("all-to-all", tokens * copies * size, ranks, stride, hardware)
    at_least(1, node_limit=node_limit)
    among = min(node_limit, nodes)
    visited = among * (1 - (1 - 1 / among) ** copies)
    far = hardware.network.seconds(tokens * visited * (1 - 1 / nodes) * size, round(nodes) - 1)
    members = max(1, hardware.node_size // stride)
    near = hardware.node.seconds(tokens * copies * (1 - 1 / members) * size, members - 1)
    return max(far, near)


def exposed(
    communication: float, computation: float, hardware: Hardware, overlap: float | None = None
) -> float:
    """How much longer it takes when a transfer runs beside computation: it takes processors and memory from it.

    Args:
        overlap: the part that costs nothing; None: ``hardware.overlap``.
    """
    overlap = hardware.overlap if overlap is None else overlap
    not_negative(communication=communication, computation=computation)
    if not (is_number(overlap) and 0 <= overlap <= 1):
        refuse("overlap", "between 0 and 1", overlap)
    return communication - overlap * min(communication, computation)
