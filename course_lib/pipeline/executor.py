"""Pipeline parallelism by hand: each rank holds some stages of the model, and microbatches pass through all of them.

First the naive way: a microbatch goes through all stages and back before the next one enters, so one rank computes
while all others wait. Then ``Pipeline``, which executes any ``Schedule`` of the simulator: several microbatches are
under way at once, and the schedule says in which order each rank works on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed.device_mesh import DeviceMesh

from course_lib.pipeline.messages import (
    Messages,
    Output,
    input_of,
    kinds_of,
    receive_tensors,
    send_tensors,
)
from course_lib.pipeline.microbatches import Batch, LossFunction, count_tokens, sum_cross_entropy
from course_lib.pipeline.split_backward import SplitBackward
from course_lib.pipeline.stage_modules import StageModules, check_stages
from course_lib.pipeline.tied import add_tied_gradients
from course_lib.runtime import trace
from simulator.pipeline.actions import Action, Schedule
from simulator.pipeline.validate import validate_schedule


class NaivePipeline(StageModules):
    """One microbatch at a time, and every message is waited for. Each rank holds one stage.

    Args:
        stages: this rank's stage, by its number.
        mesh: the ranks, one axis.
        loss_fn: ``(output, targets)`` to the sum of the losses.
    """

    def __init__(
        self, stages: Mapping[int, nn.Module], mesh: DeviceMesh, loss_fn: LossFunction = sum_cross_entropy
    ) -> None:
        super().__init__(stages)
        self.rank, self.last, self.group = mesh.get_local_rank(), mesh.size() - 1, mesh.get_group()
        self.loss_fn, self.mesh = loss_fn, mesh
        if list(stages) != [self.rank]:
            raise ValueError(f"rank {self.rank} must hold the stage {self.rank} alone, not {list(stages)}")

    def step(self, microbatches: Sequence[Batch], tokens: float | None = None) -> Tensor | None:
        """Forward and backward of all microbatches; see ``Pipeline.step``."""
        tokens = count_tokens(microbatches) if tokens is None and self.rank == self.last else tokens
        total = None
        for i, (*inputs, targets) in enumerate(microbatches):
            if self.rank > 0:
                inputs = receive_tensors(self.rank - 1, self.group)
            with trace.span("compute", f"F{i}"):
                outputs = as_tuple(self.modules[self.rank](*inputs))
            if self.rank < self.last:
                send_tensors(outputs, self.rank + 1, self.group)
                outputs = [t for t in outputs if t.requires_grad]
                gradients = receive_tensors(self.rank + 1, self.group)
            else:
                outputs = [self.loss_fn(one_or_all(outputs), targets) / tokens]
                gradients = [torch.ones_like(outputs[0])]
                total = outputs[0].detach() + (0 if total is None else total)
            with trace.span("compute", f"B{i}"):
                torch.autograd.backward(outputs, gradients)
            if self.rank > 0:
                send_tensors(gradients_of(inputs), self.rank - 1, self.group)
        add_tied_gradients(self.modules, self.mesh, lambda stage: stage)
        return total


class Pipeline(StageModules):
    """Executes a schedule: each rank does its actions in their order, each as soon as its input has arrived.

    Args:
        stages: this rank's, by their numbers (``stages.rank_stages``); a stage may be wrapped.
        schedule: who does what in which order.
        mesh: the ranks of the pipeline, one axis.
        loss_fn: ``(output, targets)`` to the **sum** of the losses: sums of microbatches of any sizes add up.
        around: ``(action, last)`` to a context manager that is entered around the computation of every action. When
            it is left and ``last`` is true, the gradients of this stage are complete.

    Raises:
        ValueError: the schedule cannot run, or is for other ranks or stages.
    """

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        schedule: Schedule,
        mesh: DeviceMesh,
        loss_fn: LossFunction = sum_cross_entropy,
        *,
        around: Callable[[Action, bool], AbstractContextManager] | None = None,
    ) -> None:
        super().__init__(stages)
        validate_schedule(schedule)  # no rank may wait for ever
        check_stages(stages, schedule, mesh)
        self.schedule, self.mesh, self.loss_fn = schedule, mesh, loss_fn
        self.around = around or (lambda action, last: nullcontext())
        self.before_tied: Callable[[], None] | None = None
        self.actions = schedule.actions[mesh.get_local_rank()]
        self.last_gradients = {action.stage: action for action in self.actions if action.kind != "F"}
        self.messages = Messages(schedule, mesh)
        self.synchronise = True
        self.work = {
            "F": self.forward,
            "BW": self.backward,
            "B": self.backward_input,
            "W": self.backward_weight,
        }

    def step(self, microbatches: Sequence[Batch], tokens: float | None = None) -> Tensor | None:
        """Forward and backward of all microbatches. Gradients are added to ``.grad``.

        Every rank calls it with microbatches of the same shapes. Inputs are read where the first stage is, targets
        where the last one is.

        Args:
            microbatches: each ``(*inputs, targets)``, of any sizes.
            tokens: what the sum of the losses is divided by; None: the number of all targets that are not -100.

        Returns:
            The loss where the last stage is, None elsewhere.
        """
        self.begin(microbatches, tokens)
        for action in self.actions:
            self.run(action)
        self.messages.wait_until_sent()
        if self.before_tied is not None:
            self.before_tied()
        if self.synchronise:
            add_tied_gradients(self.modules, self.mesh, self.schedule.rank_of)
        return self.loss

    @torch.no_grad()
    def evaluate(self, microbatches: Sequence[Batch], tokens: float | None = None) -> Tensor | None:
        """The loss, without gradients: the forwards of the schedule alone."""
        self.begin(microbatches, tokens, forward_only=True)
        for action in self.actions:
            if action.kind == "F":
                self.run(action)
        self.messages.wait_until_sent()
        return self.loss

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only add to this rank's gradients: for all steps but the last of an accumulation."""
        before, self.synchronise = self.synchronise, False
        try:
            yield
        finally:
            self.synchronise = before

    def begin(self, microbatches: Sequence[Batch], tokens: float | None, forward_only: bool = False) -> None:
        if len(microbatches) != self.schedule.microbatches:
            raise ValueError(
                f"the schedule is for {self.schedule.microbatches} microbatches, not {len(microbatches)}"
            )
        if tokens is None and self.schedule.stages - 1 in self.modules:
            tokens = count_tokens(microbatches)
        self.tokens, self.loss = tokens, None
        self.targets = [targets for *_, targets in microbatches]
        self.kept: dict[tuple[int, int], tuple] = {}  # inputs and outputs of forwards without a backward
        self.split: dict[tuple[int, int], SplitBackward] = {}  # backwards whose second part is to come
        self.here: dict[Output, Sequence[Tensor]] = {}  # outputs that this rank needs itself
        self.peak_in_flight = 0
        for i, (*inputs, _) in enumerate(microbatches):
            if 0 in self.modules:
                self.here["F", -1, i] = inputs
        shapes = [(forward_only, *((t.shape, t.dtype) for t in batch)) for batch in microbatches]
        self.messages.begin(shapes, forward_only)

    def run(self, action: Action) -> None:
        """Wait for the action's input, do it, and pass its output on."""
        kind, stage, i = action
        inputs = [] if kind == "W" else self.take(input_of(action))
        last = self.synchronise and action == self.last_gradients[stage]
        try:
            with self.around(action, last), trace.span("compute", self.schedule.span_name(action)):
                outputs = self.work[kind](stage, i, inputs)
        except Exception as error:
            given = ", ".join(map(str, kinds_of(inputs)))
            error.add_note(
                f"Stage {stage} was at {self.schedule.span_name(action)}, whose input is {given or 'none'}."
            )
            raise
        if kind != "W":
            self.hand_over((kind[0], stage, i), outputs)

    def take(self, output: Output) -> Sequence[Tensor]:
        return self.here.pop(output) if output in self.here else self.messages.receive(output)

    def hand_over(self, output: Output, tensors: Sequence[Tensor]) -> None:
        receiver = self.messages.receiver(output)
        if receiver == self.messages.rank:
            self.here[output] = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
        elif receiver is not None:
            self.messages.send(output, tensors)

    # ---- the four kinds of actions ------------------------------------------------------------------------

    def forward(self, stage: int, i: int, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        outputs = as_tuple(self.modules[stage](*inputs))
        if stage == self.schedule.stages - 1:
            loss = self.loss_fn(one_or_all(outputs), self.targets[i]) / self.tokens
            self.loss = loss.detach() + (0 if self.loss is None else self.loss)
            self.here["B", stage + 1, i] = [torch.ones_like(loss)]
            outputs = (loss,)
        # For backward the outputs themselves are not needed, but their places in the graph.
        edges = [get_gradient_edge(t) for t in outputs if t.requires_grad]
        self.kept[stage, i] = inputs, edges
        self.peak_in_flight = max(self.peak_in_flight, len(self.kept))
        return outputs

    def backward(self, stage: int, i: int, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        inputs, outputs = self.kept.pop((stage, i))
        if outputs:
            torch.autograd.backward(outputs, gradients)
        return gradients_of(inputs)

    def backward_input(self, stage: int, i: int, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Where the input has no gradient, in the first stage, this part goes down to the stage's first parameter."""
        inputs, outputs = self.kept.pop((stage, i))
        trained = (p for p in self.modules[stage].parameters() if p.requires_grad)
        targets = [t for t in inputs if t.requires_grad] or list(islice(trained, 1))
        self.split[stage, i] = SplitBackward(outputs, gradients, targets)
        return gradients_of(inputs)

    def backward_weight(self, stage: int, i: int, _: Sequence[Tensor]) -> Sequence[Tensor]:
        self.split.pop((stage, i)).weights()
        return ()


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def one_or_all(outputs: Sequence[Tensor]) -> Tensor | Sequence[Tensor]:
    return outputs[0] if len(outputs) == 1 else outputs


def gradients_of(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Zeros where a stage did not use its input."""
    return [torch.zeros_like(t) if t.grad is None else t.grad for t in inputs if t.requires_grad]
