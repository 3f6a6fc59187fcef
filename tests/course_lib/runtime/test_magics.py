"""%%ranks and %%rank in a real kernel: variables stay, failures are explained, nothing is left behind."""

import psutil
import pytest


@pytest.fixture(scope="module")
def running(start_kernel):
    kernel = start_kernel()
    kernel.run("%load_ext course_lib")
    return kernel


@pytest.fixture
def shared(running):
    """One kernel for all tests; each begins without ranks and without the variables of another."""
    running.run("%ranks stop")
    running.run("%reset -f")
    return running


def ranks_of(kernel):
    return [p for p in kernel.family() if p.ppid() != kernel.pid]


def by_rank(*values):
    return "".join(f"[rank {r}] {value}\n" for r, value in enumerate(values))


def test_variables_live_between_cells(shared):
    assert shared.run("%%ranks 4\nx = torch.ones(2) * rank\nprint('made on', rank)\nx[0].item()") == "".join(
        f"[rank {r}] made on {r}\n[rank {r}] {float(r)}\n" for r in range(4)
    )
    alive = {p.pid for p in ranks_of(shared)}
    assert shared.run("%%rank 2\nx += 10") == ""
    assert shared.run("%%ranks\ndist.all_reduce(x)\nx.tolist()") == by_rank(*[[16.0, 16.0]] * 4)
    assert shared.run("%%rank 1,3\nrank * 2") == "[rank 1] 2\n[rank 3] 6\n"
    assert shared.run("%%ranks 4\nx[0].item()") == by_rank(*[16.0] * 4), "the same number: the same ranks"
    assert {p.pid for p in ranks_of(shared)} == alive
    status = shared.run("%ranks")
    assert status.startswith("4 ranks, alive since ")
    assert status.count("variables: x\n") == 4


def test_code_of_the_notebook_is_sent_and_data_on_request(shared):
    shared.run(
        "import math\nfactor = 3\n"
        "def area(r):\n    return scale(r) * r\ndef scale(r):\n    return math.ceil(math.pi) * own"
    )
    assert "[rank 0]" not in shared.run("%%ranks 2 --quiet\nprint(rank)")
    assert shared.run("%%ranks 2\nown = 10 + rank\narea(2)") == by_rank(80, 88)
    shared.run("def scale(r):\n    return own")
    assert shared.run("%%ranks\narea(2)") == by_rank(20, 22), (
        "defined again, sent again, though area is known"
    )
    assert shared.run("%%ranks\ndef scale(r):\n    return 0\narea(2)") == by_rank(0, 0)
    assert shared.run("%%ranks\narea(2)") == by_rank(0, 0), "a rank's own function goes first"
    refused = shared.run("%%ranks\nfactor")
    assert "NameError: name 'factor' is not defined" in refused
    assert "The notebook has a variable factor, the ranks do not: --with factor sends a copy." in refused
    assert shared.run(
        "%%ranks --with factor --get tripled\ntripled = factor * (rank + 1)\nfactor"
    ) == by_rank(3, 3)
    assert shared.run("tripled") == "[3, 6]\n"
    shared.run("class Point:\n    x = 1\npoint = Point()")
    assert shared.run("%%ranks --with point\nisinstance(point, Point), point.x") == by_rank(
        (True, 1), (True, 1)
    )
    assert shared.run("%%ranks\nisinstance(point, Point)") == by_rank(True, True), "sent once, one class"


def test_a_model_and_its_optimizer_still_share_parameters(shared):
    shared.run(
        "import torch\nmodel = torch.nn.Linear(1, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=1.0)"
    )
    cell = "%%ranks 2 --with model, optimizer\noptimizer.param_groups[0]['params'][0] is model.weight"
    assert shared.run(cell) == by_rank(True, True)


