"""What a learner does first, in JupyterLab in a real browser: look, follow a link, run a cell, run a check, stop;
and ranks that stay: progress below the cell, Stop, and a restart of the kernel."""

import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from notebook_page import (
    PANEL,
    TAB_IN_FRONT,
    WAIT,
    all_cells_shown,
    open_page,
    unsaved,
    wait_for_kernel,
)
from server import chromium, course_copy, jupyterlab

from course_lib.notebooks.build import METADATA

pytestmark = pytest.mark.timeout(600)  # many a wait inside is shorter, and says what did not come
STOP = f"{PANEL} [data-command='notebook:interrupt-kernel']"
RANKS = (
    "import time\nfrom course_lib.runtime import launch\n\ndef sleep():\n    time.sleep(600)\n\n"
    "launch(sleep, ranks=2, timeout=900)",
    "%load_ext course_lib",
    "%%ranks 2\nkept = rank\nkept",
    "%%ranks\nimport time\nif rank == 1:\n    time.sleep(600)\ndist.barrier()",
)
LISTING = """
from course_lib.observe.show.source import show_source
from simulator.pipeline.engine import simulate

show_source(simulate)
"""


def write(lab, name, *sources):
    """A notebook of these cells beside the chapters."""
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources], metadata=METADATA)
    nbformat.write(notebook, lab.root / "notebooks" / f"{name}.ipynb")


@pytest.fixture
def start_page(browser, lab):
    """Chapter 00 as ``course lab`` opens it, in a browser that has not seen it, with its kernel ready."""
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    open_page(page, lab)
    wait_for_kernel(page)
    yield page
    page.close()
    lab.end_kernels()


def cell(page, text):
    """The first code cell of the notebook in front whose source holds ``text``."""
    return (
        page.locator(f"{PANEL} .jp-CodeCell").filter(has=page.locator(".jp-InputArea", has_text=text)).first
    )


def start(page, text):
    """Put the cursor into a cell and press Ctrl-Enter."""
    found = cell(page, text)
    found.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    return found


def finished(page, found):
    """Wait until a cell has run; return it."""
    page.wait_for_function(
        "cell => /\\[\\d+\\]/.test(cell.querySelector('.jp-InputPrompt').textContent)",
        arg=found.element_handle(),
    )
    return found


def run(page, text):
    return finished(page, start(page, text))


def lines(found):
    """What stands below a cell."""
    return [line for line in found.locator(".jp-OutputArea").inner_text().splitlines() if line.strip()]


def test_the_first_page_asks_nothing_and_changes_nothing(start_page, lab):
    assert lab.opens == "/lab/tree/notebooks/00_start_here.ipynb"
    tabs = start_page.locator(".lm-DockPanel-tabBar .lm-TabBar-tab")
    assert tabs.all_inner_texts() == ["00_start_here.ipynb"]
    start_page.locator(".jp-DirListing-item[title^='Name: exercises']").wait_for()
    listed = start_page.locator(".jp-DirListing-itemText").all_inner_texts()
    assert {"notebooks", "exercises", "README.md"} <= set(listed)
    assert not [name for name in listed if name.endswith(".egg-info")]
    assert start_page.locator(".jp-Dialog").count() == 0
    assert start_page.locator(".Toastify__toast").count() == 0
    assert not unsaved(start_page)


def test_a_notebook_saved_under_another_python_is_not_unsaved(page, lab):
    notebook = nbformat.read(lab.root / "notebooks" / "00_start_here.ipynb", as_version=4)
    notebook.metadata["language_info"] |= {"version": "3.99.0"}
    nbformat.write(notebook, lab.root / "notebooks" / "98_other_python.ipynb")
    open_page(page, lab, "notebooks/98_other_python.ipynb")
    wait_for_kernel(page)
    assert not unsaved(page)


