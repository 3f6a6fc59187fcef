"""How many layers each stage of a pipeline gets, on devices of unequal speed and memory: planned, or as given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise
from math import comb, inf

from simulator.inputs.checks import at_least, refuse
from simulator.inputs.chunks import chunk_sizes
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.pipeline.engine import simulate
from simulator.pipeline.execution import Execution
from simulator.planner.layer_memory import lacking
from simulator.predict.collective_time import slowest_link
from simulator.predict.memory import plan_memory
from simulator.predict.stages import StageSeconds, plan_schedule, stage_durations, unit_seconds

ALL = 3000  # so many splits are all tried; of more, the best by formula and what single moves make of it


@dataclass(frozen=True)
class StageSplit:
    """A pipeline whose stages may have unequal devices and numbers of layers.

    Args:
        layers: of each stage.
        times: seconds of each stage on one microbatch.
        execution: the schedule, run in the simulator's engine.
        memory: bytes that each rank holds at its peak.
    """

    layers: list[int]
    times: StageSeconds
    execution: Execution
    memory: list[float]

    @property
    def seconds(self) -> float:
        """Of one step, without the optimizer's update."""
        return self.execution.makespan


def plan_stages(shape: ModelShape, devices: Sequence[Hardware], plan: Plan) -> StageSplit:
    """The layers of each stage with which a step takes the least time, where every stage fits its device.

    Up to 3,000 splits are all looked at, and those that could still be the fastest are simulated. Of more, dynamic
    programming over the stages finds the one that is best by the formula of a pipeline that is filled and drained,
    t_1 + … + t_p + (m - 1) max t_i; then layers move between stages one by one as long as the simulated step is
    faster.

    Args:
        devices: one for each stage.
        plan: ``pp``, microbatches, a schedule with one chunk a rank, precision and so on.

    Raises:
        ValueError: nothing fits; the sentence names the device that lacks memory, and how much.
    """
    pipeline = _Pipeline(shape, devices, plan)
    even = chunk_sizes(shape.layers, plan.pp)
    found = [even] if pipeline.fits(even) else []
    if comb(shape.layers - 1, plan.pp - 1) <= ALL:
        found += pipeline.all_that_fit()
        found.sort(key=pipeline.at_least)
    elif (best := pipeline.best_by_formula()) is not None:
        found += [pipeline.moved(best)]
    if not found:
        raise ValueError(pipeline.why_not())
    best, least = found[0], inf
    for layers in found:
        if pipeline.at_least(layers) >= least:
            continue
        seconds = pipeline.run(layers).makespan
        if seconds < least:
            best, least = layers, seconds
    return pipeline.priced(best)


def price_stages(
    shape: ModelShape, devices: Sequence[Hardware], plan: Plan, layers: Sequence[int] | None = None
) -> StageSplit:
    """The same pipeline with a split of one's own; None: as even as can be. It is priced whether it fits or not.

    Raises:
        ValueError: the layers do not add up.
    """
    layers = chunk_sizes(shape.layers, plan.pp) if layers is None else list(layers)
    return _Pipeline(shape, devices, plan).priced(layers)