def test_an_exception_leaves_the_ranks_alive(shared):
    shared.run("%%ranks 3\nkept = rank")
    alive = {p.pid for p in ranks_of(shared)}
    shown = shared.run("%%ranks\nif rank == 1:\n    raise KeyError('no such layer')\nkept += 1")
    assert shown.startswith("rank 1 raised KeyError: 'no such layer'\n")
    number = next(
        m["content"]["execution_count"] for m in shared.messages if m["msg_type"] == "execute_input"
    )
    assert f'  File "Cell In[{number}]' in shown, "the number at the cell"
    assert "line 3, in <module>\n    raise KeyError('no such layer')\n" in shown, (
        "the notebook's own line number"
    )
    assert shown.endswith("ranks 0, 2: had returned\nThe ranks are alive and keep their variables.\n")
    assert "cell.py" not in shown
    assert shared.run("%%ranks\nkept") == by_rank(1, 1, 3)
    shown = shared.run("%%ranks\ndist.all_reduce(torch.ones(1)).tolist()")
    assert "dist.all_reduce returns None: the sum is in its tensor.\nThe ranks are alive" in shown
    assert {p.pid for p in ranks_of(shared)} == alive


def test_ranks_that_wait_for_the_one_that_raised_are_released(shared):
    shared.run("%%ranks dp=2 tp=2\nkept = rank")
    alive = {p.pid for p in ranks_of(shared)}
    body = "dist.all_reduce(torch.ones(1), group=mesh.get_group('tp'))\ndist.barrier()"
    shown = shared.run(f"%%ranks\nif rank == 3:\n    raise ValueError('bad batch')\n{body}")
    assert shown.startswith("rank 3 raised ValueError: bad batch\n")
    assert "rank 2: was waiting in all_reduce" in shown
    assert "all connections were closed and opened again" in shown
    assert {p.pid for p in ranks_of(shared)} == alive
    cell = "%%ranks\nt = torch.tensor(kept)\ndist.all_reduce(t, group=mesh.get_group('tp'))\nt.item()"
    assert shared.run(cell) == by_rank(1, 1, 5, 5), "variables are kept, and the mesh is a new one"


def test_another_number_ends_the_old_ranks(shared):
    shared.run("%%ranks 2\nx = 1")
    old = ranks_of(shared)
    shown = shared.run("%%ranks 3\n'x' in globals()")
    assert shown == "ranks 0, 1 were ended, and their variables are gone: 3 new ranks start\n" + by_rank(
        *[False] * 3
    )
    assert psutil.wait_procs(old, timeout=10)[1] == []
    new = ranks_of(shared)
    assert shared.run("%ranks stop") == "ranks 0, 1, 2 were ended\n"
    assert psutil.wait_procs(new, timeout=10)[1] == []
    assert shared.run("%ranks") == "no ranks are running: %%ranks 4 starts four and runs the cell on them\n"


def test_a_hang_is_diagnosed_and_ends_the_ranks(shared):
    shared.run("%%ranks 3\nx = 1")
    old = ranks_of(shared)
    shown = shared.run("%%ranks\nif rank != 1:\n    dist.all_reduce(torch.ones(3))")
    assert "rank 0  waits in all_reduce(float32[3]), at Cell In[" in shown
    assert "line 3: dist.all_reduce(torch.ones(3))" in shown
    assert "rank 1 never came to the all_reduce(float32[3]) where ranks 0, 2 wait." in shown
    assert shown.endswith("ranks 0, 1, 2 were ended, and their variables are gone.\n")
    assert psutil.wait_procs(old, timeout=10)[1] == []
    shared.run("%%ranks 2\nx = 1")
    shown = shared.run("%%rank 0\ndist.all_reduce(torch.ones(1))")
    assert "rank 1  does not run this cell" in shown
    shown = shared.run("%%ranks 2 --timeout 1\nwhile rank == 0:\n    pass")
    assert "rank 0  is in no collective, at Cell In[" in shown


def test_a_rank_that_goes_away(shared):
    shown = shared.run("%%ranks 2\nimport os\nif rank == 1:\n    os._exit(3)")
    assert shown.startswith("rank 1 left with exit code 3")
    assert shown.endswith("ranks 0, 1 were ended, and their variables are gone.\n")
    assert ranks_of(shared) == []


