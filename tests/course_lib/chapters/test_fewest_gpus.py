"""On how few GPUs a model trains, as more is divided or dropped (chapter 00)."""

import re
from dataclasses import replace

import pytest

from course_lib.chapters.fewest_gpus import fewest_gpus
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.predict.memory import plan_memory


def column(shown):
    """What stands under ``at least``."""
    return re.findall(r"^.*?  +(no number|[\d,]+)(?:  |$)", str(shown), re.MULTILINE)


def test_what_is_divided_or_dropped_makes_gpt3_fit():
    assert column(fewest_gpus("gpt3-175b", "h100")) == ["35", "no number", "51", "44", "1"]


@pytest.mark.parametrize(
    ("model", "gpu"), [("llama-3-8b", "h100"), ("mixtral-8x7b", "h100"), ("gpt2", "v100")]
)
def test_the_fewest_fit_and_one_less_does_not(model, gpu):
    _, texts, again, *_ = map(int, column(fewest_gpus(model, gpu)))
    for copies, recompute in ((texts, "none"), (again, "full")):
        for n in range(1, copies + 2):
            plan = Plan(dp=n, zero=3, recompute=recompute)
            fits = plan_memory(MODELS[model], plan, GPUS[gpu])[0].occupied <= GPUS[gpu].memory
            assert fits == (n >= copies), (n, recompute)


def test_a_model_and_a_gpu_without_a_name():
    assert str(fewest_gpus(MODELS["gpt2-xl"], 80)) == str(fewest_gpus("gpt2-xl", "h100"))
    longer = replace(MODELS["llama-7b"], sequence=4096)
    assert str(fewest_gpus(longer, 24)) != str(fewest_gpus("llama-7b", 24))
    assert column(fewest_gpus("llama-7b", 1))[1:4] == ["no number"] * 3


def test_matrices_are_not_shared_by_one():
    assert "tp=" not in str(fewest_gpus("bert-base", 24))
    assert "tp=4" in str(fewest_gpus("gpt3-175b", "h100"))


@pytest.mark.parametrize("parameters", [1e8, 3e8, 1.3e9, 7e9, 13e9, 70e9, 175e9, 1e12, 1e13])
def test_of_a_model_only_the_number_of_parameters(parameters):
    states, *_ = column(fewest_gpus(parameters, 1))
    assert int(states.replace(",", "")) == pytest.approx(16 * parameters / 1e9, rel=0.06, abs=1)


def largest(shown):
    """The parameters of the GPT in the last row."""
    return 1e9 * float(re.search(r"a GPT of ([\d.]+) billion", str(shown))[1])


@pytest.mark.parametrize("memory", [16, 24, 80])
def test_the_largest_gpt_on_one_gpu_fits_and_a_larger_one_does_not(memory):
    parameters = largest(fewest_gpus("gpt2", memory))
    for factor, fits in ((0.97, True), (1.1, False)):
        _, _, again, *_ = column(fewest_gpus(factor * parameters, memory))
        assert (again == "1") == fits


def test_a_gpt_with_as_many_parameters_as_gpt3_is_gpt3():
    assert str(fewest_gpus(175e9, "h100")) == str(fewest_gpus("gpt3-175b", "h100"))
    with pytest.raises(ValueError, match=r"must be 1e\+08 to 1e\+13, such as 7e9, not 7$"):
        fewest_gpus(7, "h100")


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match=r"one of gpt3-175b, .* not 'gpt5'"):
        fewest_gpus("gpt5", "h100")
    with pytest.raises(ValueError, match="or its GB, such as 24, not '24 GB'"):
        fewest_gpus("gpt2", "24 GB")
