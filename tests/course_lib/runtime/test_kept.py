"""A check's ranks: they stay to its end, and one launch finds nothing of the one before."""

import os

import psutil
import torch
import torch.distributed as dist
from fixture_checks import check, exercise

from course_lib.runtime.kept import kept, launch


def pid():
    return os.getpid()


def test_a_check_keeps_its_ranks_to_its_end():
    seen = []

    def observe(answer, case):
        seen.append(launch(pid, 2))
        assert all(map(psutil.pid_exists, seen[0]))
        return {"result": ""}

    exercise("97.1", None, {"first": 1, "second": 2}, "ranks", observe=observe)
    check("97.1", None)
    assert len(seen) == 4
    assert all(pids == seen[0] for pids in seen)
    assert not any(map(psutil.pid_exists, seen[0]))
    assert launch(pid, 2) != seen[0]


def leaves(number):
    """The number of this rank, as a sum would see it, and what this launch found."""
    found = torch.get_default_dtype(), os.environ.get("LEFT"), len(dist.distributed_c10d._world.pg_map)
    torch.set_default_dtype(torch.float64)
    os.environ["LEFT"] = "1"
    dist.new_group([0, 1])
    return dist.get_rank() * number, found


def test_settings_and_groups_of_one_launch_are_gone_in_the_next():
    with kept():
        first, second, third = (launch(leaves, 2, args=(3,), backend="gloo", timeout=60) for _ in range(3))
    assert [rank for rank, _ in first] == [0, 3]
    assert [found for _, found in second] == [found for _, found in third]
    assert all(found == (torch.float32, None, 1) for _, found in second)
