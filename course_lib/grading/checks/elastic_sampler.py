"""The check of 20.3: a sampler that goes on where another number of ranks stopped."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from course_lib.grading.checks.elastic_rounds import first_difference
from course_lib.grading.report import Report, check

Shuffle = Callable[[int], list[int]]

SAME = (
    "The samples of a step, of all ranks together, are the same with any number of ranks, "
    "and whether or not the run was stopped in between."
)
SHARED = "The numbers of samples of two ranks differ by at most 1 at each step."
TEXT = "`state()` returns what `json.dumps` can write."
ANY_RANK = "The state of every rank is the same, and any rank of the next run can load it."
SHORT = "The state is at most 64 characters of JSON."
DRAWN = "After `load`, `shuffle` is called once for each epoch that is still needed, and for no other."
CHARACTERS = 64


class Case(NamedTuple):
    """Stretches of a run: so many steps on so many ranks; in between the state is saved by one rank and loaded."""

    name: str
    length: int
    batch: int
    stretches: Sequence[tuple[int, int]]
    saver: int = 0


def _cases(seed: int) -> list[Case]:
    """All but the last are fixed, and any two mistakes below differ in one of these."""
    draw = random.Random(seed)
    return [
        Case("4 ranks, one epoch that divides evenly", 24, 8, [(3, 4)]),
        Case("2 ranks, two epochs with a short last step", 10, 4, [(6, 2)]),
        Case("from 4 ranks to 3 in the middle of an epoch", 48, 12, [(2, 4), (2, 3)]),
        Case("from 4 ranks to 3, saved by rank 3", 60, 12, [(2, 4), (3, 3)], saver=3),
        Case("from 3 ranks to 4, 7 samples a step", 30, 7, [(2, 3), (4, 4)], saver=1),
        Case("saved at the end of an epoch", 20, 5, [(4, 2), (4, 3)]),
        Case("saved in the second epoch", 16, 6, [(5, 2), (3, 3)]),
        Case("saved twice without a step in between", 20, 6, [(2, 4), (0, 3), (3, 2)]),
        Case("saved three times over three epochs", 14, 4, [(3, 4), (4, 3), (3, 1), (2, 5)], saver=0),
        Case("more ranks than samples at the last step", 9, 8, [(1, 4), (2, 5)]),
        Case("one sample, one rank", 1, 1, [(1, 1), (2, 1)]),
        Case("a batch of the whole epoch", 6, 6, [(1, 3), (2, 2)]),
        Case("a batch larger than the epoch", 5, 8, [(1, 2), (2, 3)]),
        Case("a drawn length, five stretches", draw.randint(40, 70), draw.randint(5, 13),
             [(draw.randint(0, 6), draw.randint(1, 5)) for _ in range(5)]),
    ]  # fmt: skip


class Run(NamedTuple):
    steps: list[list[int]]  # the samples of each step, of all ranks together, sorted
    uneven: str = ""
    problem: str = ""
    task: str = ""
    characters: int = 0
    drawn: int = 0


def orders(case: Case, asked: list[int]) -> Shuffle:
    def shuffle(epoch: int) -> list[int]:
        asked.append(epoch)
        return random.Random(f"{case.name} {epoch}").sample(range(case.length), case.length)

    return shuffle


def drive(sampler: Callable[..., Any], case: Case) -> Run:
    """Run all stretches of a case on one sampler for each rank."""
    steps: list[list[int]] = []
    uneven, text, characters, drawn = "", None, 0, 0
    for count, ranks in case.stretches:
        asked: list[list[int]] = [[] for _ in range(ranks)]
        every = [
            sampler(orders(case, each), case.length, case.batch, rank, ranks)
            for rank, each in enumerate(asked)
        ]
        first_epoch = _epoch_of(len(steps), case)
        for each in every:
            if text is not None:
                each.load(json.loads(text))
        for _ in range(count):
            parts = [[int(i) for i in each.next_batch()] for each in every]
            sizes = [len(part) for part in parts]
            if not uneven and max(sizes) - min(sizes) > 1:
                uneven = f"at step {len(steps)} the ranks get {', '.join(map(str, sizes))} samples"
            steps.append(sorted(sample for part in parts for sample in part))
        states = [each.state() for each in every]
        try:
            texts = [json.dumps(state) for state in states]
        except TypeError:
            return Run(steps, uneven, f"the state is {states[0]!r:.80}, and json cannot write it", TEXT)
        if other := next((one for one in texts if one != texts[0]), None):
            said = f"after {len(steps)} steps the state of rank 0 is {texts[0]:.60}, that of another rank {other:.60}"
            return Run(steps, uneven, said, ANY_RANK)
        entered = _epoch_of(len(steps), case) - first_epoch + 1
        text = texts[min(case.saver, ranks - 1)]
        characters = max(characters, len(text))
        drawn = max(drawn, max(len(one) for one in asked) - entered)
    return Run(steps, uneven, "", "", characters, drawn)


def _epoch_of(step: int, case: Case) -> int:
    return step // -(-case.length // case.batch)


@check
def check_20_3(report: Report, sampler: Callable[..., Any]) -> None:
    for case in _cases(report.seed()):
        with report.case(case.name):
            got, want = drive(sampler, case), drive(Reference, case)
            step = first_difference(got.steps, want.steps)
            if got.problem and step is None:
                report.fail(got.problem, task=got.task)
            if step is not None:
                story = _story(case, step, got.steps[step], want.steps[step])
                report.true(False, "", story, got=got.steps, mistakes=MISTAKES, given=(case,), task=SAME)
            # that it draws no order too many here is evidence against those that would
            facts = MISTAKES | {text: None for text, drawn in SLOW.items() if drawn(case) > 0 >= got.drawn}
            report.equal("the samples of every step", got.steps, want.steps, mistakes=facts, given=(case,))
            report.true(
                not got.uneven, "they are shared out evenly", got.uneven,
                got=got.uneven, mistakes=UNEVEN, given=(case,), task=SHARED,
            )  # fmt: skip
            report.at_most("characters of the state", got.characters, CHARACTERS, task=SHORT)
            report.at_most(
                "orders drawn beyond those needed", max(0, got.drawn), 0, mistakes=SLOW, given=(case,), task=DRAWN
            )  # fmt: skip


def _story(case: Case, step: int, got: list[int], want: list[int]) -> str:
    again = sorted(set(got) - set(want))
    missing = sorted(set(want) - set(got))
    twice = sorted({i for i in got if got.count(i) > 1})
    parts = [
        f"{_few(missing)} missing" if missing else "",
        f"{_few(again)} of another step" if again else "",
        f"{_few(twice)} more than once" if twice else "",
    ]
    said = "; ".join(filter(None, parts))
    stretches = ", then ".join(f"{count} steps on {ranks} ranks" for count, ranks in case.stretches)
    return (
        f"step {step} has {len(got)} samples, expected {len(want)}: {said}\n"
        f"({case.length} samples, {case.batch} a step: {stretches})"
    )


def _few(samples: list[int]) -> str:
    shown = ", ".join(map(str, samples[:4])) + (" …" if len(samples) > 4 else "")
    return f"sample {shown}" if len(samples) == 1 else f"samples {shown}"


# ---- the reference, and likely mistakes as variations of it -----------------------------------------------------


class Reference:
    """Counts the samples of all ranks together; ``mistake`` names one departure from that."""

    mistake = ""

    def __init__(self, shuffle: Shuffle, length: int, batch: int, rank: int, ranks: int) -> None:
        self.shuffle, self.length, self.batch, self.rank, self.ranks = shuffle, length, batch, rank, ranks
        self.epoch, self.consumed, self.order, self.own, self.steps = 0, 0, None, 0, 0
        if self.mistake == "draws at once":
            self.order = shuffle(0)

    def next_batch(self) -> list[int]:
        if self.order is None or self.mistake == "draws each step":
            self.order = self.shuffle(0 if self.mistake == "one order" else self.epoch)
        size = self.batch - self.batch % self.ranks if self.mistake == "whole parts" else self.batch
        if self.mistake == "batch of a rank":
            size = self.batch * self.ranks
        found = self.order[self.consumed : self.consumed + size]
        self.consumed += size
        self.steps += 1
        beyond = {"drops": self.consumed + size, "empty step": self.consumed}.get(self.mistake)
        last = self.consumed >= self.length if beyond is None else beyond > self.length
        if last:
            self.epoch, self.consumed, self.order = self.epoch + 1, 0, None
        if self.mistake == "pads" and len(found) % self.ranks:
            found = found + found[: -len(found) % self.ranks]
        part = self._part(found)
        self.own = 0 if last else self.own + len(part)
        return part

    def _part(self, found: list[int]) -> list[int]:
        if self.mistake == "same on all":
            return found
        if self.mistake == "rounded up":
            size = -(-len(found) // self.ranks)
            return found[self.rank * size : (self.rank + 1) * size]
        if self.mistake == "whole even parts" or (self.mistake == "even parts" and len(found) >= self.ranks):
            found = found[: len(found) // self.ranks * self.ranks]
        return found[self.rank :: self.ranks]

    def state(self) -> dict[str, int]:
        own = {"own samples": self.own, "own times ranks": self.own, "divided": self.consumed // self.ranks}
        consumed = own.get(self.mistake, self.consumed)
        return {"epoch": self.epoch, "consumed": consumed, "steps": self.steps}

    def load(self, state: dict[str, int]) -> None:
        times = self.ranks if self.mistake == "own times ranks" else 1
        self.epoch, self.consumed, self.order = state["epoch"], state["consumed"] * times, None
        self.own, self.steps = state["consumed"], state["steps"]
        if self.mistake in ("begins the epoch again", "nothing"):
            self.consumed = 0
        if self.mistake in ("forgets the epoch", "nothing"):
            self.epoch = 0
        if self.mistake == "one step more":
            self.consumed = min(self.length, self.consumed + self.batch)
        if self.mistake == "full steps":
            self.epoch, self.consumed = divmod(self.steps * self.batch, self.length)


def _with(name: str) -> type[Reference]:
    return type("Mistaken", (Reference,), {"mistake": name})


def _by(kind: str | type[Reference]) -> Callable[[Case], list[list[int]]]:
    made = _with(kind) if isinstance(kind, str) else kind
    return lambda case: drive(made, case).steps


class _Replays(Reference):
    def state(self) -> dict[str, int]:
        return {"steps": self.epoch * -(-self.length // self.batch) + self.consumed // self.batch}

    def load(self, state: dict[str, int]) -> None:
        for _ in range(state["steps"]):
            self.next_batch()


class _FillsUp(Reference):
    def next_batch(self) -> list[int]:
        found: list[int] = []
        while len(found) < self.batch:
            self.order = self.order or self.shuffle(self.epoch)
            part = self.order[self.consumed :][: self.batch - len(found)]
            found, self.consumed = found + part, self.consumed + len(part)
            if self.consumed == self.length:
                self.epoch, self.consumed, self.order = self.epoch + 1, 0, None
        return found[self.rank :: self.ranks]


class _OwnPart(Reference):
    def next_batch(self) -> list[int]:
        self.order = self.order or self.shuffle(self.epoch)[self.rank :: self.ranks]
        found = self.order[self.consumed :][: self.batch // self.ranks]
        self.consumed += self.batch // self.ranks
        if self.consumed >= len(self.order):
            self.epoch, self.consumed, self.order = self.epoch + 1, 0, None
        return found


MISTAKES: dict[str, Callable[[Case], list[list[int]]]] = {
    "when the state counts the samples of one rank, and not those of all ranks": _by("own samples"),
    "when the number of samples in the state is divided by the number of ranks": _by("divided"),
    "when the epoch begins again after `load`": _by("begins the epoch again"),
    "when `load` sets the epoch back to 0": _by("forgets the epoch"),
    "when `load` leaves one step out": _by("one step more"),
    "when the run begins again after `load`": _by("nothing"),
    "when `load` takes every earlier step for one of `batch` samples, also the last one of an epoch": _by(
        "full steps"
    ),
    "when an epoch whose last step is a full one is followed by a step without samples": _by("empty step"),
    "when every epoch has the order of epoch 0": _by("one order"),
    "when the short last step of an epoch is left out": _by("drops"),
    "when samples are repeated so that every rank gets as many": _by("pads"),
    "when the rest is dropped that does not divide by the ranks": _by("even parts"),
    "when a step takes only as many samples as divide by the ranks": _by("whole parts"),
    "when every rank takes `batch` samples": _by("batch of a rank"),
    "when every rank takes all samples of the step": _by("same on all"),
    "when the state counts one rank's samples, and `load` multiplies them by the new number of ranks": _by(
        "own times ranks"
    ),
    "when each rank goes through a part of the epoch that is cut for its number of ranks": _by(_OwnPart),
    "when the last step of an epoch is filled up with samples of the next one": _by(_FillsUp),
    "when all ranks get the same number of samples, so that the rest is in no step": _by("whole even parts"),
}
UNEVEN = {"when the size of a part is rounded up": lambda case: drive(_with("rounded up"), case).uneven}
SLOW: dict[str, Callable[[Case], int]] = {
    "when `load` goes through all earlier steps again": lambda case: drive(_Replays, case).drawn,
    "when `shuffle` is called as soon as a sampler is made": lambda case: (
        drive(_with("draws at once"), case).drawn
    ),
    "when `shuffle` is called at every step": lambda case: drive(_with("draws each step"), case).drawn,
}
