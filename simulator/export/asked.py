"""What every exporter gets and gives, and how it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simulator.inputs.plan import Plan


class Export(NamedTuple):
    """``text``: the file. ``notes``: what the framework does in another way, or is said in the script's own code."""

    text: str
    notes: list[str]


@dataclass
class Asked:
    """What is to be written; fields as in ``export``. ``note`` collects what the reader must know."""

    framework: str
    shape: Any  # a ModelShape; Traces where no flag needs its sizes
    plan: Plan
    model: str | None
    node_size: int
    notes: list[str] = field(default_factory=list)

    def only(self, name: str, *accepted: Any, because: str) -> None:
        """Refuse a plan in which this field has another value."""
        value = getattr(self.plan, name)
        if value not in accepted:
            values = " or ".join(map(str, accepted))
            raise ValueError(f"for {self.framework} {name} must be {values}, not {value}: {because}")

    def whole_copies(self, because: str) -> None:
        """Refuse hybrid sharding."""
        ranks = self.plan.dp * self.plan.cp
        if self.plan.zero and self.plan.shard != ranks:
            raise ValueError(
                f"for {self.framework} shard must be all {ranks} ranks, not {self.plan.shard}: {because}"
            )

    def note(self, sentence: str, when: bool = True) -> None:
        if when:
            self.notes.append(sentence)

    @property
    def nodes(self) -> tuple[int, int]:
        """Nodes, and devices that are used in each."""
        used = min(self.plan.ranks, self.node_size)
        return -(-self.plan.ranks // used), used

    @property
    def copies(self) -> int:
        """Ranks that do not share one copy of the states."""
        return self.plan.dp * self.plan.cp // self.plan.shard

    def command(self, program: str, flags: dict[str, Any], last: str = "") -> Export:
        """A shell script: torchrun, and a flag a line. True is a flag without a value; None is no flag."""
        nodes, used = self.nodes
        lines = [f"torchrun --nnodes {nodes} --nproc-per-node {used} {program}"]
        if nodes > 1:
            lines[0] = lines[0].replace("--nproc", '--rdzv-backend c10d --rdzv-endpoint "$HEAD" --nproc')
            self.note("Start it on every node, with HEAD=host:port of one of them.")
        lines += [
            f"--{name}" if value is True else f"--{name} {value}"
            for name, value in flags.items()
            if value is not None
        ]
        return Export(" \\\n    ".join([*lines, last] if last else lines) + "\n", self.notes)
