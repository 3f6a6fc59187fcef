"""How training starts and ends: torchrun, two hosts, Ctrl-C, a rank that dies; nothing is left running."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from socket import socket
from subprocess import PIPE
from uuid import uuid4

import psutil
import pytest
from click.testing import CliRunner
from forked_programs import NETWORK, Program

from course_lib.train.cli import main
from course_lib.train.report import Report

SMALL = "--layers 2 --hidden 16 --heads 2 --sequence 16 --global-batch 4 --lr 0.01"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
TRAIN = [sys.executable, "-m", "course_lib.train", *SMALL.split()]


def start(command, **environment):
    return Program(command, stdout=PIPE, stderr=PIPE, env=ENVIRONMENT | environment)


@contextmanager
def ending_all(process):
    """Whatever becomes of the test, nothing that it started stays. Yields what it has started so far."""
    try:
        yield lambda: psutil.Process(process.pid).children(recursive=True)
    finally:
        family = []
        if process.poll() is None:
            with suppress(psutil.NoSuchProcess):  # it may end just now
                family = psutil.Process(process.pid).children(recursive=True)
            process.kill()
        for child in family:
            child.kill()
        process.communicate()


def gone(processes):
    """Wait for them to end; those that have not."""
    _, alive = psutil.wait_procs(processes, timeout=60)
    return alive


def losses(output):
    steps = [json.loads(line) for line in output.splitlines() if line.startswith('{"step"')]
    return [step["loss"] for step in steps]


def test_after_ctrl_c_nothing_is_left():
    process = start([*TRAIN, "--plan", "pp=2", "--steps", "1000000", "--log-every", "1"])
    with ending_all(process) as family:
        while " 2/1000000 " not in (line := process.stdout.readline()):
            assert line, process.stderr.read()
        started = family()
        assert len(started) >= 2
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
        assert (process.returncode, said) == (130, "stopped; nothing is left running\n")
        assert gone(started) == []


def test_when_a_rank_is_killed_a_sentence_says_so_and_nothing_is_left(monkeypatch):
    started, before = [], psutil.Process().children(recursive=True)

    def step(report, told):
        report.begun = True
        if not started:
            now = [child for child in psutil.Process().children(recursive=True) if child not in before]
            started.extend(child for child in now if not child.children() and child.ppid() != os.getpid())
            started[0].kill()

    monkeypatch.setattr(Report, "step", step)
    result = CliRunner().invoke(main, [*SMALL.split(), "--plan", "dp=2,pp=2", "--steps", "1000000"])
    assert result.exit_code == 1
    assert "was killed by signal 9" in result.output
    assert "Traceback" not in result.output
    assert len(started) >= 4
    assert gone(started) == []


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
UNDER_TORCHRUN = ["-m", *TRAIN[2:], "--plan", "pp=2", "--steps", "2", "--json"]


@pytest.fixture(scope="module")
def expected():
    result = CliRunner().invoke(main, [*SMALL.split(), "--plan", "dp=1", "--steps", "2", "--json"])
    assert result.exit_code == 0, result.output
    return losses(result.output)


def test_under_torchrun_the_losses_are_the_same(expected):
    process = start([*TORCHRUN, "2", "--standalone", *UNDER_TORCHRUN])
    with ending_all(process):
        output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert losses(output) == pytest.approx(expected, rel=1e-4)
    assert len(json.loads(output.splitlines()[-1])["ranks"]) == 2


def test_on_two_hosts_the_losses_are_the_same(expected):
    with ExitStack() as stack:
        hosts = stack.enter_context(two_hosts())
        addresses = ["10.99.0.1", "10.99.0.2"]
        processes = []
        for i, host in enumerate(hosts):
            where = [
                "--nnodes",
                "2",
                "--node-rank",
                str(i),
                "--master-addr",
                addresses[0],
                "--master-port",
                "29511",
            ]
            where += ["--local-addr", addresses[i]]
            inside = {NETWORK: f"/run/netns/{host}", "GLOO_SOCKET_IFNAME": "inside"}
            processes.append(start([*TORCHRUN, "1", *where, *UNDER_TORCHRUN], **inside))
            stack.enter_context(ending_all(processes[-1]))
        outputs = [process.communicate(timeout=200) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
        assert losses(outputs[0][0]) == pytest.approx(expected, rel=1e-4)
        assert outputs[1][0] == "", "rank 0 prints, and the other host is silent"


def test_the_slurm_script_starts_a_torchrun_on_each_machine(tmp_path):
    """With stand-ins for Slurm's programs and torchrun, which print what they were called with."""
    programs = {
        "scontrol": "printf 'first\\nsecond\\n'",
        "srun": 'shift; SLURM_NODEID=1 exec "$@"',
        "torchrun": 'echo "$@"',
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {
        "SLURM_JOB_NODELIST": "list",
        "SLURM_JOB_NAME": "job",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "4",
    }
    environment = {**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = Path(__file__).parents[3] / "docs" / "train.sbatch"
    command = ["bash", str(script), "--plan", "dp=8"]
    first = subprocess.check_output(command, text=True, env=environment, cwd=tmp_path).strip()
    folder = tmp_path / "checkpoints" / "job"
    train = f"-m course_lib.train --plan dp=8 --checkpoint {folder} --save-every 100"
    assert (
        first
        == f"--nnodes 2 --node-rank 1 --nproc-per-node 4 --master-addr first --master-port 29500 {train}"
    )
    (folder / "step-0000100").mkdir(parents=True)
    (folder / "step-0000100" / ".metadata").touch()
    again = subprocess.check_output(command, text=True, env=environment, cwd=tmp_path).strip()
    assert again == f"{first} --resume"


@contextmanager
def two_hosts():
    """Two network namespaces joined by a cable: hosts, as far as torch.distributed can tell."""
    if not shutil.which("ip") or os.geteuid() != 0:
        pytest.skip("two hosts need the program ip and the right to make network namespaces")
    tag = uuid4().hex[:6]
    hosts = [f"course-{tag}-{i}" for i in range(2)]
    cables = [f"c{tag}{i}" for i in range(2)]

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True, check=True)

    try:
        try:
            for host in hosts:
                ip("netns", "add", host)
            ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
            for i, (host, cable) in enumerate(zip(hosts, cables, strict=True), 1):
                ip("link", "set", cable, "netns", host)
                ip("-n", host, "link", "set", cable, "name", "inside")
                ip("-n", host, "addr", "add", f"10.99.0.{i}/24", "dev", "inside")
                ip("-n", host, "link", "set", "inside", "up")
                ip("-n", host, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host], capture_output=True)


