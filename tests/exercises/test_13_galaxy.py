"""The solutions of chapter 13, which say what is right, against independent answers."""

import pytest
import torch
import torch.nn.functional as F

from course_lib.grading.material import MISTAKES, check_file, material
from course_lib.grading.mistakes import read_mistakes
from course_lib.notebooks.places import course_root
from course_lib.tensor_parallel.unequal_parts import gather_parts, sum_to_parts
from simulator.inputs.shape import ModelShape
from simulator.predict.galaxy_traffic import galaxy_traffic


def test_the_tokens_and_their_sums_are_those_of_the_course_s_own_collectives():
    given = material("13.1")
    for case in given.cases(2):
        found, want = (given.observe(both, case) for both in (given.solution, (gather_parts, sum_to_parts)))
        assert not [key for key in ("gathered", "added") if given.facts[key].wrong(found[key], want[key])]


def test_no_list_of_three_steps_is_cheaper():
    given = material("13.2")
    listed = read_mistakes(course_root() / MISTAKES / "13_galaxy.diff")["13.2"]
    [every_list] = [given.make(e.patched(given.source)) for e in listed if "right" in e.words]
    for case in given.cases(0):
        assert given.observe(given.solution, case) == given.observe(every_list, case)


def test_no_split_of_the_heads_ends_sooner():
    given = material("13.3")
    *fit, _ = given.cases(3)
    for case in fit:
        heads, found = len(case.tables[0]) - 1, given.observe(given.solution, case)

        def dealt(limit, case=case):
            return sum(
                max(n for n in range(min(own, len(table) - 1) + 1) if table[n] <= limit)
                for table, own in zip(case.tables, case.room, strict=True)
            )

        sooner = max(t for table in case.tables for t in table if t < found["slowest"] * (1 - 1e-9))
        assert dealt(sooner) < heads <= dealt(found["slowest"])


def test_the_bytes_are_those_of_the_simulator_and_the_tokens_those_from_which_on_they_are_fewer():
    given = material("13.4")

    def sent(case, way, tokens, training):
        """A layer between two others: three layers send so much more than two."""
        two, three = (
            galaxy_traffic(
                ModelShape(layers, case.hidden, case.ranks, 50, tokens, ffn=case.columns[way]),
                way,
                case.ranks,
                0,
                backward=training,
            ).sent
            for layers in (2, 3)
        )
        return three - two

    for case in given.cases(4):
        found = given.observe(given.solution, case)
        for way in case.columns:
            for key, training in (("inference", False), ("training", True)):
                assert found[key][way] == pytest.approx(sent(case, way, case.tokens, training))
        for way in ("sp", "galaxy2"):  # what it sends more than tp grows evenly with the tokens
            p, fewest = case.ranks, found["fewest"][way]
            few, many = (sent(case, way, n, True) - sent(case, "tp", n, True) for n in (p, 2 * p))
            assert few + (many - few) / p * (fewest - p) < -1e-6
            assert few + (many - few) / p * (fewest - 1 - p) >= -1e-6


def test_the_loss_and_the_gradients_are_those_of_one_device():
    given, checks = material("13.5"), check_file("13.5")
    for case in given.cases(5):
        xs, targets, weight = checks.inputs(case.seed, case.tokens, case.words)
        x, weight = torch.cat(xs, 1).requires_grad_(), weight.requires_grad_()
        loss = F.cross_entropy((x @ weight.T).flatten(0, 1), torch.cat(targets, 1).flatten())
        (case.times * loss).backward()
        found = given.observe(given.solution, case)
        for rank in range(case.ranks):
            own = x.grad.split(case.tokens, 1)[rank % len(case.tokens)]
            want = {"loss": loss.detach(), "x": own, "weight": weight.grad}
            assert not [key for key in want if given.facts[key].wrong(found[key][rank], want[key])]
