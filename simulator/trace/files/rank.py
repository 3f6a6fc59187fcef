"""One rank's trace, as ``torch.profiler`` exports it: its steps, when it computed, and each collective with its group.

On a GPU the kernels are what counts. NCCL's kernels say in their arguments which group they serve. On a CPU the
operators count, and Gloo's collectives, which say nothing of their group: the Flight Recorder's dump does.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from simulator.trace.files.events import Event, read_events
from simulator.trace.files.intervals import Busy, Intervals, difference, union

# What a name says that a collective is: the first that is found in it, without its underscores and in lower case.
KINDS = {
    "allreduce": "all-reduce",
    "reducescatter": "reduce-scatter",
    "allgather": "all-gather",
    "alltoall": "all-to-all",
    "sendrecv": "send and receive",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "reduce": "reduce",
    "scatter": "scatter",
    "gather": "gather",
    "coalesced": "send and receive",
    "recv": "receive",
    "send": "send",
}
ONE_TO_ONE = ("send", "receive", "send and receive")
# Operators that compute nothing themselves: they start a collective, wait for one, or are a frame around others.
FRAMES = ("c10d::", "_c10d_functional::", "autograd::", "torch::", "record_param_comms", "nccl:", "gloo:")
WAITS = ("_c10d_functional::wait_tensor", "c10d::barrier", "c10d::monitored_barrier_")
STEP = re.compile(r"ProfilerStep[#*]+(\d+)")
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


class Group(NamedTuple):
    """A process group: what PyTorch calls it, and its ranks, if the trace knows them."""

    name: str = ""
    ranks: tuple[int, ...] = ()


class Call(NamedTuple):
    """One collective, from when it began on this rank to its end, in seconds."""

    kind: str
    group: Group
    start: float
    end: float


@dataclass
class RankTrace:
    """What one rank did, in seconds of its machine's clock."""

    rank: int
    gpu: bool = False
    host: str = ""  # the machine's name
    groups: dict[str, Group] = field(default_factory=dict)  # by the names that PyTorch gives them
    steps: list[tuple[float, float]] = field(default_factory=list)
    computing: Intervals = field(default_factory=list)
    backward: Intervals = field(default_factory=list)  # known on a CPU alone
    updating: Intervals = field(default_factory=list)
    copying: Intervals = field(default_factory=list)  # between the GPU and the host
    at_work: Sequence[float] = ()  # on a CPU: when its program began or ended what computes nothing
    calls: list[Call] = field(default_factory=list)


class Issued(NamedTuple):
    """A collective as the program asked for it: until it was under way, in seconds."""

    kind: str
    start: float
    group: str = ""  # PyTorch's name; "" where it is not known


def read_rank(path: Path, number: int, issued: Iterable[Issued] = ()) -> RankTrace:
    """The trace of one rank.

    Args:
        number: the rank, where the trace does not say it.
        issued: what the Flight Recorder of this rank knows of its collectives.

    Raises:
        ValueError: the file is no trace, or nothing in it computes.
    """
    events = read_events(path)
    head = next(events)
    assert isinstance(head, dict)
    about = head.get("distributedInfo") or {}
    zero = head.get("baseTimeNanoseconds", 0) * 1e-3
    groups = {g["pg_name"]: Group(g["pg_desc"], tuple(g["ranks"])) for g in about.get("pg_config", ())}
    reader = _Reader(zero, groups)
    for event in events:
        if event.ph == "X":  # type: ignore[union-attr]
            reader.add(event)  # type: ignore[arg-type]
    trace = RankTrace(about.get("rank", number), reader.gpu, head.get("host_name", ""), groups)
    reader.fill(trace, sorted(issued, key=lambda each: each.start))
    if not trace.computing:
        raise ValueError(f"{path} holds no operator and no kernel: record it with torch.profiler")
    return trace


