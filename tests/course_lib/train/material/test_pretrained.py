"""A job that starts from pretrained weights: one device under every plan, and no rank reads more than its part.

Random models that transformers has saved, in fp64. One device has the weights from a state dict, and no plan.
"""

import json

import pytest
import torch
import torch.distributed as dist
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import nn

from course_lib.models.bart import shift_right
from course_lib.models.pretrained.family import fill
from course_lib.parallelize import mesh_axes, parallelize
from course_lib.pipeline.microbatches import sum_cross_entropy
from course_lib.runtime import launch
from course_lib.runtime.fork_server import preload
from course_lib.runtime.mesh import make_mesh
from course_lib.train.cli import main
from course_lib.train.job import Job
from course_lib.train.material.pretrained import MINILM, open_weights
from simulator.inputs.plan import Plan

preload("course_lib.train.job")
preload("course_lib.parallelize")
BATCH, SEQ, VOCAB, STEPS = 4, 8, 256, 2
PLANS = {
    "one rank": ({"microbatches": 2}, None),
    "dp": ({"dp": 2}, None),
    "zero 1": ({"dp": 2, "zero": 1}, None),
    "zero 2": ({"dp": 2, "zero": 2}, None),
    "fsdp": ({"dp": 2, "zero": 3}, None),
    "tp": ({"tp": 2}, None),
    "sp": ({"tp": 2, "sequence_parallel": True}, None),
    "pp": ({"pp": 2, "microbatches": 2}, None),
    "galaxy": ({"tp": 2}, {"placement": "galaxy", "heads": (3, 1), "sequence": (5, 3)}),
}
READ = {"fsdp": 0.51, "tp": 0.57, "sp": 0.57, "pp": 0.8}  # most of the weights that a rank may read
TUNINGS = ("lora", "adapter", "llama-adapter", "side", "prompt", "p-tuning", "prefix")


