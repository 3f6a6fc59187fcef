"""What the stages of a pipeline send one another.

``send_tensors`` and ``receive_tensors`` wait until the message has arrived. ``Messages`` does not wait with a send, and
starts each receive before its tensors are needed, so messages travel while both ranks compute.

Two ranks send each other several messages at once, and nothing in a message says which one it is. So a rank must start
its receives in the order in which the other rank sends. A schedule lists the actions of all ranks: this order is known.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from course_lib.pipeline.courier import Courier
from course_lib.runtime import current_device, trace
from simulator.pipeline.actions import Action, Schedule

Output = tuple[str, int, int]  # "F" or "B", stage, microbatch: what an action leaves behind
HEADER = 1024  # bytes


class Kind(NamedTuple):
    """What a receiver must know of a tensor."""

    shape: torch.Size
    dtype: torch.dtype
    requires_grad: bool

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


def kinds_of(tensors: Sequence[Tensor]) -> tuple[Kind, ...]:
    return tuple(Kind(t.shape, t.dtype, t.requires_grad) for t in tensors)


@contextmanager
def telling(stage: int, name: str, inputs: Sequence[Tensor]) -> Iterator[None]:
    """Add to an error what a stage was doing, and on what."""
    try:
        yield
    except Exception as error:
        given = ", ".join(map(str, kinds_of(inputs))) or "none"
        error.add_note(f"Stage {stage} was at {name}, whose input is {given}.")
        raise


# ---- messages that are waited for -------------------------------------------------------------------------


def send_tensors(tensors: Sequence[Tensor], to: int, group: ProcessGroup) -> None:
    """Send any number of tensors to rank ``to`` of the group; wait until it has received them."""
    for work in [*start_send([header(kinds_of(tensors))], to, group), *start_send(tensors, to, group)]:
        work.wait()


def receive_tensors(source: int, group: ProcessGroup) -> list[Tensor]:
    """Wait for what ``send_tensors`` sends."""
    kinds = receive_header(source, group)
    buffers, works = start_receive(kinds, source, group)
    for work in works:
        work.wait()
    return arrived(buffers, kinds)


# ---- messages that travel while the ranks compute ---------------------------------------------------------


class Messages:
    """The messages of one rank under a schedule."""

    def __init__(self, schedule: Schedule, mesh: DeviceMesh) -> None:
        self.schedule, self.rank = schedule, mesh.get_local_rank()
        self.group, self.group_up = groups_for_both_directions(mesh.get_group())
        # What a stage makes of a microbatch, by the stage and the microbatch's shapes.
        self.kinds: dict[tuple[int, Hashable], tuple[Kind, ...]] = {}
        self.couriers: dict[int, Courier] = {}

    def begin(self, microbatches: Sequence[Sequence[Tensor]], forward_only: bool = False) -> None:
        """A step begins. Microbatches of equal shapes make tensors of equal shapes in every stage."""
        for courier in self.couriers.values():  # of a step that was left by an exception
            courier.dismiss()
        self.couriers = {}
        self.here: dict[Output, Sequence[Tensor]] = {}  # outputs that this rank needs itself
        self.shapes = [(forward_only, *((t.shape, t.dtype) for t in batch)) for batch in microbatches]
        self.queues: dict[int, deque[Output]] = {}  # what each rank will send here, in its order
        for peer, actions in enumerate(self.schedule.actions):
            outputs = [(a.kind[0], a.stage, a.microbatch) for a in actions if a.kind != "W"]
            self.queues[peer] = deque(
                output
                for output in outputs
                if peer != self.rank
                and self.receiver(output) == self.rank
                and (output[0] == "F" or not forward_only)
            )
        inputs = [input_of(action) for action in self.schedule.actions[self.rank] if action.kind != "W"]
        coming = {output for queue in self.queues.values() for output in queue}
        self.needed = deque(output for output in inputs if output in coming)
        self.started: dict[Output, tuple[list[Tensor], list[Any]]] = {}

    def receiver(self, output: Output) -> int | None:
        """The rank that needs this output; None: no other stage does."""
        kind, stage, _ = output
        stage += 1 if kind == "F" else -1
        return self.schedule.rank_of(stage) if 0 <= stage < self.schedule.stages else None

    def send(self, output: Output, tensors: Sequence[Tensor]) -> None:
        """Start to send; the tensors are kept until they have been sent. What this rank needs itself stays here."""
        to = self.receiver(output)
        if to is None:
            return
        if to == self.rank:
            self.here[output] = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
            return
        tensors = list(tensors)
        if output[0] == "F" and self.note_kinds(output, tensors):
            tensors.insert(0, header(kinds_of(tensors)))
        end = trace.begin("communication", f"send {self.schedule.span_name(Action(output[0], *output[1:]))}")
        works = start_send(tensors, to, self.channel(to > self.rank))
        if to not in self.couriers:
            self.couriers[to] = Courier()
        self.couriers[to].watch(works, tensors, end)

    def receive(self, output: Output) -> Sequence[Tensor]:
        """Wait for an output. Before that, the receive of what this rank needs next is started."""
        if output in self.here:
            return self.here.pop(output)
        source = self.schedule.rank_of(output[1])
        while not self.start(output):
            _, stage, i = self.queues[source][0]
            with trace.waiting():
                self.kinds[stage, self.shapes[i]] = receive_header(source, self.channel(source < self.rank))
        self.needed.popleft()
        if self.needed:
            self.start(self.needed[0])
        buffers, works = self.started.pop(output)
        with trace.waiting():
            for work in works:
                work.wait()
        return arrived(buffers, self.kinds_of_output(output))

    def start(self, output: Output) -> bool:
        """Start the receives up to this one, in the order in which the other rank sends; False: a shape is unknown."""
        source = self.schedule.rank_of(output[1])
        queue = self.queues[source]
        while output not in self.started:
            kinds = self.kinds_of_output(queue[0])
            if kinds is None:
                return False
            self.started[queue.popleft()] = start_receive(kinds, source, self.channel(source < self.rank))
        return True

    def wait_until_sent(self) -> None:
        """Wait until all that this rank sends has arrived."""
        with trace.waiting():
            for courier in self.couriers.values():
                courier.finish()
        self.couriers = {}

    # ---- shapes -------------------------------------------------------------------------------------------

    def kinds_of_output(self, output: Output) -> tuple[Kind, ...] | None:
        """Of the stage's outputs, or, in backward, of the gradients of what the stage before it sent."""
        kind, stage, i = output
        if kind == "F":
            return self.kinds.get((stage, self.shapes[i]))
        kinds = self.kinds.get((stage - 1, self.shapes[i]))
        return kinds and tuple(k._replace(requires_grad=False) for k in kinds if k.requires_grad)

    def note_kinds(self, output: Output, tensors: Sequence[Tensor]) -> bool:
        """Whether the receiver does not know yet what a microbatch of these shapes makes of this stage's outputs."""
        _, stage, i = output
        kinds, known = kinds_of(tensors), self.kinds.get((stage, self.shapes[i]))
        if known is not None and known != kinds:
            raise ValueError(
                f"stage {stage} returned {', '.join(map(str, kinds))} for microbatch {i}, but "
                f"{', '.join(map(str, known))} for another microbatch of the same shape: make a new Pipeline"
            )
        self.kinds[stage, self.shapes[i]] = kinds
        return known is None

    def channel(self, up: bool) -> ProcessGroup:
        return self.group_up if up else self.group