class _Pipeline:
    """What follows from the question before the split is known. A stage's time and memory depend on its own layers."""

    def __init__(self, shape: ModelShape, devices: Sequence[Hardware], plan: Plan) -> None:
        if isinstance(devices, Hardware) or len(devices) != plan.pp:
            refuse("devices", f"{plan.pp} Hardware, one a stage", devices)
        at_least(2, pp=plan.pp)
        if plan.chunks != 1:
            refuse("chunks of the plan", "1: each rank has one stage", plan.chunks)
        self.shape, self.devices, self.plan = shape, list(devices), plan.on(devices[0])
        self.ranks, self.schedule = range(plan.pp), plan_schedule(plan)
        self.units = [unit_seconds(shape, replace(plan, stage_layers=None).on(d), d) for d in devices]
        activation = plan.itemsize * plan.micro_batch * shape.sequence // plan.cp * shape.hidden
        self.transfer = slowest_link(devices).seconds(activation)
        self.stage = cache(self._stage)
        self.bytes = cache(self._bytes)

    def _with(self, rank: int, layers: int) -> Plan:
        """A plan in which this rank has so many layers, and the others what is left."""
        rest = chunk_sizes(self.shape.layers - layers, self.plan.pp - 1) if self.plan.pp > 1 else []
        return replace(self.plan, stage_layers=(*rest[:rank], layers, *rest[rank:]))

    def _stage(self, rank: int, layers: int) -> tuple[float, float, float]:
        """Seconds of F, B and W on one microbatch."""
        plan = self._with(rank, layers)
        times = stage_durations(self.shape, plan, self.devices[rank], self.units[rank])
        return times.forward[rank], times.backward_input[rank], times.backward_weight[rank]

    def _bytes(self, rank: int, layers: int) -> float:
        return plan_memory(self.shape, self._with(rank, layers), self.devices[rank])[rank].occupied

    def fits(self, layers: Sequence[int]) -> bool:
        return all(self.bytes(r, n) <= self.devices[r].memory for r, n in enumerate(layers))

    def most(self, rank: int) -> int:
        """The most layers that fit on this rank."""
        counts = range(1, self.shape.layers - self.plan.pp + 2)
        return max((n for n in counts if self.bytes(rank, n) <= self.devices[rank].memory), default=0)

    def all_that_fit(self) -> list[list[int]]:
        l, p, most = self.shape.layers, self.plan.pp, [self.most(rank) for rank in self.ranks]
        cuts = ((0, *inner, l) for inner in combinations(range(1, l), p - 1))
        splits = ([b - a for a, b in pairwise(ends)] for ends in cuts)
        return [layers for layers in splits if all(n <= m for n, m in zip(layers, most, strict=True))]

    def at_least(self, layers: Sequence[int]) -> float:
        """No schedule is faster: the first microbatch passes all stages before a stage, then that stage does all its
        work, and the last microbatch passes the stages before it once more."""
        times = [sum(self.stage(r, n)) for r, n in enumerate(layers)]
        m = self.plan.microbatches
        return max(m * t + sum(times[:r]) + 2 * r * self.transfer for r, t in enumerate(times))

    def best_by_formula(self) -> list[int] | None:
        """For each time t that the slowest stage may take, the least sum of all stages' times, stage by stage."""
        l, p, m = self.shape.layers, self.plan.pp, self.plan.microbatches
        most = [self.most(rank) for rank in self.ranks]
        times = [[sum(self.stage(r, n)) for n in range(1, most[r] + 1)] for r in self.ranks]
        best, least = None, inf
        for slowest in sorted({t for row in times for t in row}):
            if (m - 1) * slowest >= least:
                break
            reached: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
            for rank in self.ranks:
                further: dict[int, tuple[float, list[int]]] = {}
                for before, (seconds, layers) in reached.items():
                    for n, t in enumerate(times[rank], start=1):
                        after = before + n
                        if t > slowest or after > l - (p - 1 - rank):
                            break
                        if seconds + t < further.get(after, (inf,))[0]:
                            further[after] = seconds + t, [*layers, n]
                reached = further
            if l in reached and reached[l][0] + (m - 1) * slowest < least:
                least, best = reached[l][0] + (m - 1) * slowest, reached[l][1]
        return best

    def moved(self, layers: list[int]) -> list[int]:
        """One layer after the other moved to another stage, as long as the step becomes faster."""
        seconds = self.run(layers).makespan
        while True:
            better = [(self.run(other).makespan, other) for other in self._one_moved(layers)]
            if not better or min(better)[0] >= seconds:
                return layers
            seconds, layers = min(better)

    def _one_moved(self, layers: list[int]) -> Iterator[list[int]]:
        for giver in self.ranks:
            for taker in self.ranks:
                other = [n + (r == taker) - (r == giver) for r, n in enumerate(layers)]
                if giver != taker and other[giver] and self.fits(other):
                    yield other

    def times(self, layers: Sequence[int]) -> StageSeconds:
        return StageSeconds(*map(list, zip(*(self.stage(r, n) for r, n in enumerate(layers)), strict=True)))

    def run(self, layers: Sequence[int]) -> Execution:
        times = self.times(layers)
        return simulate(
            self.schedule, times.forward, times.backward_input, times.backward_weight, self.transfer
        )

    def priced(self, layers: list[int]) -> StageSplit:
        at_least(1, **{f"layers_of_stage_{r}": n for r, n in enumerate(layers)})
        replace(self.plan, stage_layers=tuple(layers)).check(self.shape)
        memory = [self.bytes(r, n) for r, n in enumerate(layers)]
        return StageSplit(list(layers), self.times(layers), self.run(layers), memory)

    def why_not(self) -> str:
        for rank, device in enumerate(self.devices):
            if self.bytes(rank, 1) > device.memory:
                return f"even with one layer, {lacking(rank, device, self.bytes(rank, 1))}"
        most = [self.most(rank) for rank in self.ranks]
        needed, rank = max(
            (self.bytes(r, most[r] + 1) - self.devices[r].memory, r)
            for r in self.ranks
            if most[r] < self.shape.layers - self.plan.pp + 1
        )
        needed += self.devices[rank].memory
        return (
            f"the devices have room for {sum(most)} layers ({', '.join(map(str, most))}), and the model has "
            f"{self.shape.layers}: with one more layer, {lacking(rank, self.devices[rank], needed)}"
        )
