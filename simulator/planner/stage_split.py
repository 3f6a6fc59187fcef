"""How many layers each stage of a pipeline gets, on devices of unequal speed and memory: planned, or as given."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import combinations, pairwise, permutations
from math import comb, inf
from operator import getitem, le, mul

from simulator.inputs.checks import at_least, refuse
from simulator.inputs.chunks import chunk_sizes
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.pipeline.engine import simulate
from simulator.pipeline.execution import Execution
from simulator.planner.layer_memory import lacking
from simulator.predict.collective_time import slowest_link
from simulator.predict.memory import plan_memory, reserved_bytes
from simulator.predict.stages import StageSeconds, one_stage_seconds, plan_schedule, unit_seconds

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

    Up to 3,000 splits are all looked at, and those that could still be the fastest are simulated. Of more, the one that
    is best by the formula of a pipeline that is filled and drained, t_1 + … + t_p + (m - 1) max t_i, is where the
    search starts; then layers move between stages one by one as long as the simulated step is faster.

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
    elif (best := pipeline.best_by_formula()) is not None:
        found += [pipeline.moved(best)]
    if not found:
        raise ValueError(pipeline.why_not())
    return pipeline.priced(pipeline.fastest(found)[0] or found[0])


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
        if len(shape.kinds()) > 1:
            raise ValueError("layers of two kinds (dense_layers, decoder_layers) are not split this way")
        if plan.chunks != 1:
            refuse("chunks of the plan", "1: each rank has one stage", plan.chunks)
        self.shape, self.devices, self.plan = shape, list(devices), plan.on(devices[0])
        self.ranks, self.schedule = range(plan.pp), plan_schedule(plan)
        kinds = {d: unit_seconds(shape, replace(plan, stage_layers=None).on(d), d) for d in set(devices)}
        self.units = [kinds[d] for d in devices]
        activation = plan.itemsize * plan.micro_batch * shape.sequence // plan.cp * shape.hidden
        self.transfer = slowest_link(devices).seconds(activation)
        self.stage, self.tensors = cache(self._stage), cache(self._tensors)
        self.chains: list[Callable[[list[int]], float]] = []

    def _stage(self, rank: int, layers: int) -> tuple[float, float, float]:
        """Seconds of F, B and W on one microbatch."""
        last = self.plan.pp - 1
        return one_stage_seconds(self.units[rank], {self.shape: layers}, first=rank == 0, last=rank == last)

    def _tensors(self, layers: int) -> list[float]:
        """Bytes that each rank would hold, each with so many layers: they do not depend on what the others have."""
        shape = replace(self.shape, layers=layers * self.plan.pp)
        plan = replace(self.plan, stage_layers=(layers,) * self.plan.pp)
        return [held.total for held in plan_memory(shape, plan)]

    def bytes(self, rank: int, layers: int) -> float:
        held = self.tensors(layers)[rank]
        return held + reserved_bytes(held, self.devices[rank])

    def fits(self, layers: Sequence[int]) -> bool:
        return all(self.bytes(r, n) <= self.devices[r].memory for r, n in enumerate(layers))

    @cached_property
    def most(self) -> list[int]:
        """The most layers that fit on each rank."""
        counts = range(1, self.shape.layers - self.plan.pp + 2)
        return [
            bisect_right(counts, device.memory, key=partial(self.bytes, rank))
            for rank, device in enumerate(self.devices)
        ]

    def all_that_fit(self) -> list[list[int]]:
        l, p = self.shape.layers, self.plan.pp
        cuts = ((0, *inner, l) for inner in combinations(range(1, l), p - 1))
        splits = ([b - a for a, b in pairwise(ends)] for ends in cuts)
        return [layers for layers in splits if all(map(le, layers, self.most))]

    def chain(self, execution: Execution) -> Callable[[list[int]], float]:
        """How long the chain of work that decided this step takes under any split: no step is shorter than that."""
        nodes = execution.critical_nodes()
        actions = [self.schedule.actions[node.rank][node.at] for node in nodes if not node.transfer]
        counts = Counter((action.stage, action.kind) for action in actions)
        sent = self.transfer * (len(nodes) - len(actions))
        rows = []
        for rank, most in enumerate(self.most):
            f, b, w, both = (counts[rank, kind] for kind in ("F", "B", "W", "BW"))
            weights = f, b + both, w + both
            rows.append([0.0, *(sum(map(mul, weights, self.stage(rank, n))) for n in range(1, most + 1))])
        return lambda layers: sent + sum(map(getitem, rows, layers))

    def fastest(self, splits: list[list[int]], least: float = inf) -> tuple[list[int] | None, float]:
        """Of these splits the one with the shortest step, and its seconds; None if no step is shorter than ``least``.

        Every step that is simulated bounds the others from below by its chain, so that few have to be simulated.
        """
        best = None
        bounds = [(max((chain(layers) for chain in self.chains), default=0.0), layers) for layers in splits]
        while bounds and (nearest := min(bounds))[0] < least:
            layers = nearest[1]
            execution = self.run(layers)
            if execution.makespan < least:
                best, least = layers, execution.makespan
            self.chains.append(chain := self.chain(execution))
            others = ((max(bound, chain(other)), other) for bound, other in bounds if other != layers)
            bounds = [pair for pair in others if pair[0] < least]
        return best, least

    def best_by_formula(self) -> list[int] | None:
        """For each time t that the slowest stage may take, the least sum of all stages' times.

        A stage's time grows by as much with each layer, so the layers beyond the first go where that is least.
        """
        l, p, m = self.shape.layers, self.plan.pp, self.plan.microbatches
        times = [[sum(self.stage(r, n)) for n in range(1, most + 1)] for r, most in enumerate(self.most)]
        by_growth = sorted(self.ranks, key=lambda r: sum(self.stage(r, 2)) - sum(self.stage(r, 1)))
        best, least = None, inf
        for slowest in sorted({t for row in times for t in row}):
            if (m - 1) * slowest >= least:
                break
            room = [bisect_right(row, slowest) for row in times]
            if 0 in room or sum(room) < l:
                continue
            layers, left = [1] * p, l - p
            for rank in by_growth:
                layers[rank] += (more := min(left, room[rank] - 1))
                left -= more
            seconds = sum(times[r][n - 1] for r, n in enumerate(layers)) + (m - 1) * slowest
            if seconds < least:
                best, least = layers, seconds
        return best

    def moved(self, layers: list[int]) -> list[int]:
        """One layer after the other moved to another stage, as long as the step becomes faster."""
        best, seconds = self.fastest([layers])
        while best is not None:
            layers = best
            best, seconds = self.fastest(self._one_moved(layers), seconds)
        return layers

    def _one_moved(self, layers: list[int]) -> list[list[int]]:
        moves = permutations(self.ranks, 2)
        return [
            [n + (r == taker) - (r == giver) for r, n in enumerate(layers)]
            for giver, taker in moves
            if layers[giver] > 1 and layers[taker] < self.most[taker]
        ]

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
        most = self.most
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
