"""launch: however a run ends, its results or its first cause arrive, and nothing is left behind."""

import asyncio
import contextlib
import ctypes
import gc
import glob
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from multiprocessing.util import get_temp_dir

import psutil
import pytest
import torch
import torch.distributed as dist

from course_lib.runtime import RankError, current_device, launch
from course_lib.runtime import launch as launch_function
from course_lib.runtime.processes import RankProcess
from course_lib.runtime.world import World

TORCHS_OWN = ("torchelastic_", "torchinductor_")  # torchrun's log folder, the compiler's cache


def rank_processes(pid=None):
    """Every process below this one that is neither the fork server nor its resource tracker."""
    children = psutil.Process(pid).children(recursive=True)
    found = []
    for child in children:
        try:
            servers = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")
            is_server = any(word in " ".join(child.cmdline()) for word in servers)
            if not is_server or child.parent().pid != (pid or os.getpid()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture(scope="module")
def fork_server():
    launch(lambda: None, 1)


@pytest.fixture(autouse=True)
def nothing_is_left(fork_server, tmp_path_factory, monkeypatch):
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("TMPDIR", str(scratch))
    descriptors, others = psutil.Process().num_fds(), {*rank_processes()}  # of other files' tests
    yield
    deadline = time.monotonic() + 30  # a rank that ends takes milliseconds, on a busy machine seconds
    while {*rank_processes()} - others and time.monotonic() < deadline:
        time.sleep(0.02)
    left = [process for process in rank_processes() if process not in others]
    for process in left:  # the next test is judged as if this one had not been there
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert left == []
    assert [name for name in os.listdir(scratch) if not name.startswith(TORCHS_OWN)] == []
    assert psutil.Process().num_fds() <= descriptors
    assert launch(rank, 1) == [0], "the next run works"


def rank():
    return dist.get_rank()


def add_up():
    t = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(t)
    return t.item()


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_results_in_rank_order(ranks):
    assert launch(lambda: (rank(), add_up()), ranks) == [(r, sum(range(ranks))) for r in range(ranks)]


def test_closures_arguments_and_large_tensors_travel():
    factor = torch.full((1000, 1000), 2.0)
    results = launch(lambda x, y: (factor * x + dist.get_rank() * y).sum().item(), 2, args=(1.0, 0.5))
    assert results == [2e6, 2.5e6]
    back = launch(lambda: torch.full((1000, 1000), float(dist.get_rank())), 2)
    assert [t.mean().item() for t in back] == [0.0, 1.0]


def test_mesh_has_named_axes():
    def coordinates(mesh, extra):
        return mesh.get_local_rank("dp"), mesh.get_local_rank("tp"), mesh.mesh_dim_names, extra

    results = launch(coordinates, mesh={"dp": 2, "tp": 2}, args=("x",))
    assert [r[:2] for r in results] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert results[0][2:] == (("dp", "tp"), "x")


def test_output_in_rank_order_with_both_streams(capfd):
    def speak():
        time.sleep(0.05 * (3 - dist.get_rank()))
        print("hello from", dist.get_rank())
        os.system("echo from a child program")
        print("careful", file=sys.stderr)

    launch(speak, 3)
    out, err = capfd.readouterr()
    said = [f"[rank {r}] {line}" for r in range(3) for line in (f"hello from {r}", "from a child program")]
    assert out.splitlines() == said
    assert err.splitlines() == [f"[rank {r}] careful" for r in range(3)]
    launch(speak, 3, quiet=True)
    assert capfd.readouterr() == ("", "")


def test_a_flood_of_output_is_cut(capfd):
    launch(lambda: print("x" * 30_000_000), 2)
    out = capfd.readouterr().out
    assert len(out) < 3_000_000
    assert "only the first 1,000,000 are shown" in out


def test_the_rank_that_raised_comes_first():
    def fails():
        dist.barrier()
        if dist.get_rank() == 2:
            raise KeyError("no such layer")
        dist.barrier()

    with pytest.raises(RankError) as caught:
        launch(fails, 4)
    lines = str(caught.value).splitlines()
    assert lines[0] == "rank 2 raised KeyError: 'no such layer'"
    assert any('raise KeyError("no such layer")' in line for line in lines), "the source line is shown"
    assert not any("rank.py" in line for line in lines), "without the launcher's own frames"
    assert lines[-1] == "ranks 0, 1, 3: stopped while waiting in barrier"
    assert caught.value.rank == 2
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_same_error_everywhere_is_told_once():
    def fails():
        raise ValueError("hidden=10 does not divide by heads=3")

    with pytest.raises(RankError) as caught:
        launch(fails, 4)
    assert str(caught.value).count("Traceback") == 1
    assert "raised the same" in str(caught.value)


@pytest.fixture
def quick_diagnosis(monkeypatch):
    monkeypatch.setattr(sys.modules["course_lib.runtime.hang"], "DEADLOCK_AFTER", 1.5)


def test_mismatched_collectives_are_found_and_named(quick_diagnosis):
    def hangs():
        if dist.get_rank() == 1:
            dist.broadcast(torch.ones(2), src=0)
        elif dist.get_rank() == 3:
            return
        else:
            dist.all_reduce(torch.ones(4))
        dist.barrier()

    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        launch(hangs, 4)
    assert time.monotonic() - started < 30, "found out long before the limit of 120 s"
    message = str(caught.value)
    assert "rank 0  waits in all_reduce(float32[4]), at test_launch.py" in message
    assert "rank 1  waits in broadcast(float32[2] from rank 0)" in message
    assert "rank 3  has returned" in message
    assert "ranks 1, 3 never came to the all_reduce(float32[4]) where ranks 0, 2 wait." in message


@pytest.mark.parametrize("sizes", [(4, 6), (6, 4), (10, 100_000)])
def test_an_all_reduce_of_different_sizes_names_them(sizes):
    def differ():
        dist.all_reduce(torch.ones(sizes[dist.get_rank()]))

    with pytest.raises(RankError, match="was killed by signal 6") as caught:
        launch(differ, 2)
    message = str(caught.value)
    assert all(f"in all_reduce(float32[{size}]), at test_launch.py, line" in message for size in sizes)
    assert "in the same order, with the same shapes" in message
    assert "dtypes differ" not in message


def test_an_all_reduce_of_different_dtypes_names_them():
    def differ():
        dist.all_reduce(torch.ones(4, dtype=(torch.float64, torch.float32)[dist.get_rank()]))

    with pytest.raises(RankError, match="was killed by signal 6") as caught:
        launch(differ, 2)
    assert (
        "The dtypes differ: float64 on rank 0 and float32 on rank 1. Every rank must give a tensor of the same dtype."
    ) in str(caught.value)


def test_an_endless_print_meets_the_limit():
    def prints():
        while True:
            print("again")

    started = time.monotonic()
    with pytest.raises(RankError, match="stopped after"):
        launch(prints, 1, timeout=1, quiet=True)
    assert time.monotonic() - started < 20, "it used to run on for as long as it printed"


def test_our_own_collectives_are_named_too(quick_diagnosis):
    from course_lib.runtime import collectives

    def hangs():
        if dist.get_rank() == 0:
            collectives.all_reduce(torch.ones(4))

    with pytest.raises(RankError, match=r"rank 0  waits in all_reduce\(float32\[4\]\), at test_launch.py"):
        launch(hangs, 2)


def test_a_rank_that_computes_for_ever_meets_the_limit():
    def spins():
        while dist.get_rank() == 1:
            pass
        dist.all_reduce(torch.ones(1))

    with pytest.raises(RankError) as caught:
        launch(spins, 2, timeout=2)
    assert "rank 1  is in no collective, at test_launch.py" in str(caught.value)
    assert "rank 1 never came to the all_reduce(float32[1]) where rank 0 waits." in str(caught.value)


def test_slow_work_is_no_deadlock(quick_diagnosis):
    def slow():
        if dist.get_rank() == 0:
            time.sleep(4)
        dist.barrier()
        return True

    assert launch(slow, 2) == [True, True]


def test_a_rank_too_busy_to_answer_is_no_deadlock(quick_diagnosis):
    def busy():
        data, more, started = torch.ones(1 << 22), torch.ones(1), time.monotonic()
        while more.item():  # asked for the first time, it is in a collective
            dist.all_reduce(data)
            more.fill_(time.monotonic() - started < 2.5)
            dist.broadcast(more, src=0)  # one clock decides, or one rank would go round once more, alone
        ctypes.PyDLL(None).usleep(4_000_000)  # holds Python's lock, as large integers and some libraries do
        return True

    assert launch(busy, 2) == [True, True]


def test_waiting_for_a_program_is_no_deadlock(quick_diagnosis):
    def waits():
        if dist.get_rank() == 0:
            program = subprocess.Popen(["sleep", "4"])
            program.wait()
        dist.barrier()
        return True

    assert launch(waits, 2) == [True, True]


def test_only_members_of_the_group_are_missed(quick_diagnosis):
    def hangs(mesh):
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(5), group=mesh.get_group("tp"))

    with pytest.raises(RankError) as caught:
        launch(hangs, mesh={"dp": 2, "tp": 2})
    assert str(caught.value).endswith(
        "\nrank 1 never came to the all_reduce(float32[5]) of ranks 0, 1 where rank 0 waits."
    )