def test_links_lead_from_the_chapter_to_its_exercises_and_to_the_library_and_back(page, lab):
    open_page(page, lab, "notebooks/05_ddp.ipynb")
    all_cells_shown(page)
    page.locator(f"{PANEL} a[href*='05_exercises_ddp.ipynb']").first.click()
    page.locator(TAB_IN_FRONT, has_text="05_exercises_ddp.ipynb").wait_for()
    page.locator(f"{PANEL} a[href*='notebooks/05_ddp.ipynb']").first.click()
    page.locator(TAB_IN_FRONT, has_text="05_ddp.ipynb").wait_for()
    assert page.locator(".jp-Dialog").count() == 0


def test_a_lane_is_chosen_by_a_button_and_its_chapter_opens_beside(page, lab):
    notebook = nbformat.read(lab.root / "notebooks" / "00_start_here.ipynb", as_version=4)
    asked = next(each for each in notebook.cells if each.source == "my_lane(...)")
    imports = "from pathlib import Path\nfrom course_lib.progress.lane import my_lane\n"
    asked.source = imports + "my_lane(..., Path.cwd().parent)"
    notebook.cells = [asked]
    nbformat.write(notebook, lab.root / "notebooks" / "97_lane.ipynb")
    open_page(page, lab, "notebooks/97_lane.ipynb")
    wait_for_kernel(page)
    chosen = run(page, "my_lane(")
    chosen.get_by_role("button", name="attention", exact=True).click()
    chosen.locator("a[href='02_anatomy_of_llms.ipynb']").last.click()
    page.locator(TAB_IN_FRONT, has_text="02_anatomy_of_llms.ipynb").wait_for()
    assert page.locator(".jp-Dialog").count() == 0


def test_a_listing_leads_to_its_file(page, lab):
    write(lab, "97_listing", LISTING)
    open_page(page, lab, "notebooks/97_listing.ipynb")
    wait_for_kernel(page)
    shown = run(page, "show_source(simulate)")
    shown.locator("figcaption a").click()
    page.locator(TAB_IN_FRONT, has_text="engine.py").wait_for()
    page.locator(".jp-FileEditor:visible .cm-content", has_text="which ranks wait for ever").wait_for()
    assert page.locator(".jp-Dialog").count() == 0


def test_the_glossary_opens_as_text_to_read(page, lab):
    open_page(page, lab, "notebooks/04_collectives.ipynb")
    all_cells_shown(page)
    page.locator(f"{PANEL} a[href*='docs/glossary.md']").first.click()
    page.locator(TAB_IN_FRONT, has_text="glossary.md").wait_for()
    page.locator(".jp-MarkdownViewer:visible h1").wait_for()


def test_a_check_says_what_is_missing_and_then_what_it_found(page, lab):
    open_page(page, lab, "exercises/03_exercises_where_memory_goes.ipynb")
    wait_for_kernel(page)
    all_cells_shown(page)
    solution = nbformat.read(lab.root / "solutions" / "03_where_memory_goes.ipynb", as_version=4)
    answer = next(c.source for c in solution.cells if c.source.startswith("# EXERCISE 03.1"))
    run(page, "from course_lib.grading.judge import check")
    run(page, "# EXERCISE 03.1")
    check = run(page, 'check("03.1"')
    check.locator(".jp-OutputArea-output", has_text="not written").first.wait_for()
    for kind in ("the idea", "the shape"):
        check.locator("button", has_text="a hint for 03.1").click()
        check.locator("pre", has_text=kind).wait_for()
    cell(page, "# EXERCISE 03.1").locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(answer)
    run(page, "# EXERCISE 03.1")
    check = run(page, 'check("03.1"')
    check.locator(".jp-OutputArea-output", has_text="✓").first.wait_for()
    assert unsaved(page)
    assert not check.locator("button", has_text="a hint").count()
    desk = run(page, 'desk("03")')
    desk.locator("button", has_text="my points").click()  # to grade, as the first button does, takes longer
    desk.locator("pre", has_text="03_where_memory_goes").wait_for()


def kernel_family():
    """The processes below the one kernel that runs."""
    below = psutil.Process().children(recursive=True)
    (kernel,) = [p for p in below if "ipykernel_launcher" in " ".join(p.cmdline())]
    return kernel.children(recursive=True)


