"""``python -m simulator memory``: what it counts, what fits, and what it refuses."""

import pytest

from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.predict.memory import plan_memory

SHAPE_175B = "--layers 96 --hidden 12288 --heads 96 --vocab 51200 --sequence 2048"


def test_memory_json_has_every_rank_and_category(read):
    answer = read(
        f"memory {SHAPE_175B} --micro-batch 1 --tp 8 --sequence-parallel --pp 8 --chunks 3 --dp 1 --zero 0"
    )
    assert len(answer["ranks"]) == 8
    categories = ["parameters", "gradients", "optimizer_states", "activations", "buffers"]
    for rank in answer["ranks"]:
        assert set(rank) >= {*categories, "total"}
        assert rank["total"] == sum(size for name, size in rank.items() if name != "total")
    assert answer["peak_total"] == max(rank["total"] for rank in answer["ranks"])
    named = read("memory --model gpt3-175b --tp 8 --sequence-parallel --pp 8 --chunks 3")
    assert answer["ranks"] == named["ranks"]
    assert answer["plan"] == named["plan"]


def test_memory_of_parameters_alone_is_model_states(read):
    """arXiv:1910.02054, figure 1."""
    (rank,) = read("memory --parameters 7.5e9 --dp 64 --zero 1")["ranks"]
    assert rank["total"] == pytest.approx(31.4e9, rel=0.006)
    assert rank["activations"] == rank["buffers"] == 0
    assert read("memory --model resnet50")["peak_total"] == 16 * 25_557_032


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_states_can_be_sharded_over_fewer_ranks_at_every_stage(read, zero):
    (held,) = read(f"memory --model gpt2 --dp 4 --zero {zero} --shard 2")["ranks"]
    (all_ranks,) = read(f"memory --model gpt2 --dp 4 --zero {zero}")["ranks"]
    assert held["optimizer_states"] == 2 * all_ranks["optimizer_states"]


def test_memory_table_names_categories_and_unit(run):
    output = run("memory --model gpt2 --pp 2").output
    assert "optimizer states" in output
    assert "GB" in output
    assert len(output.splitlines()) == 8
    assert "MB" in run("memory --model resnet18").output