@pytest.mark.parametrize(
    ("leave", "words"),
    [
        (lambda: os._exit(3), "rank 1 left with exit code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"rank 1 was killed by signal 9"),
        (lambda: sys.exit(4), "rank 1 raised SystemExit: 4"),
    ],
)
def test_a_rank_that_goes_away(leave, words):
    def goes():
        dist.barrier()
        if dist.get_rank() == 1:
            leave()
        dist.barrier()

    with pytest.raises(RankError, match=words) as caught:
        launch(goes, 3)
    for line in str(caught.value).splitlines()[1:] if "SystemExit" not in words else []:
        assert re.match(r"ranks? [02, ]+: (stopped while waiting in barrier|lost the connection to it)", line)


def test_an_unpicklable_result_says_so():
    with pytest.raises(RankError, match="the result of this rank is a generator, which cannot be sent"):
        launch(lambda: (i for i in range(3)), 2)


class NeedsTwoError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def test_a_result_that_cannot_be_read_back_says_so():
    with pytest.raises(RankError, match=r"the result of rank 0 cannot be read back .*missing 1 required"):
        launch(lambda: NeedsTwoError(1, 2), 2)


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_an_exception_that_cannot_be_shown_is_still_named():
    def fails():
        raise MuteError

    with pytest.raises(RankError, match=r"rank 0 raised MuteError: .its message cannot be shown"):
        launch(fails, 1)


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.tensor(i * i)


def test_a_data_loader_with_workers_may_be_left_half_way():
    def loads():
        squares = torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=1, persistent_workers=True)
        whole = sum(batch.sum().item() for batch in squares)
        globals()["kept"] = iter(squares)  # its worker still runs when the rank leaves
        return whole, next(kept).tolist()  # noqa: F821

    assert launch(loads, 2) == [(55, [0, 1])] * 2