def free_address():
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def terminal(rank, address, *more):
    which = ["--world", "2", "--rank", str(rank), "--address", address]
    return start([*TRAIN, "--plan", "pp=2", *which, *more])


def test_in_two_terminals_the_losses_are_the_same(expected):
    address = free_address()
    with ExitStack() as stack:
        processes = []
        for rank in (1, 0):  # the order does not matter
            processes.append(terminal(rank, address, "--steps", "2", "--json"))
            stack.enter_context(ending_all(processes[-1]))
        (nothing, _), (output, said) = [process.communicate(timeout=200) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], said
    assert losses(output) == pytest.approx(expected, rel=1e-4)
    assert said.startswith(f"waiting at {address} for --rank 1\n")
    assert nothing == "", "rank 0 prints"


def test_a_terminal_does_not_wait_for_one_that_has_gone():
    address = free_address()
    first = terminal(0, address, "--steps", "1000000", "--log-every", "1")
    with ending_all(first):
        assert first.stderr.readline() == f"waiting at {address} for --rank 1\n"
        second = terminal(1, address, "--steps", "1000000")
        with ending_all(second):
            while " 2/1000000 " not in (line := first.stdout.readline()):
                assert line, first.stderr.read()
            second.kill()
        _, said = first.communicate(timeout=120)
    assert first.returncode == 1
    assert said.startswith("rank 0 stopped: ")
    assert "Traceback" not in said


def test_ctrl_c_ends_a_terminal_that_waits_for_the_others():
    address = free_address()
    first = terminal(0, address)
    with ending_all(first):
        assert first.stderr.readline() == f"waiting at {address} for --rank 1\n"
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)
    assert first.returncode == -signal.SIGINT
