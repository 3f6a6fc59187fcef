"""The steps of chapter 05: predicted for GPT-2, and measured with few and with many messages."""

import torch

from course_lib.by_hand.ddp import Overlap, PerParameter
from course_lib.chapters.ddp_step import ETHERNET, FLOPS, GPT2, gpt2_step, measured_step, rank_0
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.runtime import launch


def test_eight_gpus_compute_an_eighth_and_send_the_whole_model():
    one, eight = gpt2_step(1, 16384), gpt2_step(8, 16384)
    computing = 1e3 * 6 * GPT2.parameters * 16384 / FLOPS
    sending = 1e3 * 2 * 7 / 8 * 4 * GPT2.parameters / ETHERNET
    assert abs(one.makespan - computing) < 1e-6 * computing
    assert abs(eight.makespan - (computing / 8 + sending)) < 1e-6 * eight.makespan
    assert {span.lane for span in rank_0(one).spans} == {"compute"}
    assert {span.rank for span in rank_0(eight).spans} == {0}


def both():
    x, y = torch.zeros(2, 2, 8, dtype=torch.long)
    counts = []
    for rung, options in ((PerParameter, {}), (Overlap, {"cap_mb": 100})):
        timeline, messages = measured_step(rung, x, y, **options)
        names = {span.name for span in timeline.spans}
        counts.append((messages, {"F block 0", "B block 3"} <= names))
    return counts


def test_a_measured_step_counts_its_messages():
    parameters = len(list(GPT(GPTConfig.tiny()).parameters()))
    assert launch(both, 2)[0] == [(parameters, True), (1, True)]