def test_threads_may_launch_at_the_same_time():
    main, results = sys.modules["__main__"], {}

    def start(number):
        results[number] = [launch(lambda: (number, dist.get_rank()), 2) for _ in range(3)]

    threads = [threading.Thread(target=start, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [[(number, 0), (number, 1)]] * 3 for number in range(3)}
    assert sys.modules["__main__"] is main


def test_a_function_that_cannot_travel_says_so():
    stuck = (i for i in range(3))
    with pytest.raises(ValueError, match="cannot be sent to the ranks"):
        launch(lambda: next(stuck), 2)


def test_ranks_that_wait_for_the_one_that_raised_are_not_asked_without_end(monkeypatch):
    """Each answer takes a rank processor time: asked all the time, a waiting rank looks as if it worked."""

    def waits():
        if dist.get_rank() == 1:
            raise ValueError("bad batch")
        dist.barrier()

    asked = []
    ask = RankProcess.ask_where
    monkeypatch.setattr(
        RankProcess, "ask_where", lambda *args, **kw: asked.append(time.monotonic()) or ask(*args, **kw)
    )
    world = World(2)
    try:
        with pytest.raises(RankError, match="bad batch"):
            world.run(waits, keep=True)
        assert len(asked) <= (asked[-1] - asked[0]) / 0.1 + 2, (
            "one rank waits, and is asked ten times a second"
        )
    finally:
        world.stop()


@pytest.mark.parametrize("fails", [False, True])
def test_programs_that_ranks_started_go_too(tmp_path, fails):
    def starts():
        for own_session in (False, True):
            program = subprocess.Popen(["sleep", "1000"], start_new_session=own_session)
            (tmp_path / str(program.pid)).touch()
        if fails:
            raise RuntimeError("and then fails")

    with pytest.raises(RankError) if fails else contextlib.nullcontext():
        launch(starts, 2)
    started = [int(name) for name in os.listdir(tmp_path)]
    assert len(started) == 4 or fails, "a rank may end before it starts both, where the other one fails"
    deadline = time.monotonic() + 30
    while (left := [pid for pid in started if runs(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []


def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork server")
def test_a_process_that_dies_while_it_starts_a_rank_does_not_end_the_fork_server():
    """Once it ended, and removed the folder of everything that its launcher still had running."""
    from multiprocessing import forkserver

    server = forkserver._forkserver
    before, folder = server._forkserver_pid, get_temp_dir()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(server._forkserver_address)
    assert launch(lambda: 7, 1) == [7], "it has met the connection before this one"
    assert server._forkserver_pid == before
    assert os.path.exists(folder)


def test_ranks_of_a_world_that_is_dropped_end_and_leave_the_folder_of_their_launcher():
    """Once they removed it, with all that the launcher's other worlds had in it."""
    world = World(1, "gloo", quiet=True)
    pid, own, folder = world.processes[0].pid, world._folder, get_temp_dir()
    del world  # not stopped: its channels are closed, as if the launcher were gone
    gc.collect()
    deadline = time.monotonic() + 60
    while any(child.pid == pid for child in multiprocessing.active_children()):
        assert time.monotonic() < deadline, "it does not end"
        time.sleep(0.02)
    assert not os.path.exists(own)
    assert os.path.exists(folder)
    assert launch(lambda: 7, 1) == [7]


def test_inside_a_running_event_loop():
    async def cell():
        return launch(add_up, 2)

    assert asyncio.run(cell()) == [1.0, 1.0]


def test_torch_is_seeded_alike_and_threads_are_shared_out():
    results = launch(lambda: (torch.rand(1).item(), torch.get_num_threads(), str(current_device())), 2)
    assert results[0][0] == results[1][0], "ranks that build the same model start from the same numbers"
    assert results[0][1] == max(1, os.cpu_count() // 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ranks": 0}, "ranks must be a whole number, 1 or more, not 0"),
        ({"ranks": 2.5}, "not 2.5"),
        ({}, "not None"),
        ({"mesh": {}}, "at least one axis"),
        ({"mesh": {"dp": 0}}, "mesh axis 'dp'"),
        ({"mesh": {"dp": 2}, "ranks": 3}, "has 2 ranks, but ranks=3"),
        ({"ranks": 2, "backend": "mpi"}, "backend must be one of gloo, nccl"),
        ({"ranks": 2, "timeout": -1}, "timeout must be a positive"),
        ({"ranks": 2, "timeout": "5"}, "timeout must be a positive"),
        ({"ranks": 2, "args": 5}, "args must be a tuple"),
        ({"mesh": [("dp", 2)]}, "a mesh is a dict of axes"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        launch(rank, **arguments)


def test_launch_inside_a_rank_is_refused():
    with pytest.raises(RankError, match="was called inside a rank"):
        launch(lambda: launch_function(lambda: None, 2), 2)


def run_script(tmp_path, body, *command, **options):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(body))
    return subprocess.Popen([sys.executable, *command, str(script)], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, start_new_session=True, **options)  # fmt: skip


STUCK = """
    import time
    from course_lib.runtime import launch
    def sleepy():
        print("asleep", flush=True)
        time.sleep(1000)
    launch(sleepy, 2)  # no __main__ guard: none is needed
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ranks_die_with_their_launcher(tmp_path, how):
    process = run_script(tmp_path, STUCK)
    assert process.stdout.readline() == "[rank 0] asleep\n"
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 4, "fork server, resource tracker, two ranks"
    process.send_signal(how)
    _, error = process.communicate(timeout=60)
    assert process.returncode == -how, "as a shell script expects"
    assert error.rstrip().endswith("KeyboardInterrupt") == (how == signal.SIGINT)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive
    assert glob.glob(str(tmp_path / "*")) == [str(tmp_path / "script.py")]


def test_the_same_script_runs_under_torchrun_and_no_thread_of_gloo_is_left_when_python_ends(tmp_path):
    """One that still let go of a tensor aborted one training in thousands, after its last step."""
    body = """
        import atexit, psutil, torch, torch.distributed as dist
        threads = lambda: psutil.Process().num_threads()
        def say(*words):
            print(" ".join(map(str, words)) + "\\n", end="", flush=True)
        atexit.register(lambda: say("at the end", threads()))  # called last
        from course_lib.runtime import launch
        before = threads()
        def add_up(mesh):
            circle = [mesh]
            circle.append(circle)
            t = torch.tensor([float(dist.get_rank())])
            dist.all_reduce(t, group=mesh.get_group("tp"))
            return dist.get_rank(), t.item(), threads() > before
        say(launch(add_up, mesh={'dp': 1, 'tp': 2}))
    """
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    many = run_script(tmp_path, body, *torchrun, env={**os.environ, "OMP_NUM_THREADS": "1"})
    out, errors = many.communicate(timeout=280)
    assert sorted(out.splitlines()) == ["[(0, 1.0, True), (1, 1.0, True)]"] * 2 + ["at the end 1"] * 2, errors


def test_the_garbage_collector_of_a_rank_passes_over_what_the_server_has_loaded():
    (found,) = launch(lambda: (gc.get_freeze_count(), len(gc.get_objects()), gc.isenabled()), 1)
    frozen, left, enabled = found
    assert enabled
    assert frozen > 100_000, "torch alone has more"
    assert left < frozen / 10


def test_where_there_is_no_forkserver_ranks_are_spawned(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert launch(add_up, 1, timeout=None) == [0.0]


# ---- where and how a launcher may stand ----


ASK = """
    import os, shutil, subprocess, sys
    from multiprocessing.util import get_temp_dir
    from course_lib.runtime import launch
    def own():
        program = subprocess.run(["cat"], capture_output=True, text=True)
        return os.path.realpath("/dev/fd/0"), program.returncode, program.stderr
    print(launch(own, 2), flush=True)
"""
NO_INPUT = f"{[('/dev/null', 0, '')] * 2}\n"


def test_a_launcher_whose_stdin_is_closed_and_whose_temporary_folder_has_a_long_name(tmp_path):
    """Programs of a rank once had no input at all, or a pipe of the rank's own. The path of a Unix socket has 107
    characters at most."""
    script, folder = tmp_path / "script.py", tmp_path / ("x" * 90)
    folder.mkdir()
    script.write_text(textwrap.dedent(ASK))
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, str(script)],
        capture_output=True, text=True, timeout=280, env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    assert done.stdout == NO_INPUT, done.stderr
    assert [name for name in os.listdir(folder) if not name.startswith(TORCHS_OWN)] == []


def test_a_launcher_with_input_whose_temporary_folder_is_tidied_up_and_that_ends_without_goodbye(tmp_path):
    """Its input is not for the programs of a rank."""
    body = """
    folders = [get_temp_dir()]
    shutil.rmtree(folders[0])
    print(launch(lambda: 7, 2), flush=True)
    folders.append(get_temp_dir())
    print([os.path.exists(folder) for folder in folders], sys.stdin.read(), flush=True)
    os._exit(0)  # as a notebook's kernel does; the fixture looks for what is left
"""
    process = run_script(tmp_path, ASK + body, stdin=subprocess.PIPE)
    out, error = process.communicate("for the launcher", timeout=280)
    assert out == NO_INPUT + "[7, 7]\n[False, True] for the launcher\n", error
    deadline = time.monotonic() + 30
    while any(name.startswith("pymp-") for name in os.listdir(tempfile.gettempdir())):
        assert time.monotonic() < deadline, "the folder is left"
        time.sleep(0.05)


def test_a_working_directory_that_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    with monkeypatch.context() as moved:
        moved.chdir(gone)
        gone.rmdir()
        with pytest.raises(
            ValueError, match="the working directory is gone, so no ranks can be started in it"
        ):
            launch(rank, 2)


def test_more_ranks_than_the_machine_gets_through(monkeypatch):
    with pytest.raises(ValueError, match=r"^1000000000000 ranks are asked for, and at most \d+ are started"):
        launch(rank, mesh={"dp": 1, "tp": 10**12})
    monkeypatch.setenv("COURSE_LIB_MAX_RANKS", "1")
    with pytest.raises(
        ValueError, match=r"at most 1 are started on this machine of .* cores: set COURSE_LIB_"
    ):
        launch(rank, 2)
    monkeypatch.setenv("COURSE_LIB_MAX_RANKS", "2")
    assert launch(rank, 2) == [0, 1]


# ---- what a rank may do ----


def daemon(note, *, program):
    """A process in a session of its own, whose parent has ended: of another program, or a fork of this one."""
    if os.fork() == 0:
        os.setsid()
        if (pid := os.fork()) == 0:
            if program:
                os.execvp("sleep", ["sleep", "1000"])
            time.sleep(1000)
        (note / str(pid)).touch()
        os._exit(0)
    os.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a fork without a program has no mark")
@pytest.mark.parametrize("end", ["returns", "exits", "is killed"])
def test_daemons_that_ranks_started_go_too(tmp_path, end):
    def starts():
        daemon(tmp_path, program=True)
        daemon(tmp_path, program=False)
        if end == "returns":  # with an environment of its own it is found while the rank is there
            note = tmp_path / f"pid-{dist.get_rank()}"
            subprocess.run(["sh", "-c", "env -i setsid sh -c 'echo $$; exec sleep 1000' > $0 &", note])
            while not note.exists() or not note.read_text():
                time.sleep(0.01)
        dist.barrier()
        if end == "exits":
            os._exit(0)
        if end == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)

    with contextlib.nullcontext() if end == "returns" else pytest.raises(RankError):
        launch(starts, 2)
    started = [int(name) for name in os.listdir(tmp_path) if name.isdecimal()]
    started += [int(pid) for file in tmp_path.glob("pid-*") for pid in file.read_text().split()]
    assert len(started) >= 4
    deadline = time.monotonic() + 30
    while (left := [pid for pid in started if runs(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def test_a_rank_that_another_program_replaces_is_no_hang():
    def replaces():
        if dist.get_rank() == 1:
            os.execvp("sleep", ["sleep", "1000"])
        dist.barrier()

    with pytest.raises(RankError, match="rank 1 closed its connection to the launcher, as a program does"):
        launch(replaces, 2)


def test_the_child_of_a_rank_that_forks_does_not_answer_for_it(capfd):
    def forks(fails):
        child = os.fork()
        if child == 0 and fails:
            raise ValueError("only the child")
        return child != 0 and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert launch(forks, 2, args=(False,)) == [0, 0]
    assert launch(forks, 2, args=(True,)) == [1, 1]
    assert "[rank 0] ValueError: only the child" in capfd.readouterr().err


@pytest.mark.parametrize("words", ["the peer has no such layer", "connection reset", "timed out waiting"])
def test_a_message_with_the_words_of_a_lost_connection_is_still_the_first_cause(words):
    def fails():
        if dist.get_rank() == 1:
            raise RuntimeError(words)
        time.sleep(0.25)  # shorter than the moment that others have after an exception
        raise KeyError("later")

    with pytest.raises(RankError, match=rf"^rank 1 raised RuntimeError: {words}"):
        launch(fails, 2)


def test_a_rank_that_only_lost_its_connection_is_not_the_first_cause():
    def fails():
        try:
            if dist.get_rank() == 1:
                raise ValueError("mine")
            dist.barrier()
        finally:
            late = 1.0 * dist.get_rank()  # longer than the moment after an exception of a rank's own
            dist.destroy_process_group()
            time.sleep(late)

    with pytest.raises(RankError, match=r"^rank 1 raised ValueError: mine"):
        launch(fails, 2)


def test_a_very_long_message_is_cut():
    def fails():
        raise ValueError("x" * 3_000_000)

    with pytest.raises(RankError, match="characters are left out") as caught:
        launch(fails, 1)
    assert len(str(caught.value)) < 300_000


class Leaves:
    def __reduce__(self):
        return sys.exit, (5,)


def test_a_result_that_ends_its_reader_says_so():
    with pytest.raises(RankError, match=r"the result of rank 0 cannot be read back \(SystemExit: 5\)"):
        launch(Leaves, 1)
