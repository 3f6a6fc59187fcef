"""A plan in the words of five frameworks: what is said, what is refused, and each framework's own parser on it.

accelerate, deepspeed, torchtitan and megatron-core are asked where they are installed; nothing else needs them.
"""

import json
import shlex
from contextlib import suppress
from dataclasses import fields
from itertools import islice
from math import prod

import pytest
from click.testing import CliRunner

from course_lib.train.cli import main as train
from simulator.export import FRAMEWORKS, export
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.planner.search import plans

LLAMA, DEEPSEEK, GPT = MODELS["llama-3-8b"], MODELS["deepseek-v3"], MODELS["gpt2"]
FSDP = Plan(16, micro_batch=2, microbatches=4, zero=3, recompute="full", gradients="fp32", attention="flash")
SPLIT = Plan(
    2, 4, 2, chunks=2, microbatches=8, sequence_parallel=True, zero=1, overlap=("gradients", "pipeline")
)


def flags(text):
    """``--name value`` of a script, with True where there is no value."""
    words = shlex.split(text.replace("\\\n", " "))
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {a.lstrip("-"): (True if b.startswith("--") else b) for a, b in pairs if a.startswith("--")}


def said(framework, shape, plan, model=None):
    return flags(export(framework, shape, plan, model=model).text)