def test_layers_dealt_out_by_hand(read):
    even, uneven = (read(f"memory --model gpt2 --pp 4{more}") for more in ("", " --stage-layers 3,4,4,1"))
    assert uneven["ranks"][1]["parameters"] > even["ranks"][1]["parameters"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("memory --model gpt3-175b --tp 7", "tp must divide the 96 heads, not 7"),
        ("memory --model gpt3-175b --tp 0", "tp must be a whole number of at least 1, not 0"),
        ("memory --model gpt3-175b --pp 97", "97 pipeline stages need as many layers; the model has 96"),
        ("memory --model gpt3-175b --zero 5", "zero must be 0, 1, 2 or 3, not 5"),
        ("memory --model gpt5", "model must be one of gpt3-175b"),
        ("memory --model gpt2 --parameters 7e9", "give either --model or --parameters, not both"),
        (
            "memory --parameters 7e9 --layers 3",
            "--layers would not be used: of --parameters only the model states",
        ),
        ("memory --parameters 7e9 --micro-batch 3", "--micro-batch would not be used"),
        ("memory --parameters 7e9 --global-batch 8", "--global-batch would not be used"),
        (
            "memory --model resnet50 --tp 2",
            "--tp would not be used: of resnet50 only the model states are known",
        ),
        (
            "memory --model gpt2 --dp 8 --gpus 16",
            "must be the 16 devices there are, not 8: the others would be idle",
        ),
        (
            "memory --model gpt2 --dp 8 --gpus 4",
            "must be the 4 devices there are, not 8: the plan needs more",
        ),
        ("memory --model gpt2 --shard 1", "--shard would not be used: it needs --zero 1, 2 or 3"),
        (
            "memory --model gpt2 --dp 2 --zero 2 --prefetch 2",
            "--prefetch would not be used: it needs --zero 3",
        ),
        (
            "memory --model gpt2 --sequence-parallel",
            "--sequence-parallel would not be used: it needs --tp of at",
        ),
        ("memory --model gpt2 --gpu inf,1e12,1e9", "each finite and more than 0, not inf,1e12,1e9"),
        ("memory --model gpt2 --gpu 1e12,nan,1e9", "each finite and more than 0, not 1e12,nan,1e9"),
        ("memory --model gpt2 --gpu missing.toml", "there is no file missing.toml"),
        ("memory --model gpt2 --pp 2 --stage-layers 6,5", "2 numbers that add up to 12, not (6, 5)"),
        (
            "memory --model gpt2 --pp 2 --stage-layers half",
            "stage layers must be numbers with commas, not half",
        ),
        ("memory --layers 3", "a shape also needs --hidden, --heads, --vocab, --sequence"),
        (
            "memory --model gpt2 --pp 2 --stage-layers -1,13",
            "stage layers must be a whole number of at least 1",
        ),
        ("memory --parameters -1", "parameters must be a number more than 0, not -1"),
        ("memory --parameters inf", "parameters must be a number more than 0, not inf"),
        ("memory --parameters nan", "parameters must be a number more than 0, not nan"),
    ],
)
def test_bad_values_end_with_one_sentence_and_exit_code_2(run, line, sentence):
    result = run(line)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "options",
    [
        "--model llama-3-8b --dp 8 --zero 3 --gpu h100",
        "--model llama-3-8b --dp 8 --zero 1 --gpu h100",
        "--model gpt3-175b --tp 8 --pp 8 --gpu a100-80gb --recompute selective --sequence-parallel",
        "--model gpt3-175b --tp 8 --pp 8 --gpu a100-80gb",
        "--model gpt2-xl --pp 4 --schedule zb-v --gpu v100",
        "--model gpt2-xl --pp 4 --schedule gpipe --gpu v100",
        "--model mixtral-8x7b --dp 8 --ep 8 --zero 3 --gpu h200",
    ],
)
def test_memory_step_and_the_api_give_the_same_answer(run, read, options):
    answer = read(f"memory {options} --global-batch 16")
    step = run(f"step {options} --global-batch 16 --json")
    occupied = max(rank["total"] + rank["reserved"] for rank in answer["ranks"])
    assert answer["peak_total"] < occupied
    assert answer["fits"] == (occupied <= answer["capacity"]) == (step.exit_code == 0)
    if not answer["fits"]:
        assert f"needs {occupied / 1e9:.1f} GB" in step.output
    assert not (answer["fits"] and answer["fits_with"])
    for remedy in answer["fits_with"]:
        name = remedy.split()[0]
        kept = " ".join(
            f"--{pair}" for pair in options.split("--")[1:] if not pair.startswith(name[2:] + " ")
        )
        assert read(f"memory {kept} {remedy}")["fits"], remedy
    shape, plan = MODELS[answer["model"]["name"]], _plan_of(answer)
    ranks = plan_memory(shape, plan, GPUS[answer["hardware"]["name"]])
    assert max(rank.total for rank in ranks) == pytest.approx(answer["peak_total"], abs=5)


def test_what_does_not_fit_is_told_what_would(read):
    assert read("memory --model llama-3-8b --dp 8 --zero 1 --gpu h100 --global-batch 16")["fits_with"]
    assert read("memory --model llama-3-8b --dp 8 --zero 3 --gpu h100 --global-batch 16")["fits_with"] == []


def _plan_of(answer):
    """The plan that an answer echoes, as the API takes it."""
    fields = {name: value for name, value in answer["plan"].items() if name in Plan.__dataclass_fields__}
    return Plan(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    )


def test_the_largest_microbatch_fits_and_one_more_does_not(run, read):
    line = "memory --model llama-2-7b --tp 8 --gpu a100-40gb --attention flash"
    largest = read(line)["largest_micro_batch"]
    assert largest > 1
    assert read(f"{line} --micro-batch {largest}")["fits"]
    assert not read(f"{line} --micro-batch {largest + 1}")["fits"]
    assert f"the largest --micro-batch that fits is {largest}" in run(line).output
    assert "does not fit" in run(f"{line} --micro-batch {2 * largest}").output


def test_interleaved_schedules_take_microbatches_that_do_not_divide(read):
    answer = read("memory --model gpt2 --pp 4 --chunks 3 --microbatches 6")
    shown = read("timeline --schedule interleaved-1f1b --ranks 4 --chunks 3 --microbatches 6")
    layer = read("memory --model gpt2")["ranks"][0]["activations"] / 12
    for rank in (1, 2):  # one layer a chunk
        alive = answer["ranks"][rank]["activations"] / layer
        assert alive == pytest.approx(shown["peak_in_flight"][rank], rel=0.2)
