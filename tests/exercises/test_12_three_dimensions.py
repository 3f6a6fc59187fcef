"""The solutions of chapter 12, which say what is right, against independent answers."""

from itertools import permutations, product

import pytest
import torch

from course_lib.grading.material import check_file, material
from simulator.inputs.plan import Plan
from simulator.predict.step import check_fits, step_cost


def groups_of_a_grid(sizes, order, along):
    """As DeviceMesh lays ranks out: in a grid whose last axis varies fastest."""
    axes = order.split("-")[::-1]
    shape = torch.Size(sizes.get(axis, 1) for axis in axes)
    moved = [i for i, axis in enumerate(axes) if axis in along.split("-")]
    kept = [i for i in range(len(axes)) if i not in moved]
    grid = torch.arange(shape.numel()).view(shape).permute(*kept, *moved)
    return sorted(sorted(row) for row in grid.flatten(len(kept)).flatten(0, -2).tolist())


def test_groups_are_those_of_a_grid_and_no_order_sends_fewer_bytes_off_the_nodes():
    given, checks = material("12.1"), check_file("12.1")
    for case in given.cases(0):
        got = given.observe(given.solution, case)
        if case.order:
            assert got["groups"] == got["sorted"] == groups_of_a_grid(case.sizes, case.order, case.along)
        else:
            assert got["bytes"] == min(checks.leaving(list(axes), case) for axes in permutations(case.sizes))


def test_no_plan_that_may_be_chosen_is_faster():
    given = material("12.2")
    for case in given.cases(0)[:2]:
        shape, hardware, gpus, sequences = case.given
        found = []
        for tp, pp, micro_batch in product((1, 2, 4, 8), range(1, gpus + 1), (1, 2, 4, 8)):
            dp = gpus // (tp * pp)
            if dp * tp * pp != gpus or sequences % (dp * micro_batch):
                continue
            for cut, recompute, zero in product((False, True), ("none", "selective", "full"), range(4)):
                plan = Plan(dp, tp, pp, micro_batch=micro_batch, microbatches=sequences // (dp * micro_batch),
                            sequence_parallel=cut, recompute=recompute, zero=zero)  # fmt: skip
                try:
                    plan.check(shape)
                    check_fits(shape, plan, hardware)
                    found.append(step_cost(shape, plan, hardware).seconds)
                except ValueError:
                    continue
        assert given.observe(given.solution, case)["seconds"] <= 1.005 * min(found)


def test_the_norm_is_that_of_the_whole_model():
    given, checks = material("12.3"), check_file("12.3")
    for case in given.cases(0):
        stages = checks.whole_gradients(case)
        if len(stages) > 1:
            del stages[-1]["embedding"]  # the first stage has it
        whole = torch.cat([g.double().flatten() for own in stages for g in own.values()]).norm().item()
        assert given.observe(given.solution, case)["norm"] == pytest.approx([whole] * len(case_ranks(case)))


def test_the_gradients_are_those_of_one_device():
    given, checks = material("12.4"), check_file("12.4")
    for case in given.cases(0):
        stages, copies, parts = case.axes
        uncut = case._replace(axes=(stages, copies, 1))
        targets = sum(checks.SEQUENCES * checks.TOKENS - padded for padded in case.padded)
        total = [{} for _ in range(stages)]
        for stage, data in product(range(stages), range(copies)):
            for name, gradient in checks.own_gradients(uncut, stage, data, 0).items():
                for holder in {0, stages - 1} if name == "embedding" else {stage}:
                    total[holder][name] = total[holder].get(name, 0) + gradient / targets
        got = given.observe(given.solution, case)["gradients"]
        for (stage, _, part), own in zip(case_ranks(case), got, strict=True):
            for name, gradient in own.items():
                want, is_cut = total[stage][name], checks.KINDS[name] in ("cut", "tied")
                torch.testing.assert_close(gradient, want.chunk(parts)[part] if is_cut else want)


def case_ranks(case):
    return list(product(*map(range, case.axes)))
