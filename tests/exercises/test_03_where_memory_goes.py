"""The solutions of chapter 03, which say what is right, against independent answers."""

import torch
from facts_alike import facts_that_differ
from torch.nn.utils import clip_grad_norm_

from course_lib.grading.material import material
from course_lib.observe.ledgers.saved import saved_tensors
from course_lib.one_device.loop import cross_entropy


def same_in_every_case(exercise, answer, *facts):
    given = material(exercise)
    for case in given.cases(0):
        assert not facts_that_differ(given, answer, given.solution, case).keys() & {*facts}, case.name


def test_the_states_are_those_of_the_tensors_that_are_made():
    given = material("03.1")
    for case in given.cases(0):
        model = case.model().bfloat16()
        trained = [p for p in model.parameters() if p.requires_grad]
        states = [torch.empty(3, *p.shape, device="meta") for p in trained]
        want = [sum(t.nbytes for t in tensors) for tensors in (model.parameters(), trained, states)]
        assert list(given.solution(case.model())) == want, case.name


def test_the_scaler_is_pytorch_s():
    def scaled_step(parameters, optimizer, state, max_norm):
        if "scaler" not in state:
            state["scaler"] = torch.amp.GradScaler("cpu", 1024.0, growth_interval=state["interval"])
            state["scaler"].scale(torch.ones(()))
        scaler = state["scaler"]
        scaler.unscale_(optimizer)
        clip_grad_norm_(parameters, max_norm)
        scaler.step(optimizer)
        scaler.update()
        before, state["scale"] = state["scale"], scaler.get_scale()
        state["good_steps"] = scaler._get_growth_tracker()
        return state["scale"] >= before

    same_in_every_case("03.2", scaled_step, "finite", "scales", "counts", "path", "returned")


def test_the_bytes_are_those_of_the_ledger_of_saved_tensors():
    def saved_bytes(model, *inputs):
        return sum(tensor.bytes for tensor in saved_tensors(model, *inputs))

    given = material("03.3")
    reused, *others, frozen = given.cases(0)
    for case in others:
        want = given.observe(given.solution, case)
        assert given.observe(saved_bytes, case)["bytes"] == want["bytes"], case.name
    assert given.observe(given.solution, reused)["bytes"] == 5 * 8 * 4
    assert given.observe(given.solution, frozen)["bytes"] == 0


def test_parts_make_the_step_of_the_whole_batch():
    def fp16_step(model, optimizer, scaler, tokens, targets, micro, max_norm):
        model.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = model(tokens)
        loss = cross_entropy(logits.float(), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        return loss

    same_in_every_case("03.4", fp16_step, "moved", "losses", "scales")


def test_the_largest_batch_is_found_by_trying():
    def largest_batch(bytes_of, capacity):
        batch = 0
        while bytes_of(batch + 1) <= capacity:
            batch += 1
        return batch

    same_in_every_case("03.5", largest_batch, "batch")