class _Reader:
    """Sorts events out as they come; keeps what is on a GPU and what is on a CPU until all are known."""

    def __init__(self, zero: float, groups: dict[str, Group]) -> None:
        self.zero, self.groups, self.gpu = zero, groups, False
        self.busy: dict[str, Busy] = defaultdict(Busy)
        self.operators: dict[int | str, Busy] = defaultdict(Busy)  # by the thread that they ran on
        self.asking: set[int | str] = set()  # threads of the program: those that ask for collectives
        self.moments: dict[int | str, array[float]] = defaultdict(lambda: array("d"))
        self.steps: dict[bool, dict[int, tuple[float, float]]] = {False: {}, True: {}}
        self.kernels: list[Call] = []
        self.asked: list[Issued] = []
        self.gloo: list[tuple[float, float, str, int | str]] = []

    def add(self, event: Event) -> None:
        cat, name = event.cat, event.name
        start, end = (event.ts + self.zero) * 1e-6, (event.end + self.zero) * 1e-6
        if cat in KERNELS:
            self.gpu = True
            if cat == "kernel" and name.lower().startswith("nccl"):
                arguments = event.arguments()
                kind = kind_of(arguments.get("Collective name") or name)
                self.kernels.append(Call(kind, self._group(arguments), start, end))
            else:
                self.busy["kernels" if cat == "kernel" else "copies"].add(start, end)
        elif cat == "cpu_op" and not self.gpu:
            if "::" in name and not name.startswith(FRAMES):
                self.operators[event.tid].add(start, end)
                return
            self.moments[event.tid].extend((start, end))
            if name in WAITS:
                self.busy["waits"].add(start, end)
            if name.startswith("autograd::"):
                self.busy["backward"].add(start, end)
            elif name.startswith("c10d::"):
                self.asked.append(Issued(kind_of(name), start))
                self.asking.add(event.tid)
        elif cat in ("user_annotation", "gpu_user_annotation"):
            on_gpu = cat[0] == "g"
            if step := STEP.match(name):
                found = self.steps[on_gpu].get(int(step[1]), (start, end))
                self.steps[on_gpu][int(step[1])] = min(found[0], start), max(found[1], end)
            elif name.startswith("Optimizer.step"):
                self.busy["update on a GPU" if on_gpu else "update"].add(start, end)
            elif name.startswith("gloo:"):
                self.gloo.append((start, end, kind_of(name), event.tid))
            elif "backward" in name:  # what FSDP does after it
                self.busy["backward"].add(start, end)

    def _group(self, arguments: dict[str, Any]) -> Group:
        """What a kernel of NCCL says of its group."""
        known = self.groups.get(str(arguments.get("Process Group Name")), Group())
        name = arguments.get("Process Group Description") or known.name
        listed = re.findall(r"\d+", str(arguments.get("Process Group Ranks", "")))
        whole = len(listed) == arguments.get("Group size", len(listed))  # long lists are cut: [0, 1, ..., 63]
        return Group(name, tuple(map(int, listed)) if listed and whole else known.ranks)

    def fill(self, trace: RankTrace, issued: list[Issued]) -> None:
        get = {name: busy.intervals() for name, busy in self.busy.items()}.get
        if self.gpu:
            trace.computing, trace.copying = get("kernels", []), get("copies", [])
            trace.updating, trace.calls = get("update on a GPU", []), sorted(self.kernels, key=_begin)
        else:
            gloo = {
                thread for *_, thread in self.gloo
            } - self.asking  # its threads copy: no computing of the rank's
            ran = [
                pair
                for thread, busy in self.operators.items()
                if thread not in gloo
                for pair in busy.intervals()
            ]
            trace.computing = difference(union(ran), get("waits", []))
            trace.at_work = sorted(chain.from_iterable(self.moments[thread] for thread in self.asking))
            trace.updating = get("update", [])
            trace.backward = union(get("backward", []), gap=1e-3)
            trace.calls = self._gloo_calls(issued)
        steps = self.steps[self.gpu] or self.steps[False]
        marks = [steps[number] for number in sorted(steps)]
        trace.steps = [(start, following) for (start, _), (following, _) in pairwise(marks)] + marks[-1:]
        if not marks and trace.computing:  # a trace without steps is one step
            whole = union([*trace.computing, *((call.start, call.end) for call in trace.calls)])
            trace.steps = [(whole[0][0], whole[-1][1])]

    def _gloo_calls(self, issued: list[Issued]) -> list[Call]:
        """Gloo's collectives with their groups, and with the kind that was asked for: Gloo's reduce-scatter is an
        all-reduce. A thread of Gloo serves one group, so what most of its collectives belong to holds for all."""
        asked = sorted(self.asked, key=lambda each: each.start)
        times = [each.start for each in asked]
        for known in issued:  # noted while the operator ran: the last one to start before it
            at = bisect_right(times, known.start + 2e-5) - 1
            if at >= 0:
                asked[at] = asked[at]._replace(group=known.group)
        waiting, served, kinds = asked, defaultdict(Counter), []
        for start, _, kind, thread in sorted(self.gloo):
            fits = (kind, "reduce-scatter") if kind == "all-reduce" else (kind,)
            each = next((a for a in waiting if a.start <= start and a.kind in fits), None)
            kinds.append(each.kind if each else kind)
            if each is not None:
                waiting.remove(each)
                served[thread][each.group] += 1
        several = [group for group in self.groups.values() if len(group.ranks) > 1]
        default = several[0] if len(several) == 1 else Group()
        found = []
        for (start, end, _, thread), kind in zip(sorted(self.gloo), kinds, strict=True):
            name = max(served[thread], key=served[thread].__getitem__, default="")
            found.append(Call(kind, self.groups.get(name, default), start, end))
        return found


def _begin(call: Call) -> float:
    return call.start


def kind_of(name: str) -> str:
    """``c10d::_reduce_scatter_base_``, ``ncclDevKernel_ReduceScatter_Sum_f32_RING_LL`` -> ``reduce-scatter``."""
    plain = name.lower().replace("_", "")
    return next((kind for word, kind in KINDS.items() if word in plain), "collective")
