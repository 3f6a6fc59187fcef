"""The solutions of chapter 11, which say what is right, against independent answers."""

from itertools import combinations, pairwise

import pytest
import torch
import torch.nn.functional as F

from course_lib.grading.material import check_file, material
from simulator.pipeline.schedules import make_schedule


@pytest.mark.parametrize("exercise", ["11.1", "11.2"])
def test_the_orders_fit_together_and_take_the_time_that_the_task_allows(exercise):
    given = material(exercise)
    for case in given.cases(0):
        got = given.observe(given.solution, case)
        assert not any(got["room"])
        assert got.keys() == {"room", "units", "trace"}  # no text says that anything else is wrong
        assert got["units"] == 0


def test_the_order_is_1f1b():
    given = material("11.1")
    for case in given.cases(0):
        orders = [
            [(action.kind[0], action.microbatch) for action in actions]
            for actions in make_schedule("1f1b", case.ranks, case.microbatches).actions
        ]
        assert given.observe(given.solution, case)["trace"] == orders


def test_no_cut_that_fits_has_a_faster_slowest_stage():
    given = material("11.3")
    for case in given.cases(0):
        found = []
        for edges in combinations(range(1, len(case.layers)), case.ranks - 1):
            stages = [case.layers[a:b] for a, b in pairwise((0, *edges, len(case.layers)))]
            alive = [min(case.microbatches, case.ranks - rank) for rank in range(case.ranks)]
            need = [sum(x.states + n * x.saved for x in s) for n, s in zip(alive, stages, strict=True)]
            if max(need) <= case.capacity:
                found.append(max(sum(x.milliseconds for x in s) for s in stages))
        got = given.observe(given.solution, case)
        assert not any(got.get(key) for key in ("counts", "none", "fits"))
        assert got["slowest"] == min(found, default=0)
        assert bool(found) == (case.fit != "nothing fits")


def test_the_gradients_are_those_of_one_device():
    given, checks = material("11.4"), check_file("11.4")
    for case in given.cases(0):
        stages = [checks.stage(rank, case.ranks) for rank in range(case.ranks)]
        tokens, targets = checks.batch(case)
        loss = F.cross_entropy(torch.nn.Sequential(*stages)(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        got = given.observe(given.solution, case)
        torch.testing.assert_close(got["loss"][-1], loss.detach())
        for stage, own in zip(stages, got["gradients"], strict=True):
            torch.testing.assert_close(own, {name: p.grad for name, p in stage.named_parameters()})
        assert not any(got["kept"] + got["idle"])
        assert got["more"] <= 0
