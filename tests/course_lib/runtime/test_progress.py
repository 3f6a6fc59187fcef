"""A long run shows that it is alive, leaves no trace of it, and can be stopped."""

import os
import pty
import re
import subprocess
import sys
import types

import nbclient
import nbformat
import psutil
import pytest

from course_lib.runtime.progress import describe
from course_lib.runtime.stack_inspection import Whereabouts

LONG = """\
import os, time
import torch.distributed as dist
from course_lib.runtime import launch

def work():
    began = time.monotonic()
    while dist.get_rank() == 1 and {waits}:
        time.sleep(0.1)
    dist.barrier()
    print("done")

_ = launch(work, 2{options})
"""
A_WHILE = "time.monotonic() < began + 3"  # well after the two seconds of SHOW_AFTER
ENDLESS = """
import time
from course_lib.runtime import launch

def sleepy():
    print("asleep", flush=True)
    time.sleep(1000)

launch(sleepy, 2)
"""


@pytest.fixture(scope="module")
def kernel(start_kernel):
    return start_kernel()


def rank(number, where=None, returned=None, raised=None):
    return types.SimpleNamespace(rank=number, where=where, returned=returned, raised=raised)


def test_ranks_that_do_the_same_share_a_line():
    waits = Whereabouts("all_reduce", "float32[4]", "Cell In[2], line 3: dist.all_reduce(t)", 1, 0.1)
    works = Whereabouts("", "", "Cell In[2], line 2: time.sleep(9)", 0, 0.1)
    members = [rank(0, waits), rank(1, works), rank(2, waits), rank(3), rank(4, waits, returned=b"x")]
    assert describe(members) == [
        "ranks 0, 2: in all_reduce(float32[4]), at Cell In[2], line 3: dist.all_reduce(t)",
        "rank 1: at Cell In[2], line 2: time.sleep(9)",
        "rank 3: runs",
        "rank 4: done",
    ]


def texts(messages):
    states = [m["content"]["data"].get("state", {}) for m in messages if m["msg_type"] == "comm_msg"]
    return [state["text"] for state in states if "text" in state]


def test_a_page_shows_it_outside_of_the_output(kernel, tmp_path):
    flag = tmp_path / "go on"
    kernel.start(LONG.format(waits=f"not os.path.exists({str(flag)!r})", options=""), in_a_page=True)
    at = r"at Cell In\[\d+\], line"
    lines = rf"running for \d+ s\nrank 0: in barrier\(\), {at} 9.*\nrank 1: {at} [78]"
    kernel.wait_until(lambda m: any(re.match(lines, text) for text in texts([m])))
    flag.touch()
    assert kernel.finish() == "[rank 0] done\n[rank 1] done\n"
    opened = [m["content"] for m in kernel.messages if m["msg_type"] == "comm_open"]
    model = next(c for c in opened if c["data"]["state"].get("_model_name") == "AnyModel")
    closed = [m["content"]["comm_id"] for m in kernel.messages if m["msg_type"] == "comm_close"]
    assert model["comm_id"] in closed, "it is removed when the run ends"
    outputs = {"stream", "display_data", "update_display_data", "clear_output", "execute_result", "error"}
    assert kernel.kinds() & outputs == {"stream"}


def test_nothing_is_sent_where_nobody_looks_on_or_quiet_is_asked_for(kernel):
    for in_a_page, options in ((False, ""), (True, ", quiet=True")):
        kernel.run(LONG.format(waits=A_WHILE, options=options), in_a_page=in_a_page)
        assert not kernel.kinds() & {"comm_open", "comm_msg", "display_data"}, options


def test_nothing_of_it_is_saved(kernel):
    cell = nbformat.v4.new_code_cell(LONG.format(waits=A_WHILE, options=""))
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbclient.NotebookClient(notebook, km=kernel.manager).execute()
    assert [output["output_type"] for output in notebook.cells[0].outputs] == ["stream"]
    assert notebook.cells[0].outputs[0]["text"] == "[rank 0] done\n[rank 1] done\n"
    assert "widgets" not in notebook.metadata


def read(descriptor, until=None):
    """What arrives until the other end is closed, or until the text is there."""
    received = ""
    while until is None or until not in received:
        try:
            received += os.read(descriptor, 1024).decode()
        except OSError:  # how a terminal says that the other end is closed
            break
    return received


def test_a_terminal_shows_one_line_and_erases_it_and_nothing_of_a_quiet_run(tmp_path):
    script, flag = tmp_path / "script.py", tmp_path / "go on"
    body = LONG.format(waits=A_WHILE, options=", quiet=True") + "print('loud', file=sys.stderr, flush=True)\n"
    body += LONG.format(waits=f"not os.path.exists({str(flag)!r})", options="")
    script.write_text("import sys\n" + body)
    terminal, theirs = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    command = [sys.executable, str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env={**env, "COLUMNS": "70"})
    os.close(theirs)
    received = read(terminal, until="in barrier(), at script.py, line ")
    flag.touch()
    received += read(terminal)
    os.close(terminal)
    assert process.communicate(timeout=60)[0] == b"[rank 0] done\n[rank 1] done\n"
    quiet, loud = received.split("loud\r\n")
    assert quiet == ""
    updates = loud.split("\r\x1b[K")
    assert updates[0] == ""
    assert all(re.match(r"\d+ s · rank", text) and len(text) < 70 for text in updates[1:] if text)
    assert updates[-1] == "", "the last thing that happens is that the line is erased"


def test_stop_gives_one_line(kernel):
    kernel.start(ENDLESS)
    kernel.wait_for_text("[rank 0] asleep")
    ranks = [p for p in kernel.family() if p.ppid() != kernel.pid]
    assert len(ranks) == 2
    kernel.manager.interrupt_kernel()
    shown = kernel.finish()
    assert re.fullmatch(r"(\[rank \d\] asleep\n)+stopped after \d+ s: all 2 ranks were ended\n", shown), shown
    assert kernel.messages[-2]["content"]["ename"] == "KeyboardInterrupt", "cells that are queued do not run"
    assert psutil.wait_procs(ranks, timeout=10)[1] == []
    assert kernel.run("launch(lambda: 1, 2)") == "[1, 1]\n", "the next run works"
