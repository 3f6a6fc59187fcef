"""Pipeline parallelism by hand: each rank has some layers, its stage,
and the samples pass through all ranks and back.

A schedule is data: for each rank a list of actions, done in this order,
each as soon as its input is there. Naive first, ``one-at-a-time``: a
microbatch goes through all stages and back before the next one enters,
so one rank computes while p - 1 wait. With m microbatches GPipe (Huang
et al., arXiv:1811.06965) and 1F1B (Narayanan et al., arXiv:2006.09503)
wait for (p-1)/(m+p-1) of a step. GPipe keeps what m microbatches save
for backward, 1F1B what p of them save.

An action is (kind, stage, microbatch). "F" is a forward, "BW" a whole
backward. Zero-bubble schedules (Qi et al., arXiv:2401.10241) cut it in
"B", for the stage's input, and "W", for its weights: nobody waits for
W, so it fills the bubble. A rank may also have several stages, as when
they are interleaved (arXiv:2104.04473).
"""

from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.runtime import trace


def in_order(p: int, m: int, place, kinds=("F", "BW")) -> list[list]:
    """For each rank all kinds of actions on m microbatches. The lowest
    place goes first; equal places keep this order."""
    ranks, micro = range(p), range(m)
    every = [[(k, r, i) for k in kinds for i in micro] for r in ranks]
    return [sorted(its, key=lambda a: place(*a)) for its in every]


def one_at_a_time(p: int, m: int) -> list[list]:
    """Naive: a forward and its backward, then the next microbatch."""
    return in_order(p, m, lambda kind, r, i: i)


def gpipe(p: int, m: int) -> list[list]:
    """The other way round: all forwards, then all backwards."""
    return in_order(p, m, lambda kind, r, i: 0)


def one_f_one_b(p: int, m: int, kinds=("F", "BW")) -> list[list]:
    """Backward i of rank r comes before forward i + p - r, so p - r
    microbatches are under way at most; W i comes after B i + r."""

    def place(kind: str, r: int, i: int) -> float:
        return i + {"F": 0, "W": p - 0.4}.get(kind, p - r - 0.5)

    return in_order(p, m, place, kinds)


def zb_h1(p: int, m: int) -> list[list]:
    """A W takes the place of a wait: rank r puts off r of them."""
    return one_f_one_b(p, m, ("F", "B", "W"))


