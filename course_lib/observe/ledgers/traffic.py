"""The traffic ledger, measured: every collective and every send this rank issues, whoever issues it.

PyTorch sends all communication through its dispatcher, as operators named ``c10d::…`` (``torch.distributed``,
the C++ reducer of ``DistributedDataParallel``, FSDP) or ``_c10d_functional::…`` (DTensor, functional
collectives). One dispatch mode sees them all, with their tensors, so nothing has to be wrapped or patched in
the code that is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.ledgers.traffic import Traffic, TrafficRow
from simulator.predict.collective_traffic import sent_bytes

# operator -> (collective, the argument that is the payload, its copies in the whole tensor: 1, or the group)
_WHOLE, _PER_RANK = False, True
_OPERATORS: dict[str, tuple[str, str, bool]] = {
    "c10d::allreduce_": ("all-reduce", "tensors", _WHOLE),
    "c10d::allreduce_coalesced_": ("all-reduce", "tensors", _WHOLE),
    "c10d::allgather_": ("all-gather", "output_tensors", _WHOLE),
    "c10d::allgather_coalesced_": ("all-gather", "output_lists", _WHOLE),
    "c10d::_allgather_base_": ("all-gather", "output_tensor", _WHOLE),
    "c10d::allgather_into_tensor_coalesced_": ("all-gather", "outputs", _WHOLE),
    "c10d::reduce_scatter_": ("reduce-scatter", "input_tensors", _WHOLE),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", "input_tensor", _WHOLE),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce-scatter", "inputs", _WHOLE),
    "c10d::broadcast_": ("broadcast", "tensors", _WHOLE),
    "c10d::reduce_": ("reduce", "tensors", _WHOLE),
    "c10d::gather_": ("gather", "input_tensors", _PER_RANK),
    "c10d::scatter_": ("scatter", "output_tensors", _PER_RANK),
    "c10d::alltoall_": ("all-to-all", "input_tensors", _WHOLE),
    "c10d::alltoall_base_": ("all-to-all", "input", _WHOLE),
    "c10d::send": ("send", "tensors", _WHOLE),
    "c10d::barrier": ("barrier", "", _WHOLE),
    "c10d::monitored_barrier_": ("barrier", "", _WHOLE),
    "_c10d_functional::all_reduce": ("all-reduce", "input", _WHOLE),
    "_c10d_functional::all_reduce_": ("all-reduce", "input", _WHOLE),
    "_c10d_functional::all_reduce_coalesced": ("all-reduce", "inputs", _WHOLE),
    "_c10d_functional::all_reduce_coalesced_": ("all-reduce", "inputs", _WHOLE),
    "_c10d_functional::all_gather_into_tensor": ("all-gather", "input", _PER_RANK),
    "_c10d_functional::all_gather_into_tensor_out": ("all-gather", "input", _PER_RANK),
    "_c10d_functional::all_gather_into_tensor_coalesced": ("all-gather", "inputs", _PER_RANK),
    "_c10d_functional::reduce_scatter_tensor": ("reduce-scatter", "input", _WHOLE),
    "_c10d_functional::reduce_scatter_tensor_out": ("reduce-scatter", "input", _WHOLE),
    "_c10d_functional::reduce_scatter_tensor_coalesced": ("reduce-scatter", "inputs", _WHOLE),
    "_c10d_functional::broadcast": ("broadcast", "input", _WHOLE),
    "_c10d_functional::broadcast_": ("broadcast", "input", _WHOLE),
    "_c10d_functional::all_to_all_single": ("all-to-all", "input", _WHOLE),
    "_c10d_functional::isend": ("send", "tensor", _WHOLE),
    "_dtensor::shard_dim_alltoall": ("all-to-all", "input", _WHOLE),
}
# What moves no bytes from this rank: the other side of a send, and book-keeping.
_SILENT = {
    "c10d::recv_",
    "c10d::recv_any_source_",
    "c10d::check_for_nan",
    "_c10d_functional::irecv",
    "_c10d_functional::wait_tensor",
    "_c10d_functional::_wrap_tensor_autograd",
}
_NAMESPACES = {"c10d", "_c10d_functional", "_dtensor"}


class TrafficLog:
    """What one rank has communicated since recording began.

    Attributes:
        events: one row per call, in the order of issue; ``log.events[0].payload`` is the first bucket's size.
        groups: for each call the ranks of its group, in the same order.
    """

    def __init__(self) -> None:
        self.events: list[TrafficRow] = []
        self.groups: list[tuple[int, ...]] = []

    def add(self, event: TrafficRow, group: dist.ProcessGroup) -> None:
        self.events.append(event)
        self.groups.append(tuple(dist.get_process_group_ranks(group)))

    def along(self, mesh: DeviceMesh) -> dict[str, Traffic]:
        """What was sent in the groups of each axis of the mesh, and under ``"all"`` among all ranks.

        Axes of one rank send nothing. Calls in other groups are left out.
        """
        names = {tuple(range(dist.get_world_size())): "all"}
        for axis, size in zip(mesh.mesh_dim_names, mesh.shape, strict=True):
            if size > 1:
                names[tuple(dist.get_process_group_ranks(mesh[axis].get_group()))] = axis
        found: dict[str, list[TrafficRow]] = {name: [] for name in ("all", *mesh.mesh_dim_names)}
        for event, group in zip(self.events, self.groups, strict=True):
            if group in names:
                found[names[group]].append(event)
        return {name: Traffic(rows) for name, rows in found.items()}

    @property
    def traffic(self) -> Traffic:
        """The events, those of one collective and group size added up."""
        return Traffic(self.events)

    def __repr__(self) -> str:
        return f"TrafficLog({len(self.events)} calls, {self.traffic.sent:,.0f} bytes sent)"


@contextmanager
def record_traffic() -> Iterator[TrafficLog]:
    """Count the collectives and sends that this rank issues inside the ``with``.

    ``payload`` and ``sent`` follow ``simulator.predict.collective_traffic``: for a collective, the mean bytes a
    rank sends under the standard algorithm; for a send, and for the parts of an all-to-all, the bytes themselves.
    Receives are not counted: they are someone's send.

    Counting costs a few microseconds per operator, so do not time what is inside.

    The backward pass and calls of ``torch.distributed`` from other Python threads are included. What
    ``DistributedDataParallel`` sends at its construction (its parameters, a check of their shapes) is counted
    only when the construction stands inside the ``with``. An object collective (``all_gather_object``) is
    counted as the two tensor collectives that it is made of.

    Raises:
        NotImplementedError: a communication operator is issued that the ledger does not know.
    """
    log = TrafficLog()
    mode = _Counter(log)
    with ExitStack() as stack:
        # A dispatch mode belongs to one thread. Calls from the others meet it at the process group's door.
        for name in _process_group_methods():
            stack.enter_context(mock.patch.object(dist.ProcessGroup, name, _in_any_thread(name, log)))
        stack.enter_context(mode)
        yield log


class _Counter(TorchDispatchMode):
    def __init__(self, log: TrafficLog) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # a DTensor breaks the operator down first; its pieces come by here again
        kwargs = kwargs or {}
        event = event_of(func, args, kwargs)
        if event is not None:
            self.log.add(*event)
        return func(*args, **kwargs)


def event_of(
    func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any]
) -> tuple[TrafficRow, dist.ProcessGroup] | None:
    """What one operator sends, and in which group; None: it sends nothing."""
    name = func._schema.name
    if func.namespace not in _NAMESPACES or name in _SILENT:
        return None
    if name not in _OPERATORS:
        raise NotImplementedError(
            f"record_traffic does not know the operator {name}; it knows {', '.join(_OPERATORS)}"
        )
    collective, payload_argument, per_rank = _OPERATORS[name]
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    group = _group(given.get("process_group", given.get("group_name")))
    size = 2 if collective == "send" else group.size()
    payload = _bytes(given.get(payload_argument, ())) * (size if per_rank else 1)
    if collective == "all-to-all":
        sent = payload - _kept(given, group, payload)
    else:
        sent = sent_bytes(collective, payload, size)
    return TrafficRow(collective, size, calls=1, payload=payload, sent=sent), group


def _group(argument: Any) -> dist.ProcessGroup:
    """The group as Python knows it; operators carry it as a C++ object or by its name."""
    if isinstance(argument, str):
        return distributed_c10d._resolve_process_group(argument)
    if isinstance(argument, dist.ProcessGroup):
        return argument
    return dist.ProcessGroup.unbox(argument)


def _bytes(tensors: Any) -> int:
    """Bytes of a tensor, or of all tensors in nested lists."""
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(_bytes, tensors))


def _kept(given: dict[str, Any], group: dist.ProcessGroup, payload: int) -> float:
    """The part of an all-to-all's input that its own rank keeps."""
    if "input_tensors" in given:
        return _bytes(given["input_tensors"][group.rank()])
    splits = given.get("input_split_sizes")
    return payload * splits[group.rank()] / max(sum(splits), 1) if splits else payload / group.size()


def _process_group_methods() -> list[str]:
    wanted = (
        "all",
        "_all",
        "broadcast",
        "reduce",
        "_reduce",
        "gather",
        "scatter",
        "send",
        "barrier",
        "monitored",
    )
    return [name for name in dir(dist.ProcessGroup) if name.startswith(wanted)]


def _in_any_thread(name: str, log: TrafficLog) -> Callable[..., Any]:
    """The process group's method, counted too where the calling thread has no counter of its own."""
    original = getattr(dist.ProcessGroup, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        active = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        if any(isinstance(mode, _Counter) and mode.log is log for mode in active):
            return original(*args, **kwargs)
        with _Counter(log):
            return original(*args, **kwargs)

    return method
