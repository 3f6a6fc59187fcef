"""The page of traces: as far as no browser is needed, and in one, where Pyodide has been fetched."""

import json
from contextlib import ExitStack

import pytest
from npm import KEPT
from play.browser.traces import NONE, compared
from play.build import PYODIDE, build
from play.files import modules_for, pack
from play_helper import run_without_packages
from served import served, watched
from server import chromium_or_skip

VENDORED = KEPT / f"pyodide-{PYODIDE}"
ASKED = {"model": NONE, "config": "", "gpu": "h100", "plan": ""}
PREDICTED = ASKED | {"model": "gpt2", "plan": "dp=2,overlap=gradients"}


@pytest.fixture
def recorded(tmp_path):
    """Two ranks in two steps of 10 ms: 5 ms of a kernel, then an all-reduce that rank 1 begins 2 ms late."""
    folder = tmp_path / "recorded"
    folder.mkdir()
    for rank in (0, 1):
        events = []
        for number in (5, 6):
            begin = 10_000 * number
            for cat, name, start, length, args in (
                ("gpu_user_annotation", f"ProfilerStep#{number}", 0, 10_000, {}),
                ("kernel", "gemm", 0, 5_000 + 2_000 * rank, {}),
                (
                    "kernel",
                    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                    5_000 + 2_000 * rank,
                    4_500 - 2_000 * rank,
                    {"Collective name": "allreduce", "Process Group Ranks": "[0, 1]", "Group size": 2},
                ),
            ):
                events.append(
                    {
                        "ph": "X",
                        "cat": cat,
                        "name": name,
                        "ts": begin + start,
                        "dur": length,
                        "tid": 7,
                        "args": args,
                    }
                )
        head = {"distributedInfo": {"rank": rank, "world_size": 2}, "baseTimeNanoseconds": 10**18}
        (folder / f"rank{rank}.json").write_text(json.dumps(head | {"traceEvents": events}))
    return folder


def html(asked, folder):
    return compared(json.dumps(asked), folder)._repr_html_()


def test_a_trace_by_itself(recorded):
    shown = html(ASKED, recorded)
    assert "A step takes 10 ms" in shown
    assert "<td>computing</td><td>0.006</td>" in shown
    assert "predicted" not in shown
    assert shown.count("<svg") == 1


def test_beside_its_prediction(recorded):
    shown = html(PREDICTED, recorded)
    assert "<th>predicted</th>" in shown
    assert "exposed, dp" in shown


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (PREDICTED | {"plan": "dp=x"}, "Dp must be a whole number, not x."),
        (PREDICTED | {"model": "gpt5"}, "gpt5"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(recorded, asked, said):
    assert said in html(asked, recorded)


def test_no_files_and_wrong_ones(tmp_path):
    assert "Choose the traces first" in html(ASKED, tmp_path)
    (tmp_path / "notes.txt").write_text("no trace")
    assert "Notes.txt is no Chrome trace" in html(ASKED, tmp_path) or "notes.txt is no" in html(
        ASKED, tmp_path
    )
    assert str(tmp_path) not in html(ASKED, tmp_path)


def test_it_runs_without_any_package(recorded, tmp_path):
    pack(modules_for([]), tmp_path / "course.zip")
    source = (
        "from pathlib import Path\nfrom play.browser.traces import compared\n"
        f"compared({json.dumps(PREDICTED)!r}, Path({str(recorded)!r}))"
    )
    ran = run_without_packages(tmp_path / "course.zip", [[source]])
    assert ran["results"][0]["error"] == ""
    assert ran["results"][0]["html"] == html(PREDICTED, recorded)
    assert not ran["from_outside"] + ran["packages"]


@pytest.mark.timeout(900)
@pytest.mark.skipif(not VENDORED.is_dir(), reason="Pyodide has not been fetched: run `python site/play` once")
def test_files_are_read_in_the_page(recorded, tmp_path):
    build(tmp_path / "play", VENDORED)
    with ExitStack() as stack:
        browser = stack.enter_context(chromium_or_skip())
        address = stack.enter_context(served(tmp_path / "play"))
        page, wrong = stack.enter_context(watched(browser, viewport={"width": 1100, "height": 900}))
        page.set_default_timeout(240_000)
        page.goto(f"{address}/traces.html")
        page.set_input_files("[name=files]", sorted(recorded.iterdir()))
        page.get_by_role("button", name="Read them").click()
        page.locator("#step svg").wait_for()
        assert page.locator("#step td").all_inner_texts()[:2] == ["computing", "0.006"]
        page.select_option("[name=model]", "gpt2")
        page.fill("[name=plan]", PREDICTED["plan"])
        page.get_by_role("button", name="Read them").click()
        page.locator("#step th", has_text="predicted").wait_for()
        page.set_input_files("[name=files]", [recorded / "rank1.json"])
        page.get_by_role("button", name="Read them").click()
        page.locator("#step", has_text="(1 rank, ").wait_for()  # the other file is gone
        assert not wrong
