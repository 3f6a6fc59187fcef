"""The parameters that FSDP keeps alive are those the simulator predicts, computation by computation."""

import pytest
import torch

from course_lib.data_parallel.fsdp import FSDP
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.timeline import record_timeline
from course_lib.observe.ledgers.unsharded import record_unsharded
from course_lib.runtime import current_device, launch
from simulator.predict.unsharded import unsharded_history

LAYERS = 3
CONFIG = GPTConfig.tiny(vocab_size=16, num_layers=LAYERS, hidden_size=32)


def one_step(mesh, settings):
    histories = []
    for prefetch, reshard in settings:
        model = GPT(CONFIG)
        fsdp = FSDP(model, ["blocks.*"], mesh, prefetch=prefetch, reshard_after_forward=reshard)
        tokens = torch.zeros(2, 8, dtype=torch.long, device=current_device())
        with record_timeline() as log, record_unsharded(fsdp) as history:
            model(tokens).sum().backward()
        spans = sum(mark.lane == "compute" for mark in log.marks)  # who listened before still hears
        histories.append((history(), spans))
    return histories


@pytest.mark.parametrize("ranks", [1, 2])
def test_equals_the_prediction(ranks):
    settings = [(0, True), (1, None), (2, True), (1, False)]
    block = 4 * (12 * 32**2 + 13 * 32)
    root = 4 * CONFIG.parameters - LAYERS * block
    for histories in launch(one_step, mesh={"dp": ranks}, args=(settings,)):
        for (prefetch, reshard), (history, spans) in zip(settings, histories, strict=True):
            predicted = unsharded_history(
                [block] * LAYERS,
                ranks=ranks,
                root_bytes=root,
                prefetch=prefetch,
                reshard=reshard is not False,
            )
            assert history.held == predicted.held
            assert history.times == predicted.times
            assert history.actions == tuple(name.replace("block ", "blocks.") for name in predicted.actions)
            assert spans == 2 * LAYERS
