"""Elastic training by hand: a rank is lost, and the rest goes on.

Who is there forms a round: a process group of its own, in which all
have the same state. A sum in which a rank is lost fails on the others.
They throw the step's gradients away, meet again, and repeat the step
without it. Nothing is read from a disk, and no step is done twice.

What makes this right, and easy, is that a step depends on nothing but
the state and the step's samples. The samples are dealt out anew among
those who are there, so after each step the state is that of one device.

torchft does it so (https://github.com/meta-pytorch/torchft), and also
takes in ranks that come later. All rounds need a ``store`` that no rank
takes with it: a file, or a TCPStore in another process.
"""

import io
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from course_lib.runtime import trace


class Elastic:
    """This rank among those that are there.

    Args:
        store: where the ranks meet.
        name: 0, 1, ...: this rank's for its whole life. Its place in a
            round, ``rank``, may change.
        ranks: how many there are at the beginning.
        grace: seconds in which all who live must have noticed a loss.
    """

    def __init__(self, model, optimizer, store, name, ranks, grace=5.0):
        self.model, self.optimizer = model, optimizer
        self.store, self.name, self.grace = store, name, grace
        self.members = list(range(ranks))  # their names
        self.round = self.steps = 0  # steps that are done
        self.rank = 0
        self.together = False

    # ---- rounds ----

    def meet(self) -> None:
        """Form rounds until one of them holds."""
        attempts = len(self.members)  # each that fails has lost a rank
        while not self.together:
            self.part()
            self.round, attempts = self.round + 1, attempts - 1
            try:
                self.members = self.gather_members()
                self.connect()
                self.share_state()
                self.together = True
            except RuntimeError:  # another one was lost
                if attempts <= 0:
                    raise

    def gather_members(self) -> list[int]:
        """The names of those who come to this round, sorted."""
        store = dist.PrefixStore(f"round {self.round}/", self.store)
        ticket = store.add("came", 1)  # 1, 2, ... as they come
        store.set(f"ticket {ticket}", str(self.name))
        if ticket == 1:  # who comes first decides who is in it
            self.wait_for_others(store)
        store.wait(["size"], timedelta(seconds=3 * self.grace))
        size = int(store.get("size"))
        if ticket > size:  # never two rounds side by side
            raise ConnectionError("the others have gone on without me")
        names = [store.get(f"ticket {i + 1}") for i in range(size)]
        return sorted(int(name) for name in names)

    def wait_for_others(self, store) -> None:
        end = time.monotonic() + self.grace
        while (
            store.add("came", 0) < len(self.members)
            and time.monotonic() < end
        ):
            time.sleep(0.01)
        store.set("size", str(store.add("came", 0)))

    def connect(self) -> None:
        self.rank = self.members.index(self.name)
        dist.init_process_group(
            "gloo",  # it tells of a lost rank at once; NCCL waits for it
            store=dist.PrefixStore(f"group {self.round}/", self.store),
            rank=self.rank,
            world_size=len(self.members),
            timeout=timedelta(seconds=max(30.0, 3 * self.grace)),
        )

    def part(self) -> None:
        """Closes the connections. That is how those who still wait for
        this rank, in a sum that cannot end, come to know of it."""
        self.together = False
        if dist.is_initialized():
            dist.destroy_process_group()

    def share_state(self) -> None:
        """Takes the state of who has done most steps. They may differ
        by one: a sum can end on one rank and fail on another."""
        steps = torch.zeros(len(self.members), dtype=torch.int64)
        steps[self.rank] = self.steps
        dist.all_reduce(steps)
        newest = int(steps.argmax())
        packed = io.BytesIO()
        state = [self.model.state_dict(), self.optimizer.state_dict()]
        torch.save([self.steps, *state], packed)
        data = torch.frombuffer(packed.getbuffer(), dtype=torch.uint8)
        size = torch.tensor([len(data)])
        dist.broadcast(size, newest)
        if self.rank != newest:
            data = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, newest)
        w = next(self.model.parameters())
        loaded = torch.load(
            io.BytesIO(data.numpy().tobytes()), map_location=w.device
        )
        self.steps, model, optimizer = loaded
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)

    # ---- steps ----

    def step(self, inputs, targets, loss_fn):
        """One step with the samples of all ranks. Returns the loss of
        them all, and the gradient's norm. None: no step was made. Look
        at ``steps``: who meets the others may find theirs further."""
        if not self.together:
            self.meet()
            return None
        p, n = len(self.members), len(inputs)
        inputs = inputs.tensor_split(p)[self.rank]
        targets = targets.tensor_split(p)[self.rank]
        # Parts may be unequal: their sum is the mean over all samples.
        loss = loss_fn(self.model(inputs), targets) * len(inputs) / n
        loss.backward()
        parameters = list(self.model.parameters())
        parts = [loss.detach(), *(w.grad for w in parameters)]
        flat = torch.cat([t.flatten() for t in parts])
        try:  # one message, so that a step is done or is not
            with trace.span("communication", "all-reduce"):
                dist.all_reduce(flat)
        except RuntimeError:
            self.part()
            self.optimizer.zero_grad()
            return None
        sums = flat[1:].split([w.numel() for w in parameters])
        for w, total in zip(parameters, sums, strict=True):
            w.grad.copy_(total.view_as(w))
        norm = get_total_norm([w.grad for w in parameters])
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return flat[0], norm


def train(model: nn.Module, batches, make_optimizer, loss_fn, **place):
    """``batches`` has the samples of all ranks. Yields each step's loss
    and gradient norm. None: this rank missed the end of the step, and
    was given the state after it."""
    optimizer = make_optimizer(model.parameters())
    elastic = Elastic(model, optimizer, **place)
    for number, (inputs, targets) in enumerate(batches):
        told: tuple[Tensor, Tensor] | None = None
        while elastic.steps == number:  # again, where a rank was lost
            told = elastic.step(inputs, targets, loss_fn)
        yield told or (None, None)


if __name__ == "__main__":
    from course_lib.observe.by_hand.elastic import main

    main(train)