def input_of(action: Action) -> Output:
    """The output of another stage that this action works on."""
    kind, stage, i = action
    return ("F", stage - 1, i) if kind == "F" else ("B", stage + 1, i)


# ---- on the wire ------------------------------------------------------------------------------------------


def start_send(tensors: Sequence[Tensor], to: int, group: ProcessGroup) -> list[Any]:
    wire = [on_wire(tensor, group) for tensor in tensors]
    return start([dist.P2POp(dist.isend, t, group=group, group_peer=to) for t in wire])


def start_receive(kinds: Sequence[Kind], source: int, group: ProcessGroup) -> tuple[list[Tensor], list[Any]]:
    buffers = [torch.empty(k.shape, dtype=k.dtype, device=wire_device(group)) for k in kinds]
    return buffers, start([dist.P2POp(dist.irecv, t, group=group, group_peer=source) for t in buffers])


def start(operations: list[dist.P2POp]) -> list[Any]:
    """Start the operations of one message together, as NCCL needs it, without those of empty tensors."""
    operations = [operation for operation in operations if operation.tensor.numel()]
    return dist.batch_isend_irecv(operations) if operations else []


def arrived(buffers: Sequence[Tensor], kinds: Sequence[Kind]) -> list[Tensor]:
    tensors = [buffer.to(current_device()) for buffer in buffers]
    return [tensor.requires_grad_(kind.requires_grad) for tensor, kind in zip(tensors, kinds, strict=True)]


def header(kinds: Sequence[Kind]) -> Tensor:
    """Says what follows, in a message of fixed length: uint8 ``(HEADER,)``."""
    pickled = pickle.dumps([tuple(kind) for kind in kinds])
    if len(pickled) > HEADER:
        raise ValueError(f"{len(kinds)} tensors are too many to send from stage to stage")
    return torch.frombuffer(bytearray(pickled.ljust(HEADER, b"\0")), dtype=torch.uint8).to(current_device())


def receive_header(source: int, group: ProcessGroup) -> tuple[Kind, ...]:
    [buffer], works = start_receive([Kind(torch.Size([HEADER]), torch.uint8, False)], source, group)
    for work in works:
        work.wait()
    return tuple(Kind(*kind) for kind in pickle.loads(buffer.cpu().numpy().tobytes()))


def on_wire(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """The tensor as the backend can send it: contiguous, and in the CPU's memory where ranks share a GPU (Gloo)."""
    return tensor.detach().contiguous().to(wire_device(group))


def wire_device(group: ProcessGroup) -> torch.device:
    return current_device() if "nccl" in dist.get_backend(group) else torch.device("cpu")


def groups_for_both_directions(group: ProcessGroup) -> tuple[ProcessGroup, ProcessGroup]:
    """One process group for messages to lower ranks, one for messages to higher ranks.

    NCCL works off the messages of a group one after the other. If both directions shared a group, a rank that has
    started to receive would hold up its own sends, and two such ranks would wait for each other.
    """
    if "nccl" not in dist.get_backend(group):
        return group, group
    up = dist.new_group(dist.get_process_group_ranks(group), use_local_synchronization=True)
    for each in (group, up):  # connects all ranks; the first messages concern only some
        dist.all_reduce(torch.zeros(1, device=current_device()), group=each)
    return group, up
