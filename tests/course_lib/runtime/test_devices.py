"""Each rank computes on its own GPU, whoever connects the ranks. The GPUs here are pretended."""

import pytest
import torch
import torch.distributed as dist

from course_lib.runtime import devices, torchrun


@pytest.fixture
def four_gpus(monkeypatch):
    """Four GPUs as torch.cuda would show them, and the number of the chosen one."""
    chosen = [0]
    monkeypatch.setattr(devices, "_device", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: chosen[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda d: chosen.__setitem__(0, torch.device(d).index))
    return chosen


def under_torchrun(monkeypatch, local_rank):
    monkeypatch.setattr(dist, "is_torchelastic_launched", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    monkeypatch.setenv("WORLD_SIZE", "4")


def test_outside_of_ranks_it_is_the_gpu_that_was_chosen(four_gpus):
    assert devices.current_device() == torch.device("cuda", 0)
    torch.cuda.set_device(torch.device("cuda", 2))
    assert devices.current_device() == torch.device("cuda", 2)


def test_a_script_under_torchrun_has_the_gpu_of_its_local_rank(four_gpus, monkeypatch):
    under_torchrun(monkeypatch, 3)
    assert devices.current_device() == torch.device("cuda", 3)
    assert four_gpus == [3], "torch's own calls go there, too"


def test_a_script_that_connected_its_ranks_itself_has_it_too(four_gpus, monkeypatch):
    under_torchrun(monkeypatch, 2)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "all_gather_object", lambda results, result: results.__setitem__(2, result))
    results = torchrun.run(devices.current_device, 4, None, (), None)
    assert results[2] == torch.device("cuda", 2)
    assert four_gpus == [2]
