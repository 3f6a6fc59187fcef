"""The checks of chapter 12: groups in any order, one norm over three dimensions, a composed step mended.

The check of 12.2, a plan for some GPUs, is in ``three_dimensions_plans.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from course_lib.grading.checks.three_dimensions_faulty import KINDS, MENDING, Batch, completed, on_each_rank
from course_lib.grading.checks.three_dimensions_mistakes import (
    GROUPS,
    NORMS,
    ORDERS,
    Ordering,
    Whole,
    norms,
    right_groups,
)
from course_lib.grading.checks.three_dimensions_plans import check_12_2
from course_lib.grading.checks.three_dimensions_ranks import ON_CPU, completes, measures_norm, whole_gradients
from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check

__all__ = ["check_12_1", "check_12_2", "check_12_3", "check_12_4"]

# ---- 12.1 -------------------------------------------------------------------------------------------------

MEGATRON = "tp-cp-dp-pp"


@check
def check_12_1(report: Report, groups: Callable[..., Any], best_order: Callable[..., Any]) -> None:
    draw = random.Random(report.seed())
    drawn = {axis: draw.randint(2, 4) for axis in ("tp", "cp", "dp", "pp")}
    any_order = "-".join(draw.sample(list(drawn), 4))
    cases = [
        ("8 ranks, along dp", {"tp": 2, "dp": 2, "pp": 2}, MEGATRON, "dp"),
        ("16 ranks, along pp", {"tp": 2, "dp": 2, "pp": 4}, MEGATRON, "pp"),
        ("12 ranks, dp varies fastest, along tp", {"tp": 3, "dp": 4}, "dp-pp-tp", "tp"),
        ("24 ranks, along tp-pp", {"tp": 3, "dp": 2, "pp": 4}, MEGATRON, "tp-pp"),
        ("24 ranks, along dp-tp", {"tp": 3, "dp": 2, "pp": 4}, "tp-pp-dp", "dp-tp"),
        ("12 ranks, along every axis", {"tp": 2, "dp": 3, "pp": 2}, MEGATRON, "pp-dp-tp"),
        ("6 ranks, along an axis of one rank", {"tp": 3, "cp": 1, "pp": 2}, MEGATRON, "cp"),
        ("1 rank", {"tp": 1, "dp": 1, "pp": 1}, MEGATRON, "tp"),
        ("four axes of any size in any order", drawn, any_order, draw.choice(list(drawn))),
    ]
    for name, sizes, order, along in cases:
        with report.case(name):
            got = groups(dict(sizes), order, along)
            want = right_groups(sizes, order, along)
            given = (sizes, order, along)
            task = "Return all groups along `along`"
            with suppress(TypeError):  # lists that cannot be sorted are not lists of ranks
                if sorted(got) == want:
                    task = "the groups are in the order of their first ranks"
            report.equal("the list of groups", got, want, mistakes=GROUPS, given=given, task=task)
    _check_order(report, best_order)


def _check_order(report: Report, best_order: Callable[..., Any]) -> None:
    cases = [
        ("tp sends the most", {"tp": 4, "dp": 2, "pp": 2}, {"tp": 1000, "dp": 50, "pp": 10}, 8),
        ("dp sends the most", {"tp": 2, "dp": 8, "pp": 2}, {"tp": 10, "dp": 900, "pp": 40}, 8),
        (
            "two axes do not fit into one node",
            {"tp": 4, "dp": 2, "pp": 4},
            {"tp": 100, "dp": 90, "pp": 10},
            4,
        ),
        (
            "rings over two nodes and over four",
            {"tp": 2, "dp": 4, "pp": 2},
            {"tp": 80, "dp": 90, "pp": 70},
            4,
        ),
        ("one node", {"tp": 2, "dp": 2, "pp": 2}, {"tp": 10, "dp": 30, "pp": 20}, 8),
    ]
    task = "Return the order in which the fewest bytes leave their node"
    judged: list[tuple[Ordering, str]] = []

    def explains(mistake: Callable[[Ordering, str], bool], more: int) -> int | None:
        """Asked at the end, of all orders: one that the mistake does not explain rules it out."""
        return more if all(mistake(*one) for one in judged) else None

    for name, sizes, sent, node in cases:
        with report.case(f"the best order, {name}"):
            got = best_order(dict(sizes), dict(sent), node)
            is_order = isinstance(got, str) and sorted(got.split("-")) == sorted(sizes)
            otherwise = f"the answer is {got!r}, and an order names {', '.join(sizes)} once each"
            report.true(is_order, "every axis is named once", otherwise, task="as a string such as")
            case = Ordering(sizes, sent, node)
            judged.append((case, got))
            more = case.leaving(got) - min(map(case.leaving, case.orders()))
            ways = {text: partial(explains, mistake, more) for text, mistake in ORDERS.items()}
            what = "bytes that leave their node, beyond those of the best order"
            report.at_most(what, more, 0, mistakes=ways, given=(), task=task)


# ---- 12.3 -------------------------------------------------------------------------------------------------


@check
def check_12_3(report: Report, gradient_norm: Callable[..., Any]) -> None:
    cases = [
        ("tp 2", {"pp": 1, "dp": 1, "tp": 2}, Whole()),
        ("tp 3, dp 1, pp 1", {"pp": 1, "dp": 1, "tp": 3}, Whole()),
        ("3 stages, the one in the middle has no gradients", {"pp": 3, "dp": 1, "tp": 1}, Whole(empty=1)),
        ("tp 2, dp 2, pp 2", {"pp": 2, "dp": 2, "tp": 2}, Whole()),
        ("tp 2, dp 2, large gradients in float16", {"pp": 1, "dp": 2, "tp": 2}, Whole(torch.float16, 100)),
    ]
    task = "Return the norm of the whole gradient"
    target = "one all-reduce of one number"
    for name, axes, kind in cases:
        with report.case(name):
            seed = report.seed()
            seen = launch(measures_norm, mesh=axes, args=(gradient_norm, kind, seed), timeout=60, **ON_CPU)
            whole = whole_gradients(axes["pp"], kind, seed)
            report.true(
                all(one["kept"] for one in seen),
                "the gradients are as they were",
                "a gradient has other values than before",
                task="The gradients are not changed",
            )
            report.on_every_rank(
                "every rank has the norm of the whole gradient",
                [one["norm"] for one in seen],
                [norms(whole, axes, kind)[0]] * len(seen),
                tolerance=1e-3,
                mistakes=NORMS,
                given=(whole, axes, kind),
                task=task,
            )
            carried, held = (max(one[key] for one in seen) for key in ("payload", "held"))
            report.true(
                carried < held,
                "no rank sends its gradients",
                f"the collectives of a rank carry {carried:,} bytes; its gradients have {held:,}",
                task="no rank sends its gradients",
            )
            report.at_most("collectives of a rank", max(one["calls"] for one in seen), 1, task=target)
            report.at_most("bytes in them", carried, 8, task=target)


# ---- 12.4 -------------------------------------------------------------------------------------------------


@check
def check_12_4(report: Report, mended_step: Callable[..., Any]) -> None:
    cases = [
        ("tp 2", {"pp": 1, "dp": 1, "tp": 2}, Batch(padded=(0,))),
        ("dp 3, other numbers of targets", {"pp": 1, "dp": 3, "tp": 1}, Batch(padded=(0, 5, 2))),
        ("dp 2, one without a target", {"pp": 1, "dp": 2, "tp": 1}, Batch(padded=(0, 12))),
        ("3 stages", {"pp": 3, "dp": 1, "tp": 1}, Batch(padded=(1,))),
        ("tp 3", {"pp": 1, "dp": 1, "tp": 3}, Batch(padded=(1,))),
        ("tp 2, dp 2, pp 2", {"pp": 2, "dp": 2, "tp": 2}, Batch(padded=(1, 7))),
    ]
    target = "at most three collectives of a rank: one along tp, one between the ends, one along dp"
    for name, axes, batch in cases:
        with report.case(name):
            seed = report.seed()
            seen = launch(completes, mesh=axes, args=(mended_step, batch, seed), timeout=60, **ON_CPU)
            for kind, what in KINDS.items():
                want = on_each_rank(axes, batch, seed, kind)
                report.on_every_rank(
                    what,
                    [one["gradients"].get(kind) for one in seen],
                    want,
                    mistakes={text: completed(fault, kind) for text, fault in MENDING.items()},
                    given=(axes, batch, seed),
                    task="Afterwards every rank has its part of the gradient that one device computes",
                )
            report.at_most("collectives of a rank", max(one["calls"] for one in seen), 3, task=target)
