"""A check observes: what an answer gives in each case, beside what the solution gives in the same case.

An exercise is a file ``exercises/checks/ex_05_3.py`` with three names::

    FACTS = {  # what is observed, in the order of the report
        "gradients": Fact("the gradients of the batch", task="word for word from the task", tolerance=1e-5),
        "messages": Fact("messages", most=1),  # a target
    }
    def cases(seed): ...        # each case has a ``name``, the same in every run, and may have a ``task`` of its own
    def observe(answer, case):  # -> {"gradients": …, "messages": …}; nothing else runs the answer

In place of ``cases`` it may be a list ``CASES``: only their field ``seed`` differs from run to run then. A likely
mistake is a patch of the solution (``mistakes.py``). The notebook says ``check("05.3", whole_batch_gradients)``::

      ✓ 2 ranks, 7 parameters
      ✗ 3 ranks, tied embedding: the gradient of embedding.weight is 2.000 times what is expected
        This is what comes out when the tied weight is reduced twice.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from course_lib.grading.allowed import refuse_what_is_not_allowed
from course_lib.grading.compare import describe, difference, in_number, inequality, same, settle
from course_lib.grading.complaints import explain, not_written, unwritten
from course_lib.grading.failed import TARGET, CheckFailed, Printed, TargetMissed
from course_lib.grading.material import Material, material
from course_lib.grading.mistakes import Mistake

SHOWN = 3  # cases that are told in full
PATIENCE = 10.0  # seconds after which no new case is begun where one has failed,
LIMIT = 25.0  # or after which none is, where more than one listed mistake fits


@dataclass(frozen=True)
class Fact:
    """One thing that is observed of an answer.

    What is observed may be a dict, or a list with one entry a rank (``each="rank"``): the report then names the entry
    that is wrong. A text says in the check's own words what is wrong; where nothing is, it is empty or left out.

    Args:
        says: the name of the thing: ``"the gradient"``; for a dict ``"the gradient of {}"``, where the key goes in.
        task: the sentence of the task that asks for it, word for word.
        tolerance: numbers may differ by this much times (1 + what is expected); None asks for equality.
        most: makes it a target: the observed number may not exceed this.
        beyond: of a target, only what is more than the solution needs counts.
        percent: of a target, what counts is in percent of what the solution needs.
        each: what a list has one entry for, such as ``"rank"``.
    """

    says: str
    task: str | None = None
    tolerance: float | None = None
    most: float | None = None
    beyond: bool = False
    percent: bool = False
    each: str | None = None

    def wrong(self, got: Any, want: Any) -> list[str]:
        """How ``got`` departs from ``want``: a line, and lines that help; empty where it does not."""
        if self.most is not None:
            counted = got - want if self.beyond else round(100 * got / want, 1) if self.percent else got
            return [f"{self.says}: {counted:,} {self.stated}"] if counted > self.most else []
        told = [(where, self._differs(*entry)) for where, *entry in self._entries(got, want)]
        wrong = [(where, lines) for where, lines in told if lines]
        if not wrong:
            return []
        (where, (first, *more)), many = wrong[0], len({where for where, _ in wrong})
        return [where + first, *more, *([f"({many} of {len(got)} {self.each}s)"] if many > 1 else [])]

    @property
    def stated(self) -> str:
        """The target, as lines end with it."""
        return f"{TARGET}at most {self.most:,})"

    def alike(self, one: Any, other: Any) -> bool:
        """Whether two observations are the same by the measure of this fact."""
        try:
            return one == other if self.most is not None else not self.wrong(one, other)
        except Exception:  # what cannot be compared is not the same
            return False

    def _entries(self, got: Any, want: Any) -> Iterator[tuple[str, str, Any, Any]]:
        """(where, name, got, want) of each part that is compared."""
        pairs = [("", got, want)]
        if self.each and isinstance(got, list | tuple) and len(got) == len(want := want or [""] * len(got)):
            pairs = [(f"{self.each} {i}: ", *both) for i, both in enumerate(zip(got, want, strict=True))]
        for where, one, other in pairs:
            if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
                for key, value in other.items():
                    yield where, self.says.replace("{}", str(key)), one[key], value
            else:
                yield where, self.says.replace(" of {}", ""), one, other

    def _differs(self, name: str, got: Any, want: Any) -> list[str]:
        if isinstance(got, str) and want == "":
            return got.splitlines()
        if want is None:
            return [f"{name} is {describe(got)}, expected None"] if got is not None else []
        if self.tolerance is not None and not isinstance(want, str):
            lines = difference(got, want, self.tolerance)
        else:
            settled = settle(got, want)
            lines = () if same(settled, want) else inequality(settled, want)
        return [f"{name} {in_number(name, lines[0])}", *lines[1:]] if lines else []


def record(fields: str, name: Callable[[Any], str] | None = None, **defaults: Any) -> Any:
    """A named tuple, for cases: ``Case = record("ranks rows", lambda c: f"{c.ranks} ranks", dtype=torch.float32)``.

    Args:
        fields: those without a default; one is ``name``, unless a function of the case tells it. ``seed`` is the last.
    """
    defaults["seed"] = 0
    case = namedtuple("Case", [*fields.split(), *defaults], defaults=list(defaults.values()))
    return type("Case", (case,), {"name": property(name)}) if name else case


@dataclass
class Seen:
    """What an answer gave in one case, or raised; ``wrong`` is the first fact that does not hold, None where all do."""

    case: Any
    got: dict[str, Any] = field(default_factory=dict)
    want: dict[str, Any] = field(default_factory=dict)
    wrong: str | None = None
    missed: tuple[str, ...] = ()  # targets, where the answer is right
    raised: BaseException | None = None

    @property
    def hung(self) -> bool:
        """Its ranks waited for each other: no rank is to blame."""
        return type(self.raised).__name__ == "RankError" and getattr(self.raised, "rank", None) is None


def check(exercise: str, *answers: Any) -> None:
    """Judge the answer to an exercise, such as ``"05.3"``, and print a line for each case.

    Raises:
        CheckFailed: a fact is wrong, or the answer raised. ``TargetMissed``, its subclass, where the answer is right.
    """
    refuse_what_is_not_allowed(exercise)
    given, printed = material(exercise), Printed()
    ranks = sys.modules.get("course_lib.runtime.kept")  # loaded by the checks that need it
    keeping = ranks.kept() if ranks else nullcontext()  # from case to case, and while mistakes are compared
    with keeping, redirect_stdout(printed):
        seen = look(given, answers[0] if len(answers) == 1 else answers)
        stub = next(filter(None, (unwritten(one.raised, exercise) for one in seen if one.raised)), None)
        lines, right = ([], True) if stub else tell(given, seen)
    if (stub or lines) and "IPython" in sys.modules:
        from course_lib.observe.show.desk import offer_hint

        offer_hint(exercise)
    if stub:
        return not_written(stub)
    for one in seen:
        if not one.wrong:
            print(f"  ✓ {one.case.name}")
    for key, fact in given.facts.items():
        if fact.most is not None and not any(s.wrong or key in s.missed for s in seen):
            print(f"  ✓ {fact.says} {fact.stated}")
    if lines:
        printed.show()
        raise (TargetMissed if right else CheckFailed)(lines, exercise) from None


def draw() -> int:
    """A new seed each time, so that no answer can know its inputs."""
    return random.SystemRandom().randrange(2**31)


def look(given: Material, answer: Any) -> list[Seen]:
    """Observe the answer in every case; not after a hang, nor long after a failure (``PATIENCE``, ``LIMIT``)."""
    seen, started, seed = [], time.monotonic(), draw()
    if given.seed != seed:
        given.seed = seed
        given.known.clear()
    given.asked = given.cases(seed)
    for case in given.asked:
        seen.append(one := _seen(given, answer, case))
        if one.hung or (one.raised and unwritten(one.raised, given.exercise)):
            break
        late = time.monotonic() - started
        if late > PATIENCE and any(s.wrong for s in seen) and (late > LIMIT or len(fitting(given, seen)) < 2):
            break
    return seen


def _seen(given: Material, answer: Any, case: Any) -> Seen:
    """What an answer or a mistake gives in a case: once for each seed, since tests judge many on the same cases."""
    key = id(answer), case.name
    if key not in given.known:  # the answer is kept, too, so that no other gets its id
        given.known[key] = answer, _observe(given, answer, case)
    return given.known[key][1]


def _observe(given: Material, answer: Any, case: Any) -> Seen:
    try:
        got = given.observe(answer, case)
    except BaseException as error:
        if type(error) is KeyboardInterrupt:
            raise
        return Seen(case, wrong=next(iter(given.facts)), raised=error)
    key = "the solution", case.name
    if key not in given.known:
        given.known[key] = given.observe(given.solution, case)
    seen = Seen(case, got, want := given.known[key])
    asked = {key: fact for key, fact in given.facts.items() if key in got or key in want}  # in this case
    holds = {key: key in got and not fact.wrong(got[key], want.get(key, "")) for key, fact in asked.items()}
    seen.wrong = next((key for key, fact in asked.items() if fact.most is None and not holds[key]), None)
    seen.missed = () if seen.wrong else tuple(key for key in asked if not holds[key])
    return seen


def tell(given: Material, seen: list[Seen]) -> tuple[list[str], bool]:
    """(lines for the cases that went wrong, whether only targets were missed)."""
    wrong = [s for s in seen if s.wrong]
    failed = wrong or [s for s in seen if s.missed]
    found = fitting(given, seen) if failed else []
    mistake = found[0] if len(found) == 1 else None
    lines, said = list[str](), set[str]()
    for one in failed[:SHOWN]:
        fact = given.facts[key := one.wrong or one.missed[0]]
        first, *more = explain(one.raised) if one.raised else fact.wrong(one.got[key], one.want.get(key, ""))
        task = getattr(one.case, "task", None) or (None if one.raised else fact.task)
        if mistake:
            more, task = [*more, f"This is what comes out when {mistake.when}."], mistake.task or task
        more += [f'The task: "{task.replace("**", "")}"'] if task else []  # which may be in bold type
        lines += [f"{one.case.name}: {first}", *(f"  {line}" for line in more if line not in said)]
        said |= set(more)
    others, untried = len(failed) - SHOWN, len(given.asked) - len(seen)
    for n, one, many in ((others, "fails", "fail"), (untried, "was not tried", "were not tried")):
        if n > 0:
            lines.append(f"… and {n} more " + (f"case {one}" if n == 1 else f"cases {many}"))
    return lines, not wrong


def fitting(given: Material, seen: list[Seen]) -> list[Mistake]:
    """The listed mistakes that give what the answer gave, in every case: the only one is named.

    Where several do, those that also gave the same ``"trace"``, if there are any: what an observation holds beside its
    facts, such as the messages that were sent.
    """
    hung = any(one.hung for one in seen)
    listed = (mistake for mistake in given.mistakes if ("hangs" in mistake.words) == hung)
    found = [mistake for mistake in listed if explains(given, mistake, seen)]
    alike = [mistake for mistake in found if len(found) > 1 and same_trace(given, mistake, seen)]
    return alike or found


def explains(given: Material, mistake: Mistake, seen: list[Seen]) -> bool:
    """Whether this mistake gives what the answer gave: the same wrong fact where one is wrong, none elsewhere."""
    only_targets, explained = not any(s.wrong for s in seen), False
    me, known = id(mistake.answer), given.known  # most end at what is known already, or at what is wrong
    for one in sorted(seen, key=lambda s: ((me, s.case.name) not in known, not (s.wrong or s.missed))):
        by = _seen(given, mistake.answer, one.case)
        if one.raised:
            if not by.raised or _told(by) != _told(one):
                return False
            explained = True
        elif by.raised and one.wrong:
            continue  # the mistake cannot be made here
        elif by.raised or by.wrong != one.wrong or (only_targets and by.missed != one.missed):
            return False
        else:
            keys = [key for key in (one.wrong, *one.missed * only_targets) if key]
            if not all(key in one.got and given.facts[key].alike(one.got[key], by.got[key]) for key in keys):
                return False
            explained = explained or bool(keys)
    return explained


def same_trace(given: Material, mistake: Mistake, seen: list[Seen]) -> bool:
    traced = [one for one in seen if "trace" in one.got]
    alike = (_seen(given, mistake.answer, one.case).got.get("trace") == one.got["trace"] for one in traced)
    return bool(traced) and all(alike)


def _told(one: Seen) -> list[str]:
    """What was raised, without what differs from answer to answer or run to run.

    Of ranks that hang it is who waits for whom; of ranks that raised or were killed it is not which of them was first.
    """
    assert one.raised
    first, *more = explain(one.raised)
    if one.hung:
        waits = (line for line in (first, *more) if line.startswith(("the ", "rank ")))
        return [re.sub(r", at <.*|: stopped after .*", "", line) for line in waits]
    if type(one.raised).__name__ == "RankError":
        first = re.sub(r"\brank \d+", "a rank", re.sub(r"(killed by signal \d+).*", r"\1", first))
    return [first]
