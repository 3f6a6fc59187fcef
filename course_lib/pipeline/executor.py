"""Pipeline parallelism by hand: each rank holds some stages of the model, and microbatches pass through all of them.

``Pipeline`` executes any ``Schedule`` of the simulator: several microbatches are under way at once, and the schedule
says in which order each rank works on them. The naive way, one microbatch at a time, is in ``naive.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from course_lib.pipeline.beside import Beside
from course_lib.pipeline.messages import Messages, input_of, telling
from course_lib.pipeline.microbatches import (
    Batch,
    LossFunction,
    checked_loss,
    count_tokens,
    sum_cross_entropy,
)
from course_lib.pipeline.split_backward import SplitBackward
from course_lib.pipeline.stage_modules import StageModules, check_stages
from course_lib.pipeline.stages import as_tuple, gradients_of, one_or_all
from course_lib.pipeline.tied import TiedGradients
from course_lib.runtime import current_device, trace
from simulator.pipeline.actions import Action, Schedule
from simulator.pipeline.validate import validate_schedule


class Pipeline(StageModules):
    """Executes a schedule: each rank does its actions in their order, each as soon as its input has arrived.

    Args:
        stages: this rank's, by their numbers (``stages.rank_stages``); a stage may be wrapped.
        schedule: who does what in which order.
        mesh: the ranks of the pipeline, one axis.
        loss_fn: ``(output, targets)`` to the **sum** of the losses: sums of microbatches of any sizes add up.
        around: ``(action, last)`` to a context manager that is entered around the computation of every action. When
            it is left and ``last`` is true, the gradients of this stage are complete.
        together: a forward and a backward that the schedule pairs (DualPipe, arXiv:2412.19437) run at once, the
            backward in a thread, unless a ledger records the step. For stages that wait for other ranks, without
            ``around``, on CPUs: of two streams of a GPU, one could write where the other still reads.

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
        together: bool = False,
    ) -> None:
        super().__init__(stages)
        validate_schedule(schedule)  # no rank may wait for ever
        check_stages(stages, schedule, mesh)
        self.schedule, self.mesh, self.loss_fn = schedule, mesh, checked_loss(loss_fn)
        self.around = around or (lambda action, last: nullcontext())
        rank = mesh.get_local_rank()
        self.actions = schedule.actions[rank]
        pairs = together and schedule.overlapped and current_device().type == "cpu"
        self.pairs = schedule.overlapped[rank] if pairs else frozenset()
        self.last_gradients = {action.stage: action for action in self.actions if action.kind != "F"}
        self.messages = Messages(schedule, mesh)
        self.tied = TiedGradients(self.modules, mesh, schedule.rank_of)
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
        # A ledger sees the work of its own thread alone.
        pairs = frozenset() if _get_current_dispatch_mode_stack() else self.pairs
        with self.tied.of_step(self.synchronise):
            for at, action in enumerate(self.actions):
                if at in pairs:
                    self.run(action, self.actions[at + 1])
                elif at - 1 not in pairs:
                    self.run(action)
            self.messages.wait_until_sent()
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
        """Send no gradients of tied parameters: for all steps but the last of an accumulation."""
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
        self.peak_in_flight = 0
        self.messages.begin(microbatches, forward_only)
        if 0 in self.modules:
            for i, (*inputs, _) in enumerate(microbatches):
                self.messages.here["F", -1, i] = inputs

    def run(self, *actions: Action) -> None:
        """Wait for the inputs of an action, or of two, do them, and pass their outputs on."""
        lanes = "compute", "compute beside"
        work = [
            partial(self.do, *one) for one in zip(actions, map(self.input_of, actions), lanes, strict=False)
        ]
        others = [Beside(one) for one in work[1:]]
        outputs = [work[0](), *(other.result() for other in others)]
        for (kind, stage, i), output in zip(actions, outputs, strict=True):
            if kind != "W":
                self.messages.send((kind[0], stage, i), output)

    def input_of(self, action: Action) -> Sequence[Tensor]:
        return [] if action.kind == "W" else self.messages.receive(input_of(action))

    def do(self, action: Action, inputs: Sequence[Tensor], lane: str) -> Sequence[Tensor]:
        kind, stage, i = action
        last = self.synchronise and action == self.last_gradients[stage]
        name = self.schedule.span_name(action)
        with telling(stage, name, inputs), self.around(action, last), trace.span(lane, name):
            return self.work[kind](stage, i, inputs)

    # ---- the four kinds of actions ------------------------------------------------------------------------

    def forward(self, stage: int, i: int, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        outputs = as_tuple(self.modules[stage](*inputs))
        if stage == self.schedule.stages - 1:
            loss = self.loss_fn(one_or_all(outputs), self.targets[i]) / self.tokens
            self.loss = loss.detach() + (0 if self.loss is None else self.loss)
            self.messages.here["B", stage + 1, i] = [torch.ones_like(loss)]
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