def test_a_rank_that_dies_between_two_cells_takes_the_others_with_it(shared):
    """They once lived on, until somebody ran the next cell."""
    shared.run("%%ranks 3\nx = 1")
    old = ranks_of(shared)
    pids = shared.run("%%ranks\nimport os\nos.getpid()").split()
    psutil.Process(int(pids[5])).kill()  # [rank 0] 71 [rank 1] 72 …
    assert psutil.wait_procs(old, timeout=60)[1] == []
    why = (
        "rank 1 was killed by signal 9 (SIGKILL: often the machine ran out of memory) between two cells: "
        "ranks 0, 1, 2 were ended, and their variables are gone"
    )
    assert shared.run("%ranks") == f"{why}; %%ranks 4 starts four new ones\n"
    assert f"UsageError: {why}; %%ranks 4 starts four new ones" in shared.run("%%ranks\nx")
    assert shared.run("%%ranks 2\nrank") == f"{why}: 2 new ranks start\n" + by_rank(0, 1)


def test_stop_during_a_cell(shared):
    shared.start("%%ranks 2\nimport time\nprint('asleep')\ntime.sleep(1000)")
    shared.wait_for_text("[rank 0] asleep")
    old = ranks_of(shared)
    shared.manager.interrupt_kernel()
    shown = shared.finish()
    assert shown.startswith(by_rank("asleep", "asleep") + "stopped after ")
    assert shown.endswith(" s: all 2 ranks were ended, and their variables are gone\n")
    assert shown.count("\n") == 3, "one line, no traceback"
    assert psutil.wait_procs(old, timeout=10)[1] == []
    assert shared.run("%%ranks 2\nrank") == by_rank(0, 1)


BAD_LINES = [
    ("%%ranks two\n1", "%%ranks takes a number (%%ranks 4) or a mesh (%%ranks dp=2 tp=2), not 'two'"),
    ("%%ranks 0\n1", "ranks must be a whole number, 1 or more, not 0"),
    ("%%ranks 2 dp=2\n1", "%%ranks takes one number or one mesh"),
    ("%%ranks 2 --fast\n1", "%%ranks has no option --fast"),
    ("%%ranks 2 --timeout soon\n1", "--timeout takes a positive number of seconds, not 'soon'"),
    ("%%ranks 2 --with nothing_like_it\n1", "the notebook has no such variable"),
    ("%%ranks 2 --get\n1", "--get needs a value"),
    ("%%rank 7\n1", "there is no rank 7: the ranks are 0 to 1"),
    ("%%rank all\n1", "%%rank takes numbers of ranks"),
    ("%%rank 0,0\n1", "%%rank names rank 0 twice"),
    ("%%rank 0 --backend gloo\n1", "--backend belongs to the %%ranks that does"),
    ("%%ranks dp=2 dp=2\n1", "%%ranks names the mesh axis dp twice"),
    ("%%ranks 2 --backend nosuch\n1", "--backend takes one of gloo, nccl, not 'nosuch'"),
    ("%%ranks 2 --backend nccl\n1", "the ranks that run use gloo: end them with %ranks stop"),
    ("%%ranks dp=1 tp=1000000000000\n1", "1000000000000 ranks are asked for, and at most"),
    ("%%ranks 5\nx y", "line 2\n    x y\n      ^\nSyntaxError: invalid syntax"),
]


def test_bad_lines_get_one_sentence_and_leave_the_ranks_alone(shared):
    shared.run("%%ranks 2\nx = 1")
    alive = {p.pid for p in ranks_of(shared)}
    for cell, words in BAD_LINES:
        shown = shared.run(cell)
        assert words in shown
        assert "Traceback" not in shown
        assert {p.pid for p in ranks_of(shared)} == alive, cell


def test_a_kernel_that_goes_leaves_nothing(kernel):
    kernel.run("%load_ext course_lib")

    def start():
        program = "subprocess.Popen(['sleep', '1000']"
        kernel.run(f"%%ranks 2\nimport subprocess\n{program})\n{program}, start_new_session=True)")
        assert len(kernel.family()) >= 8, "fork server, resource tracker, two ranks, four programs of theirs"
        return kernel.family()

    family = start()
    kernel.client.stop_channels()
    kernel.manager.restart_kernel()
    kernel.connect()
    assert kernel.left_nothing(family), "restarted"
    kernel.run("%load_ext course_lib")
    family = start()
    psutil.Process(kernel.pid).kill()
    assert kernel.left_nothing(family), "killed"