class Pipeline:
    """Does this rank's actions of any schedule, with one or more stages
    a rank. What belongs to other ranks is taken out of ``model``."""

    def __init__(self, model, loss_fn, actions: list[list]) -> None:
        self.model, self.loss_fn, self.actions = model, loss_fn, actions
        at = {s: r for r, a in enumerate(actions) for _, s, _ in a}
        self.rank_of = at  # stage -> rank
        self.rank, self.last = dist.get_rank(), len(at) - 1
        self.like = model.norm.weight.detach()  # (hidden,)
        # Gloo takes no tensor of a GPU, where ranks share one.
        gloo = dist.get_backend() == "gloo"
        self.wire = "cpu" if gloo else self.like.device
        # One matrix reads words and writes them: two ranks may have it.
        ends, w = {at[0], at[self.last]}, model.head.weight
        tied = w is model.embedding.tokens.weight and len(ends) == 2
        self.copy = w if tied and self.rank in ends else None
        self.ends = dist.new_group(sorted(ends))
        # Between two ranks, what goes up never waits for what comes
        # down: each way has a group of its own.
        self.ways = dist.new_group(), dist.new_group()
        self.stages = self.cut(len(at))

    def cut(self, n: int) -> dict[int, nn.Sequential]:
        model, blocks = self.model, self.model.blocks
        if n > len(blocks):
            raise ValueError(f"{n} stages need {n} blocks or more")
        cuts = [s * len(blocks) // n for s in range(n + 1)]
        parts = [[*blocks[a:b]] for a, b in pairwise(cuts)]
        parts[0].insert(0, model.embedding)
        parts[-1] += [model.norm, model.head]
        own = [s for s in range(n) if self.rank_of[s] == self.rank]
        keep = {blocks, *(module for s in own for module in parts[s])}
        for parent in (blocks, model):
            for name, module in list(parent.named_children()):
                if module not in keep:
                    setattr(parent, name, nn.Identity())
        return {s: nn.Sequential(*parts[s]) for s in own}

    def step(self, inputs: list[Tensor], targets: list[Tensor]):
        """Forward and backward of all microbatches. The mean loss, on
        the rank of the last stage; None on all others."""
        self.inputs, self.targets, self.loss = inputs, targets, None
        self.kept, self.here, self.sent = {}, {}, []
        self.coming = [self.messages(each) for each in self.actions]
        for kind, stage, i in self.actions[self.rank]:
            with trace.span("compute", f"{kind}{i}"):
                if kind == "F":
                    self.forward(stage, i)
                else:
                    self.backward(kind, stage, i)
        with trace.waiting():
            for work, _ in self.sent:
                work.wait()
        if self.copy is not None:  # each has the gradient of one use
            with trace.span("communication", "all-reduce"):
                dist.all_reduce(self.copy.grad, group=self.ends)
        return self.loss

    def messages(self, actions: list[tuple]) -> list[tuple]:
        """The trick: a rank's actions say what it sends to this one,
        and in which order, so a message needs no label."""
        found = []
        for kind, stage, i in actions:
            reader = stage + (1 if kind == "F" else -1)
            if kind != "W" and self.rank_of.get(reader) == self.rank:
                found.append((kind[0], reader, i))
        return found

    def send(self, kind: str, reader: int, i: int, x: Tensor) -> None:
        to = self.rank_of[reader]
        if to == self.rank:
            self.here[kind, reader, i] = x
        else:  # x must live until it is sent
            x = x.to(self.wire)
            work = dist.isend(x, to, self.ways[to > self.rank])
            self.sent.append((work, x))

    def wait_for(self, kind: str, stage: int, i: int) -> Tensor:
        sender = self.rank_of[stage + (-1 if kind == "F" else 1)]
        while (kind, stage, i) not in self.here:
            message = self.coming[sender].pop(0)
            # (batch/m, seq, hidden): an output, or its gradient
            shape = *self.targets[message[2]].shape, len(self.like)
            x = self.like.new_empty(shape, device=self.wire)
            with trace.waiting(), trace.span("communication", "receive"):
                dist.recv(x, sender, self.ways[self.rank > sender])
            self.here[message] = x.to(self.like.device)
        return self.here.pop((kind, stage, i))

    def forward(self, stage: int, i: int) -> None:
        x = self.inputs[i]
        if stage > 0:
            x = self.wait_for("F", stage, i).requires_grad_()
        y = self.stages[stage](x)
        if stage < self.last:
            self.send("F", stage + 1, i, y.detach())
        else:
            share = len(x) / sum(map(len, self.targets))
            y = self.loss_fn(y, self.targets[i]) * share
            self.loss = y.detach() + (self.loss or 0)
        self.kept[stage, i] = x, y, None

    def backward(self, kind: str, stage: int, i: int) -> None:
        x, y, gradient = self.kept.pop((stage, i))
        if kind != "W" and stage < self.last:
            gradient = self.wait_for("B", stage, i)
        again = kind == "B"  # then W passes from y to x once more
        if again:
            self.kept[stage, i] = x, y, gradient
        weights = list(self.stages[stage].parameters())
        inputs = {"B": [x], "W": weights, "BW": None}[kind]
        if stage > 0 or not again:
            torch.autograd.backward(y, gradient, again, inputs=inputs)
        if kind != "W" and stage > 0:
            self.send("B", stage - 1, i, x.grad)

    def gradient_norm(self) -> Tensor:
        """Of the whole gradient. Of two copies the first one counts."""
        total = self.like.new_zeros(())
        for w in self.model.parameters():
            if w is not self.copy or self.rank == self.rank_of[0]:
                total += w.grad.square().sum()
        dist.all_reduce(total)
        return total.sqrt()

    def whole(self) -> dict[str, Tensor]:
        """The ``state_dict`` as one device would have it, to save it."""
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, self.model.state_dict())
        return {name: w for part in parts for name, w in part.items()}


def train(model, batches, make_optimizer, loss_fn, schedule=gpipe, m=8):
    """``schedule(p, m)`` gives each rank's actions. Yields each step's
    loss, None where it is not known, and the whole gradient's norm."""
    actions = schedule(dist.get_world_size(), m)
    pipeline = Pipeline(model, loss_fn, actions)
    model.whole = pipeline.whole
    optimizer = make_optimizer(model.parameters())
    for batch in batches:
        loss = pipeline.step(*(t.tensor_split(m) for t in batch))
        norm = pipeline.gradient_norm()
        optimizer.step()
        optimizer.zero_grad()
        yield loss, norm


RUNGS = {
    "one-at-a-time": {"schedule": one_at_a_time},
    "gpipe": {"schedule": gpipe},
    "1f1b": {"schedule": one_f_one_b},
    "zb-h1": {"schedule": zb_h1},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand import main
    from course_lib.observe.by_hand.traffic import pipeline

    schedules = {name: name for name in RUNGS}
    plan = {"pp": None, "microbatches": 8, "schedule": schedules}
    main(train, RUNGS, same_samples=True, traffic=pipeline, **plan)
