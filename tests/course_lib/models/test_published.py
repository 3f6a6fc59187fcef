"""Parameters of published models, counted on the meta device, which needs no memory."""

import pytest
import torch
from transformers import FalconConfig as TheirConfig
from transformers import FalconForCausalLM

from course_lib.models.published import CONFIGURATIONS, build_without_memory, count_parameters

# The models' own figures: the size of their published weights in bytes, halved. Falcon's holds its tied matrix twice.
PUBLISHED = {
    "LLaMA-7B": 6_738_415_616,
    "Llama-2-70B": 68_976_648_192,
    "ChatGLM2-6B": 6_243_584_000,
    "ChatGLM3-6B": 6_243_584_000,
    "Falcon-7B": 7_217_189_760 - 65024 * 4544,
}


def counted(name):
    model = build_without_memory(CONFIGURATIONS[name])
    assert all(p.device == torch.device("meta") for p in model.parameters())
    return count_parameters(model)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_number_of_parameters_is_the_published_one(name):
    assert counted(name) == PUBLISHED[name]


def test_falcon_40b_has_the_parameters_of_transformers_model():
    sizes = {"hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8}
    with torch.device("meta"):
        theirs = FalconForCausalLM(TheirConfig(**sizes, new_decoder_architecture=True))
    assert counted("Falcon-40B") == count_parameters(theirs)
    assert set(CONFIGURATIONS) == {*PUBLISHED, "Falcon-40B"}
