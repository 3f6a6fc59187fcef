"""Parameters of published models, counted on the meta device, which needs no memory."""

import pytest
import torch

from course_lib.models.published import CONFIGURATIONS, build_without_memory, count_parameters

# total_size in the index file beside each model's published weights, divided by the 2 bytes of a number there. Falcon's
# tied output matrix is stored a second time; ChatGLM's index also counts 64 bytes of RoPE's frequencies.
PUBLISHED = {
    "LLaMA-7B": 6_738_415_616,
    "Llama-2-70B": 68_976_648_192,
    "ChatGLM2-6B": 6_243_584_000,
    "ChatGLM3-6B": 6_243_584_000,
    "Falcon-7B": 7_217_189_760 - 65024 * 4544,
    "Falcon-40B": 41_835_970_560 - 65024 * 8192,
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_number_of_parameters_is_the_published_one(name):
    model = build_without_memory(CONFIGURATIONS[name])
    assert all(p.device == torch.device("meta") for p in model.parameters())
    assert count_parameters(model) == PUBLISHED[name]
