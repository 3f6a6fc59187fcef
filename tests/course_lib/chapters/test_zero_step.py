"""The measured step of chapter 06: what each rung keeps and sends, with one pass and with two."""

import torch

from course_lib.by_hand.ddp import PerParameter
from course_lib.by_hand.zero import Zero1, Zero2, Zero3
from course_lib.chapters.zero_step import plot_gradients, plot_halves, zero_step
from course_lib.models.gpt import GPTConfig
from course_lib.runtime import launch

WHOLE = 4 * GPTConfig.tiny().parameters  # bytes


def ladder(passes):
    x, y = torch.zeros(2, 2, 8, dtype=torch.long)
    return [zero_step(rung, x, y, passes) for rung in (PerParameter, Zero1, Zero2, Zero3)]


def test_each_stage_halves_one_more_part_on_two_ranks():
    steps = launch(ladder, 2, args=(1,))[0]
    parts = [(s.kept.parameters / WHOLE, s.kept.gradients / WHOLE) for s in steps]
    assert parts == [(1, 1), (1, 1), (1, 0.5), (0.5, 0.5)]
    counters = 4 * 100  # Adam counts its steps for each tensor
    for step, share in zip(steps, (2, 1, 1, 1), strict=True):
        assert 0 <= step.kept.optimizer_states - share * WHOLE < counters
    whole, two = steps[0].gradients, steps[2].gradients
    assert max(whole) == whole[-1] == WHOLE
    assert two[-1] == WHOLE / 2 < max(two) < WHOLE
    assert [step.sent for step in steps[:3]] == [WHOLE] * 3
    assert WHOLE < steps[3].sent <= 1.5 * WHOLE
    assert [[size > 0 for size in step.phases] for step in steps] == [
        [False, False, True],
        [False, False, True],
        [False, True, True],
        [True, True, False],
    ]
    told = plot_gradients({"stage 2": steps[2], "stage 1": steps[1]}, WHOLE).alt
    assert "at the end 0.5" in told
    assert "at the end 1." in told


def test_only_ddp_and_stage_1_can_wait_for_the_last_pass():
    sent = [step.sent / WHOLE for step in launch(ladder, 2, args=(2,))[0]]
    assert sent[:3] == [1, 1, 1.5]
    assert 2.5 < sent[3] <= 3


def test_a_step_is_drawn_in_halves():
    said = plot_halves({"DDP": ["add up", "hand out"], "stage 3": ["gather", "gather", "add up"]}).alt
    assert said == "Sent in a step of one pass. DDP: add up, hand out; stage 3: gather, gather, add up."