def config_of(kind):
    same = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind == "llama":
        return transformers.LlamaConfig(**same, vocab_size=VOCAB, max_position_embeddings=32)
    if kind == "bert":
        return transformers.BertConfig(**same, vocab_size=VOCAB, max_position_embeddings=32)
    if kind == "gpt":
        return transformers.GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=16, n_layer=2, n_head=4)
    sides = {
        f"{side}_{key}": n
        for side in ("encoder", "decoder")
        for key, n in (("layers", 1), ("ffn_dim", 32), ("attention_heads", 4))
    }
    return transformers.BartConfig(**sides, vocab_size=VOCAB, d_model=16, max_position_embeddings=32)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of each kind one model in fp64, in several files."""
    found = {}
    for kind in ("llama", "bert", "gpt", "bart"):
        torch.manual_seed(0)
        cls = transformers.AutoModel if kind == "bert" else transformers.AutoModelForCausalLM
        cls = transformers.AutoModelForSeq2SeqLM if kind == "bart" else cls
        model = cls.from_config(config_of(kind)).double()
        for p in model.parameters():
            nn.init.normal_(p, std=0.1)
        found[kind] = str(tmp_path_factory.mktemp(kind))
        model.save_pretrained(found[kind], max_shard_size="30kB")
    return found


def job_of(folder, kind, tuning="full", plan=None):
    task = "package" if kind == "bert" else "language"
    return Job(
        kind, plan or Plan(precision="fp32"), task, sequence=SEQ, weights=folder, tuning={"method": tuning}
    )


def tuned_model(job):
    """What tuning adds starts trivial: an error in it would not show."""
    model = job.tuned(job.make_model())
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if not p.is_meta:
                p.copy_(torch.randn(p.shape) * 0.1)
    return model.double()


def batch(kind, step):
    tokens, targets = torch.randint(3, VOCAB, (2, BATCH, SEQ), generator=torch.Generator().manual_seed(step))
    if kind == "bert":
        return tokens, torch.ones_like(tokens), targets[:, 0] % 8
    return (tokens, shift_right(targets, 2, 1), targets) if kind == "bart" else (tokens, targets)


def one_device(kind, folder, tuning):
    job = job_of(folder, kind, tuning)
    weights = open_weights(folder).pretrained
    values = weights.load(torch.float64).state_dict()
    model = tuned_model(job)
    names = {p: p.pretrained_name for p in model.parameters() if p.is_meta}
    fill([model], lambda _, p: values[names[p]])
    trained = [p for p in model.train().parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for step in range(STEPS):
        *inputs, targets = batch(kind, step)
        optimizer.zero_grad()
        loss = sum_cross_entropy(model(*inputs), targets) / targets.numel()
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 0.1)
        optimizer.step()
        losses.append(loss.item())
    return losses


def under_plans(kind, folder, cells):
    """For each cell the losses, the bytes of weights that this rank has read, and those of parameters that it has."""
    found, meshes = {}, {}
    read = open_weights(folder).folder
    for tuning, way in cells:
        settings, placement = PLANS[way]
        plan = Plan(**settings, precision="fp32")
        if (sizes := tuple(mesh_axes(plan).items())) not in meshes:
            meshes[sizes] = make_mesh(dict(sizes))
        job = job_of(folder, kind, tuning, plan)
        model, before = tuned_model(job), read.bytes_read
        model, optimizer = parallelize(
            model, plan, meshes[sizes], placement=placement, read=job.reader(model), lr=1e-2
        )
        amounts = read.bytes_read - before, model.memory(optimizer).parameters
        losses, own = [], BATCH // model.data_ranks
        for step in range(STEPS):
            optimizer.zero_grad()
            rows = slice(model.data_rank * own, (model.data_rank + 1) * own)
            losses.append(model.forward_backward(*(t[rows] for t in batch(kind, step))).item())
            model.clip_grad_norm(0.1)
            optimizer.step()
        found[tuning, way] = losses, *amounts
    return found


def cells_of(kind):
    ways = [way for way in PLANS if way != "galaxy" or kind != "gpt"]
    cells = [("full", way) for way in ways if way != "one rank"]
    if kind == "llama":
        return cells + [(t, way) for t in TUNINGS for way in ("fsdp", "tp", "pp", "galaxy")]
    if kind == "gpt":
        cells += [("side", way) for way in ("dp", "tp", "pp")]
    return [*cells, ("lora", "tp"), ("lora", "pp")]


@pytest.mark.parametrize("kind", ["llama", "bert", "gpt", "bart"])
def test_every_plan_starts_from_the_weights_and_no_rank_reads_more_than_its_part(folders, kind):
    folder = folders[kind]
    whole = sum(
        t.nbytes
        for f in open_weights(folder).folder.path.glob("*.safetensors")
        for t in load_file(f).values()
    )
    cells = cells_of(kind)
    expected = {tuning: one_device(kind, folder, tuning) for tuning in {t for t, _ in cells}}
    ranks = launch(under_plans, 2, args=(kind, folder, cells))
    for found in ranks:
        for (tuning, way), (losses, read, held) in found.items():
            assert losses == pytest.approx(expected[tuning], abs=1e-9), (tuning, way)
            assert read <= whole * READ.get(way, 1) + 2000, (tuning, way, read / whole)
            if tuning == "full" and way in READ:
                assert held <= whole * READ[way] + 4000, (way, held / whole)
    for way in READ:
        parts = [found["full", way][1] for found in ranks]
        assert sum(parts) >= whole * 0.97, (way, "all of it is read by somebody")


def test_the_same_from_the_command_line_and_from_a_file(folders, tmp_path):
    def steps(*words):
        result = CliRunner().invoke(
            main, [*words, "--steps", "2", "--sequence", "16", "--global-batch", "4", "--json"]
        )
        assert result.exit_code == 0, result.output
        *lines, last = map(json.loads, result.output.splitlines())
        return [line["loss"] for line in lines], last["ranks"]

    alone, _ = steps("--weights", folders["llama"])
    file = tmp_path / "run.toml"
    file.write_text(f'world = 2\n[model]\nweights = "{folders["llama"]}"\n[plan]\ntp = 2\n')
    losses, ranks = steps("--config", str(file))
    assert losses == pytest.approx(alone, rel=1e-5)
    whole = sum(f.stat().st_size for f in open_weights(folders["llama"]).folder.path.glob("*.safetensors"))
    for rank in ranks:
        assert rank["weights_read"] < 0.6 * whole


def minilm_losses(plans, steps, tuning):
    found = {}
    for way, settings in plans.items():
        plan = Plan(**settings, precision="fp32")
        job = Job("bert", plan, "word-order", sequence=16, weights=MINILM, tuning=tuning)
        plain = job.make_model()
        tuned = job.tuned(plain)
        model, optimizer = parallelize(
            tuned, plan, make_mesh(mesh_axes(plan)), read=job.reader(tuned), lr=1e-4
        )
        losses = []
        for step in range(steps):
            tokens = torch.randint(1000, 2000, (4, 16), generator=torch.Generator().manual_seed(step))
            rows = slice(model.data_rank * 4 // plan.dp, (model.data_rank + 1) * 4 // plan.dp)
            optimizer.zero_grad()
            losses.append(
                model.forward_backward(
                    tokens[rows], torch.ones_like(tokens)[rows], tokens[rows, 0] % 2
                ).item()
            )
            optimizer.step()
        found[way] = losses
        dist.barrier()
    return found


def test_minilm_learns_the_same_on_one_device_and_on_two_ranks():
    tuning = {"method": "lora", "rank": 4, "alpha": 8}
    [alone] = launch(minilm_losses, 1, args=({"one": {"microbatches": 2}}, 2, tuning))
    plans = {
        "dp": {"dp": 2, "microbatches": 2},
        "tp": {"tp": 2, "microbatches": 4},
        "pp": {"pp": 2, "microbatches": 4},
    }
    for found in launch(minilm_losses, 2, args=(plans, 2, tuning)):
        for losses in found.values():
            assert losses == pytest.approx(alone["one"], rel=1e-4)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--layers 2", "--layers is what the folder in --weights says: leave it out"),
        ("--model bert", "holds a llama, and --model is bert"),
        ("--sequence 64", "sequence, with virtual tokens, must be at most the model's 32 positions, not 64"),
        ("--plan tp=3", "tp must divide the 4 heads, not 3"),
    ],
)
def test_what_does_not_fit_the_folder_is_told_in_one_sentence(folders, words, sentence):
    result = CliRunner().invoke(main, ["--weights", folders["llama"], *words.split()])
    assert result.exit_code == 2
    assert sentence in result.output


def test_a_folder_that_cannot_be_used_is_told_in_one_sentence(folders, tmp_path):
    for change, sentence in (
        ({"model_type": "t5"}, "has model_type 't5'; supported are bert, bart, gpt2, llama, qwen2, qwen3"),
        ({"vocab_size": 300}, "and config.json makes it (300, 16)"),
    ):
        settings = json.loads((open_weights(folders["gpt"]).folder.path / "config.json").read_text())
        folder = tmp_path / next(iter(change))
        folder.mkdir()
        for file in open_weights(folders["gpt"]).folder.path.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        (folder / "config.json").write_text(json.dumps(settings | change))
        result = CliRunner().invoke(main, ["--weights", str(folder)])
        assert result.exit_code == 2
        assert sentence in result.output
    result = CliRunner().invoke(main, ["--weights", folders["bert"], "--sequence", "16"])
    assert "has 256 tokens; this task is written in the 30,522 of bert-base-uncased" in result.output


def test_freezing_random_weights_is_told_in_a_line(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        '[model]\nlayers = 1\nhidden = 8\nheads = 2\nsequence = 8\n[tuning]\nmethod = "lora"\n[training]\nsteps = 1\n'
    )
    result = CliRunner().invoke(main, ["--config", str(file)])
    assert result.exit_code == 0, result.output
    assert "lora freezes a model with random weights, which learns little: --weights starts" in result.output
