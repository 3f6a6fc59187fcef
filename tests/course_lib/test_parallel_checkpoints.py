"""What ``parallelize`` saves and takes back: buffers, frozen parameters, and no checkpoint of another model."""

import os
import re
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.finetuning.lora_apply import apply_lora, mark_only_lora_as_trainable
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.parallelize import latest_checkpoint, load_checkpoint, mesh_axes, parallelize, save_checkpoint
from course_lib.runtime import launch
from course_lib.runtime.mesh import make_mesh
from course_lib.runtime.world import preload
from simulator.inputs.plan import Plan

preload("course_lib.parallelize")
TOKENS = torch.randint(31, (4, 6), generator=torch.Generator().manual_seed(0))
ADAM, SGD, MOMENTUM = (torch.optim.AdamW, {}), (torch.optim.SGD, {}), (torch.optim.SGD, {"momentum": 0.9})


def gpt(layers=2, **changes):
    torch.manual_seed(0)
    return GPT(
        GPTConfig.tiny(vocab_size=31, num_layers=layers, hidden_size=16, num_heads=4, **changes)
    ).double()


def llama(heads=4, positions=16):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": heads, "num_key_value_heads": heads}
    config = LlamaConfig.tiny(vocab_size=31, max_position_embeddings=positions, **sizes, **heads)
    return Llama(config).double()


def lora(alpha=4, dropout=0.0):
    model = llama()
    apply_lora(model, ["q_proj"], rank=2, alpha=alpha, dropout=dropout)
    mark_only_lora_as_trainable(model)
    return model


def with_batchnorm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()


MESHES = {}


def start(model, settings, kind=ADAM):
    plan = Plan(**settings, precision="fp32")
    sizes = tuple(mesh_axes(plan).items())
    if sizes not in MESHES:
        MESHES[sizes] = make_mesh(dict(sizes))
    return parallelize(model, plan, MESHES[sizes], kind[0], lr=0.05, **kind[1])


def steps(model, optimizer, number, batch=(TOKENS, TOKENS)):
    for _ in range(number):
        optimizer.zero_grad()
        rows = [tensor.chunk(model.data_ranks)[model.data_rank] for tensor in batch]
        loss = model.forward_backward(*rows)
        optimizer.step()
    return loss.item()


def resumed_frozen(folder):
    """A LoRA is trained for two steps under one plan, and resumed under the next: its losses, and those of one run."""
    expected = [steps(*start(lora(), {"dp": 2}), number) for number in (1, 2, 3, 4, 5)]
    plans, found = [{"dp": 2, "zero": 1}, {"dp": 2, "zero": 2}, {"dp": 2, "zero": 3}, {"tp": 2}], []
    for i, settings in enumerate(plans):
        model, optimizer = start(lora(), settings)
        if i:
            assert load_checkpoint(f"{folder}/{i - 1}", model, optimizer) == {"step": i}
        found.append(steps(model, optimizer, 1))
        save_checkpoint(f"{folder}/{i}", model, optimizer, step=i + 1)
    model, optimizer = start(lora(), {"dp": 2, "zero": 1})
    load_checkpoint(f"{folder}/3", model, optimizer)
    return expected, [*found, steps(model, optimizer, 1)]


def test_fine_tuning_goes_on_under_every_way_to_shard(tmp_path):
    for expected, found in launch(resumed_frozen, 2, args=(str(tmp_path),)):
        assert found == pytest.approx(expected, rel=1e-10)


def buffers(folder, settings, settings_2):
    inputs = 5 + 3 * torch.randn(32, 4, generator=torch.Generator().manual_seed(1)).double()
    batch = inputs, (inputs.sum(1) > 20).long()
    model, optimizer = start(with_batchnorm(), settings)
    steps(model, optimizer, 3, batch)
    save_checkpoint(folder, model, optimizer)
    state = model.state_dict()
    plain = with_batchnorm()
    plain.load_state_dict(state)  # strict: nothing is missing
    assert list(state) == list(plain.state_dict())
    again, optimizer = start(with_batchnorm(), settings_2)
    load_checkpoint(folder, again, optimizer)
    by_hand, _ = start(with_batchnorm(), settings)
    by_hand.load_state_dict(state)
    held = {name: b for name, b in again.module.named_buffers()}
    assert {"1.running_mean", "1.running_var", "1.num_batches_tracked"} == held.keys()
    return state, again.state_dict(), by_hand.state_dict(), held


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_buffers_are_saved_and_taken_back(tmp_path, zero):
    settings, other = {"dp": 2, "zero": zero}, {"dp": 2, "zero": (zero + 1) % 4}
    results = launch(buffers, 2, args=(str(tmp_path), settings, other))
    first = results[0][0]
    assert first["1.num_batches_tracked"] == 3
    for state, loaded, by_hand, held in results:
        for name, value in first.items():
            assert torch.equal(state[name], value), "the same on all ranks: rank 0's"
            assert torch.equal(loaded[name], value)
            assert torch.equal(by_hand[name], value)
        assert all(torch.equal(buffer, first[name]) for name, buffer in held.items())


