import copy

import pytest
import torch

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.memory import record_memory
from course_lib.observe.ledgers.recomputed import recomputed_segments
from course_lib.observe.ledgers.saved import saved_tensors
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.recompute import apply_recompute
from simulator.predict.recomputation import Segment, peak_bytes


@pytest.mark.parametrize("what", [None, "selective", "full", "blocks.*.mlp"])
def test_the_peak_of_a_real_step_is_as_predicted(what):
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(num_layers=3, num_heads=8, hidden_size=64, dropout=0.1))
    tokens = torch.randint(256, (2, 128))
    segments = recomputed_segments(model, what, tokens)
    recomputed = copy.deepcopy(model)
    if what:
        apply_recompute(recomputed, what)
    assert sum(s.kept for s in segments) == sum(t.bytes for t in saved_tensors(recomputed, tokens))
    with record_memory(recomputed) as log:
        cross_entropy(recomputed(tokens)[:, :-1], tokens[:, 1:]).backward()
    measured = max(held.activations for held in log.held)
    assert measured == pytest.approx(peak_bytes(segments), rel=0.08)


def test_blocks_and_their_inputs():
    model = GPT(GPTConfig.tiny(num_layers=2, hidden_size=32))
    tokens = torch.randint(256, (1, 16))
    blocks = [s for s in recomputed_segments(model, "full", tokens) if s.again]
    assert [s.kept for s in blocks] == [4 * 16 * 32] * 2
    plain = recomputed_segments(model, None, tokens)
    assert sum(s.forward for s in recomputed_segments(model, "full", tokens)) == len(plain)
    of_blocks = [bytes for block in blocks for bytes in block.parts]
    assert (
        of_blocks == [s.kept for s in plain][-len(of_blocks) - 2 : -2]
    )  # norm and head stand behind the blocks
    whole = sum(t.bytes for t in saved_tensors(model, tokens))
    kept = recomputed_segments(model, "full", tokens)
    assert sum(s.kept + s.again for s in kept) == whole
    assert all(s == Segment(s.kept) for s in recomputed_segments(model, None, tokens))