def every(framework, shape, count=12, gpus=16):
    """Plans of the search that the framework can run."""
    found = []
    for plan in islice(plans(shape, GPUS["h100"], gpus, 32, {}), 0, None, 3):
        with suppress(ValueError):
            found.append((plan, export(framework, shape, plan)))
    assert len(found) >= 3
    return found[:: max(1, len(found) // count)]


def test_torchtitan():
    one = said("torchtitan", LLAMA, FSDP, "llama-3-8b")
    assert (one["module"], one["config"]) == ("llama3", "llama3_8b")
    assert one["parallelism.data-parallel-shard-degree"] == "16"
    assert one["parallelism.fsdp-reshard-after-forward"] == "always"
    assert (one["training.local-batch-size"], one["training.global-batch-size"]) == ("2", "128")
    assert "activation-checkpoint:full" in export("torchtitan", LLAMA, FSDP).text
    hybrid = said("torchtitan", LLAMA, Plan(8, 1, 1, 2, zero=3, shard=8))
    assert hybrid["parallelism.data-parallel-replicate-degree"] == "2"
    assert hybrid["parallelism.data-parallel-shard-degree"] == "4"  # times cp are the 8 that share
    piped = said("torchtitan", LLAMA, Plan(2, 4, 2, chunks=2, microbatches=8, micro_batch=2))
    assert piped["parallelism.pipeline-parallel-schedule"] == "Interleaved1F1B"
    assert piped["parallelism.pipeline-parallel-layers-per-stage"] == "8"
    assert piped["training.local-batch-size"] == "16"
    assert piped["parallelism.no-enable-sequence-parallel"] is True


def test_megatron():
    one = said("megatron", LLAMA, SPLIT)
    assert one["tensor-model-parallel-size"] == "4"
    assert one["num-virtual-stages-per-pipeline-rank"] == "2"
    assert "no-overlap-p2p-communication" not in one
    assert {"sequence-parallel", "use-distributed-optimizer", "grad-reduce-in-bf16"} <= {*one}
    assert (one["num-query-groups"], one["normalization"]) == ("8", "RMSNorm")
    eight = said("megatron", LLAMA, Plan(cp=2, context="all-gather", precision="fp8", scaling="block"))
    assert (eight["cp-comm-type"], eight["fp8-recipe"]) == ("all_gather", "blockwise")
    both = said("megatron", LLAMA, Plan(cp=8, ulysses=4))
    assert both["cp-comm-type"] == "a2a+p2p"
    assert (
        "--hierarchical-context-parallel-sizes 4 2" in export("megatron", LLAMA, Plan(cp=8, ulysses=4)).text
    )
    uneven = said("megatron", LLAMA, Plan(1, 1, 2, stage_layers=(15, 17)))
    assert uneven["pipeline-model-parallel-layout"] == "Et*15|t*17L"
    experts = said("megatron", DEEPSEEK, Plan(8, ep=8))
    assert experts["moe-layer-freq"] == "[0]*3+[1]*58"
    assert experts["moe-shared-expert-intermediate-size"] == "2048"
    assert experts["kv-lora-rank"] == "512"
    whole = said("megatron", DEEPSEEK, Plan(4, tp=2, ep=4, sequence_parallel=True))
    assert whole["expert-tensor-parallel-size"] == "1"
    assert "expert-tensor-parallel-size" not in experts


def test_deepspeed():
    file = json.loads(export("deepspeed", LLAMA, FSDP).text)
    assert file["train_batch_size"] == 128 == 2 * 4 * 16
    assert file["zero_optimization"] == {"stage": 3, "overlap_comm": True}
    assert file["data_types"] == {"grad_accum_dtype": "fp32"}
    moved = json.loads(export("deepspeed", LLAMA, Plan(4, zero=3, offload="parameters")).text)
    assert moved["zero_optimization"]["offload_param"]["device"] == "cpu"
    assert "gradient_checkpointing_enable" in " ".join(export("deepspeed", LLAMA, FSDP).notes)


def test_accelerate():
    text, notes = export("accelerate", LLAMA, FSDP)
    assert "distributed_type: FSDP" in text
    assert "fsdp_reshard_after_forward: true" in text
    assert "parallelism_config_dp_shard_size: 16" in text
    assert "gradient_accumulation_steps=4" in notes[0]
    assert "MULTI_GPU" in export("accelerate", GPT, Plan(2)).text


@pytest.mark.parametrize(
    ("framework", "plan", "words"),
    [
        ("torchtitan", Plan(4, zero=1), "zero must be 0 or 2 or 3, not 1: FSDP2"),
        ("torchtitan", Plan(pp=2, schedule="zb-h1"), "schedule must be gpipe"),
        ("torchtitan", Plan(pp=3), "3 stages must divide the 32 layers"),
        ("torchtitan", Plan(cp=2), "zero must be 2 or 3 with cp"),
        ("megatron", Plan(2, precision="bf16"), "precision must be mixed"),
        ("megatron", Plan(pp=2, schedule="zb-v"), "schedule must be 1f1b"),
        ("megatron", Plan(pp=2, chunks=2, microbatches=3), "multiple of pp 2, not 3"),
        ("megatron", Plan(cp=2, zigzag=False), "zigzag must be True"),
        ("megatron", Plan(cp=4, ulysses=2, context="all-gather"), "context must be ring or all-to-all"),
        ("torchtitan", Plan(2, cp=4, ulysses=2, zero=3), "ulysses must be 1"),
        ("accelerate", Plan(2, cp=4, ulysses=2, zero=3), "ulysses must be 1"),
        ("torchtitan", Plan(2, dispatch="fp8", zero=3), "dispatch must be same"),
        ("deepspeed", Plan(pp=2), "pp must be 1, not 2: a pipeline is a PipelineModule"),
        ("deepspeed", Plan(4, zero=3, shard=2), "shard must be all 4 ranks, not 2"),
        ("deepspeed", Plan(4, 2, zero=3), "zero must be 0, 1 or 2 with tp"),
        ("deepspeed", Plan(cp=2), "context must be all-to-all, not ring"),
        ("accelerate", Plan(2, zero=1), "for 1 take deepspeed's file"),
        ("accelerate", Plan(2, 2), "zero must be 2 or 3 with tp"),
        (
            "course_lib",
            Plan(precision="fp8", tp=2, sequence_parallel=True),
            "sequence_parallel must be no with precision fp8",
        ),
        ("course_lib", Plan(2, pp=2, zero=3), "zero must be 0 or 1 with pp 2"),
        ("nemo", Plan(), "framework must be one of"),
    ],
)
def test_what_it_cannot_say_is_refused(framework, plan, words):
    with pytest.raises(ValueError, match=r"for |framework") as told:
        export(framework, LLAMA, plan)
    assert words in str(told.value)


# ---- the command line, and the course's own run ------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_best_plan_that_a_framework_can_run(run, framework):
    question = "plan --model gpt2-xl --gpu h100 --gpus 8 --global-batch 64"
    result = run(f"{question} --export {framework}")
    assert result.exit_code == 0, result.output
    assert "s a step: --plan dp=" in result.stderr
    refused = run(f"{question} --export {framework} --precision fp8 --optimizer sgd --offload optimizer")
    assert refused.exit_code == 2
    assert f"for {framework}" in refused.output


def test_the_course_runs_what_it_wrote(run, tmp_path):
    shape = "--layers 2 --hidden 32 --heads 4 --vocab 256 --sequence 16"
    line = "dp=2,tp=2,microbatches=2,sequence_parallel=yes,zero=1,precision=fp32"
    result = run(f"step {shape} --gpu laptop-cpu --global-batch 4 --plan {line} --export course_lib")
    assert result.exit_code == 0, result.output
    file = tmp_path / "plan.toml"
    file.write_text(result.stdout)
    trained = CliRunner().invoke(train, ["--config", str(file), "--steps", "1", "--json"])
    assert trained.exit_code == 0, trained.output
    told = json.loads(trained.stdout.splitlines()[-1])
    assert set(told["plan"].split(",")) == set(line.split(","))
    assert len(told["ranks"]) == 4


# ---- each framework's own parser, where it is installed ----------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [LLAMA, DEEPSEEK], ids=["llama", "deepseek"])
def test_torchtitan_reads_it(shape, monkeypatch):
    pytest.importorskip("torchtitan")
    manager = pytest.importorskip("torchtitan.config.manager")
    pipeline = pytest.importorskip("torchtitan.distributed.pipeline_parallel")
    from torch.distributed.pipelining.schedules import get_schedule_class

    name = "llama-3-8b" if shape is LLAMA else "deepseek-v3"
    for plan, _ in every("torchtitan", shape):
        text = export("torchtitan", shape, plan, model=name).text
        words = shlex.split(text.replace("\\\n", " "))
        config = manager.ConfigManager().parse_args(words[words.index("--module") :])
        p = config.parallelism
        degrees = [getattr(p, f"{axis}_parallel_degree") for axis in ("tensor", "context", "pipeline")]
        degrees += [p.data_parallel_replicate_degree, p.data_parallel_shard_degree]
        assert prod(degrees) == plan.ranks
        assert config.training.global_batch_size == plan.global_batch
        assert (config.activation_checkpoint is None) == (plan.recompute == "none")
        if plan.pp > 1:
            get_schedule_class(p.pipeline_parallel_schedule)
            stages = pipeline._generate_llm_fqn_per_model_part(plan.stages, shape.layers, 0, 0)
            layers = [sum(name.startswith("layers.") for name in stage) for stage in stages]
            assert layers == plan.layers_by_stage(shape)


@pytest.mark.filterwarnings("ignore")
def test_deepspeed_reads_it(monkeypatch):
    config = pytest.importorskip("deepspeed.runtime.config")
    for plan, exported in every("deepspeed", LLAMA):
        file = json.loads(exported.text)
        monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
        monkeypatch.setattr(config.dist, "get_world_size", lambda n=plan.dp * plan.cp: n)
        read = config.DeepSpeedConfig(file)
        assert read.zero_optimization_stage == plan.zero
        assert read.gradient_accumulation_steps == plan.microbatches
        assert {*file} <= {*vars(read)["_param_dict"]}


@pytest.mark.filterwarnings("ignore")
def test_accelerate_reads_it(tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig

    known = vars(launch_command_parser().parse_args(["train.py"]))
    for plan, exported in every("accelerate", LLAMA):
        file = tmp_path / "plan.yaml"
        file.write_text(exported.text)
        read = load_config_from_file(str(file))
        assert read.num_processes == plan.ranks
        assert {*(read.fsdp_config or {}), *(read.parallelism_config or {})} <= {*known}
        if plan.zero:
            axes = {k.removeprefix("parallelism_config_"): v for k, v in read.parallelism_config.items()}
            axes.pop("cp_comm_strategy", None)
            assert ParallelismConfig(**axes).total_size == plan.ranks


# Megatron-LM's training script makes most flags from fields of megatron-core; these it makes itself.
OF_THE_SCRIPT = """
nnodes nproc-per-node rdzv-backend rdzv-endpoint mock-data tokenizer-type micro-batch-size
global-batch-size seq-length max-position-embeddings vocab-size position-embedding-type swiglu disable-bias-linear
untie-embeddings-and-output-weights group-query-attention num-virtual-stages-per-pipeline-rank bf16
no-overlap-p2p-communication grad-reduce-in-bf16 sgd-momentum optimizer attention-backend num-experts
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [LLAMA, DEEPSEEK, GPT], ids=["llama", "deepseek", "gpt"])
def test_megatron_knows_the_flags(shape):
    pytest.importorskip("megatron.core")
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import MLATransformerConfig
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    kinds = (MLATransformerConfig, OptimizerConfig, DistributedDataParallelConfig)
    names = {field.name.replace("_", "-") for kind in kinds for field in fields(kind)}
    for _, exported in every("megatron", shape, gpus=12):
        asked = flags(exported.text)
        assert {*asked} <= names | {*OF_THE_SCRIPT.split()}
        if layout := asked.get("pipeline-model-parallel-layout"):
            PipelineParallelLayerLayout(layout, int(asked["pipeline-model-parallel-size"]))