OTHERS = [  # saved, loaded, what is said
    (lambda: gpt(4), gpt, "another model: config.num_layers is 4 there, and 2 here"),
    (lambda: gpt(tie_embeddings=False), gpt, r"head.weight is \(31, 16\) there, and missing here"),
    (gpt, lambda: gpt(tie_embeddings=False), r"head.weight is missing there, and \(31, 16\) here"),
    (lora, llama, "self_attn.q_proj is LoRALinear there, and Linear here"),
    (llama, lambda: llama(2), "config.num_attention_heads is 4 there, and 2 here"),
    (lora, lambda: lora(400), r"config.alpha is 4 there, and 400 here"),
    ((gpt, ADAM), (gpt, MOMENTUM), "of another optimizer: AdamW there, and SGD with momentum here"),
    ((gpt, MOMENTUM), (gpt, SGD), "of another optimizer: SGD with momentum there, and SGD here"),
    ((gpt, SGD), (gpt, ADAM), "of another optimizer: SGD there, and AdamW here"),
    ((lora, ADAM), (lambda: lora().requires_grad_(True), ADAM), "only one of them trains lm_head.weight"),
]
ALIKE = [
    (llama, llama, None),
    (llama, lambda: llama(positions=32), "config.max_position_embeddings is 16 there, and 32 here"),
    (lora, lambda: lora(dropout=0.1), "q_proj.config.dropout is 0.0 there, and 0.1 here"),
    (
        (gpt, (torch.optim.AdamW, {"betas": (0.8, 0.9)})),
        (gpt, ADAM),
        r"betas of group 0 is \[0.8, 0.9\] as saved, and not \[0.9, 0.999\]",
    ),
]


def other_models(folder, zero, cases):
    settings, said = {"dp": 2, "zero": zero}, []
    for i, (saved, loaded, _) in enumerate(cases):
        (make, kind), (make_2, kind_2) = (
            one if isinstance(one, tuple) else (one, ADAM) for one in (saved, loaded)
        )
        model, optimizer = start(make(), settings, kind)
        steps(model, optimizer, 1)
        save_checkpoint(f"{folder}/{i}", model, optimizer)
        model, optimizer = start(make_2(), settings, kind_2)
        before, groups = model.state_dict(), [dict(group) for group in optimizer.param_groups]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                load_checkpoint(f"{folder}/{i}", model, optimizer)
                said.append([str(one.message) for one in warned])
            except ValueError as error:
                said.append(str(error))
                assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
                assert not optimizer.state
                assert all(
                    {**group} == was for group, was in zip(optimizer.param_groups, groups, strict=True)
                )
    return said


@pytest.mark.parametrize(
    ("zero", "others", "alike"), [(0, OTHERS, ALIKE), (1, OTHERS[::3], ALIKE[-1:])], ids=["ddp", "zero 1"]
)
def test_a_checkpoint_of_another_model_or_optimizer_changes_nothing(tmp_path, zero, others, alike):
    for rank, said in enumerate(launch(other_models, 2, args=(str(tmp_path), zero, others + alike))):
        for sentence, (*_, expected) in zip(said, others, strict=False):
            assert re.search(expected, sentence)
        for sentences, (*_, expected) in zip(said[len(others) :], alike, strict=True):
            assert len(sentences) == (expected is not None and rank == 0), sentences
            assert all(re.search(f"goes on with other settings: .*{expected}", one) for one in sentences)


@pytest.fixture
def small_disk(tmp_path):
    """Of 300,000 bytes."""
    command = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(tmp_path)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small disk needs the right to mount one")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def on_a_small_disk(folder):
    model, optimizer = start(nn.Linear(100, 100), {"dp": 2, "zero": 1}, SGD)  # 40 KB
    other, said = f"{folder}/other", []
    for step in range(1, 5):
        if dist.get_rank() == 0 and step == 3:
            Path(other).write_bytes(b"x" * (shutil.disk_usage(folder).free - 30_000))
        if dist.get_rank() == 0 and step == 4:
            Path(other).unlink()
        dist.barrier()
        try:
            save_checkpoint(f"{folder}/step-{step % 2}", model, optimizer, step=step)
        except OSError as error:
            said.append(f"{type(error).__name__}: {error}")
        dist.barrier()
        said.append(sorted(os.listdir(folder)))
        dist.barrier()
    return said, [load_checkpoint(f"{folder}/step-{i}", model, optimizer)["step"] for i in (0, 1)]


def test_a_full_disk_is_told_by_all_ranks_and_room_is_used_again(small_disk):
    for said, found in launch(on_a_small_disk, 2, args=(str(small_disk),)):
        full = f"DiskFull: No space left on the disk: {small_disk}/step-1 was not saved"
        saves = ["step-0", "step-1"]
        assert said == [["step-1"], saves, full, ["other", *saves], saves]
        assert found == [4, 1], "the third save was to replace the first, which stays"


def damaged(folder):
    model, optimizer = start(gpt(), {"dp": 2, "zero": 1})
    for step, other in ((1, "a"), (2, "a"), (2, "b")):
        save_checkpoint(f"{folder}/step-{step}-{other}", model, optimizer, step=step)
        steps(model, optimizer, 1)
    if dist.get_rank() == 0:
        theirs, ours = (Path(f"{folder}/step-2-{run}/__1_0.distcp") for run in "ab")
        ours.write_bytes(theirs.read_bytes())
    dist.barrier()
    try:
        load_checkpoint(f"{folder}/step-2-b", model, optimizer)
    except ValueError as error:
        return str(error), latest_checkpoint(folder).name


def test_half_of_another_runs_files_are_noticed_on_all_ranks(tmp_path):
    for said, latest in launch(damaged, 2, args=(str(tmp_path),)):
        assert said.endswith("step-2-b is damaged: __1_0.distcp has other bytes than were written")
        assert latest == "step-2-a"
