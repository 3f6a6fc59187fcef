"""The solutions of chapter 01, which say what is right, against independent answers."""

from itertools import combinations, pairwise

import torch
from torch import nn

from course_lib.grading.material import check_file, material
from course_lib.observe.networks.placement import size_of


def calls_by_one_hook(model, *inputs):
    names, calls = {module: name for name, module in model.named_modules()}, []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, output: calls.append((names[module], tuple(output.shape)))
    )
    try:
        model(*inputs)
    finally:
        handle.remove()
    return [(name, shape) for name, shape in calls if not list(model.get_submodule(name).children())]


def test_the_calls_are_those_that_a_hook_for_all_modules_sees():
    given = material("01.1")
    for case in given.cases(0):
        assert given.observe(given.solution, case) == given.observe(calls_by_one_hook, case)


def test_the_bytes_are_those_of_each_parameter_at_the_module_that_holds_it():
    given = material("01.2")
    for case in given.cases(0):
        total, seen = {}, set()
        for name, module in case.model().named_modules():
            for parameter in set(module._parameters.values()) - seen - {None}:
                prefix = ".".join(name.split(".")[: case.depth]) or '""'
                total[prefix] = total.get(prefix, 0) + parameter.nbytes
                seen.add(parameter)
        assert given.observe(given.solution, case) == {"bytes": total, "copied": 0}


def test_no_cuts_have_a_lighter_heaviest_rank():
    given = material("01.3")
    for case in given.cases(0):
        modules = [case.model.embeddings, *case.model.encoder.layer, *filter(None, [case.model.pooler])]
        sizes = [size_of(module.parameters()) for module in modules]
        ways = [(0, *cuts, len(sizes)) for cuts in combinations(range(1, len(sizes)), case.ranks - 1)]
        fewest = min(max(sum(sizes[i:j]) for i, j in pairwise(way)) for way in ways)
        assert given.observe(given.solution, case)["heaviest"] == fewest


def test_the_model_is_left_as_one_that_never_ran():
    given, checks = material("01.4"), check_file("01.4")
    shapes = [(4, 10), (3, 6), (1, 6), (2, 5), (3, 6), (4, 5), (), (2, 8, 64)]
    for case, shape in zip(given.cases(0), shapes, strict=True):

        def touches_nothing(model, *inputs, case=case, shape=shape):
            if case.raises:
                raise RuntimeError
            return shape

        got, want = given.observe(given.solution, case), checks.observe(touches_nothing, case)
        torch.testing.assert_close(got.pop("random"), want.pop("random"))
        assert not [key for key in got if given.facts[key].wrong(got[key], want[key])]