def test_stop_and_restart_leave_no_rank_and_say_so_in_a_line(page, lab):
    write(lab, "96_ranks", *RANKS)
    open_page(page, lab, "notebooks/96_ranks.ipynb")
    wait_for_kernel(page)
    launched = start(page, "launch(sleep")
    launched.locator(".ranks-progress", has_text="running for").wait_for()
    page.locator(STOP).click()
    (line,) = lines(finished(page, launched))
    assert "Traceback" not in line

    run(page, "%load_ext")
    assert lines(run(page, "kept = rank")) == ["[rank 0] 0", "[rank 1] 1"]
    waiting = start(page, "dist.barrier()")
    progress = page.locator(".ranks-progress")
    progress.filter(has_text="rank 0: in barrier()").filter(
        has_text="rank 1: at Cell In[4], line 4"
    ).wait_for()
    ranks = kernel_family()
    assert waiting.locator(".jp-OutputArea-output").count() == 0, "it is no output"
    page.locator(STOP).click()
    (line,) = lines(finished(page, waiting))
    progress.wait_for(state="detached")
    assert line.startswith("stopped after ")
    assert line.endswith("all 2 ranks were ended, and their variables are gone")
    run(page, "kept = rank")
    ranks += kernel_family()
    assert len(ranks) >= 6, "twice two ranks, fork server, resource tracker"
    page.evaluate(
        "() => { jupyterapp.commands.execute('kernelmenu:restart'); }"
    )  # it ends after the question
    page.locator(".jp-Dialog button", has_text="Restart").click()
    assert psutil.wait_procs(ranks, timeout=60)[1] == []


def test_course_is_found_in_the_terminal(page, lab):
    open_page(page, lab)
    page.evaluate(
        """async text => { const { content } = await jupyterapp.commands.execute("terminal:create-new");
        const { session } = content;
        if (session.connectionStatus !== "connected")
          await new Promise(done => session.connectionStatusChanged.connect(
            (_, status) => status === "connected" && done()));
        session.send({ type: "stdin", content: [text] }); }""",
        f"course progress > {lab.root}/writing.txt 2>&1; mv {lab.root}/writing.txt {lab.root}/written.txt\r",
    )
    written = lab.root / "written.txt"
    deadline = time.monotonic() + WAIT / 1000
    while not written.exists():
        assert time.monotonic() < deadline, "the terminal did not run the command"
        time.sleep(0.1)
    assert "05_ddp" in written.read_text()


def test_nothing_is_left_when_it_ends():
    def children():
        return set(psutil.Process().children(recursive=True))

    others = children()
    with course_copy() as root, jupyterlab(root) as lab:
        lab.start_kernel()
        mine = children() - others
        assert any("ipykernel" in " ".join(p.cmdline()) for p in mine)
    assert not [p for p in mine if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not root.parent.exists()


STARTER = """
import sys
sys.path.insert(0, {folder!r})
from server import course_copy, jupyterlab
with course_copy() as root, jupyterlab(root) as lab:
    print(root, flush=True)
    sys.stdin.read()
"""


def test_nothing_is_left_when_the_tests_are_killed():
    code = STARTER.format(folder=str(Path(__file__).parent))
    starter = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    root = Path(starter.stdout.readline().strip())
    family = psutil.Process(starter.pid).children(recursive=True)
    assert any("jupyterlab" in " ".join(p.cmdline()) for p in family)
    starter.kill()
    starter.communicate()
    _, alive = psutil.wait_procs(family, timeout=WAIT / 1000)
    assert not alive
    assert not root.parent.exists()


def test_there_is_a_sentence_where_there_is_no_chromium(monkeypatch):
    monkeypatch.setattr("server.find_chromium", lambda: None)
    with (
        pytest.raises(FileNotFoundError, match=r"there is no Chromium.*apt-get install chromium"),
        chromium(),
    ):
        pass
