"""The page on which the simulator runs in the browser, as far as no browser is needed."""

import re
import sys

import nbformat
import pytest
from play import build
from play.browser.histories import plot_bytes_over_time
from play.browser.kernel import Chapter
from play.browser.pictures import plot_memory, plot_timeline
from play.browser.svg import ticks
from play.cells import chapter
from play.files import ROOT, modules_for, pack, runs_in_browser
from play.prose import formula, heading, sentences
from play_helper import cells, chapters, run_without_packages

from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.ledgers.timeline import Timeline
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule
from simulator.plots.picture import smallest_text
from simulator.predict.memory import plan_memory
from simulator.predict.memory_over_time import replay


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("play") / "course.zip"
    pack(modules_for([module for part in chapters() for module in part.modules]), path)
    return path


@pytest.fixture(scope="module")
def ran(archive):
    return run_without_packages(archive, [[cell.source for cell in part.cells] for part in chapters()])


def test_every_cell_shows_without_any_package_what_its_notebook_shows(ran):
    for (part, cell), result in zip(cells(), ran["results"], strict=True):
        assert not result["error"], f"{part.name} {cell.id}: {result['error']}"
        assert (result["printed"] + result["text"]).strip() == cell.shown, f"{part.name} {cell.id}"


def test_the_packed_files_are_all_that_is_imported(ran):
    assert ran["from_outside"] == []
    assert ran["packages"] == []


@pytest.mark.parametrize("part", chapters(), ids=lambda part: part.number)
def test_cells_are_those_of_the_notebook(part):
    notebook = nbformat.read(ROOT / "notebooks" / f"{part.name}.ipynb", as_version=4)
    sources = {cell.id: cell.source for cell in notebook.cells}
    assert len(part.cells) >= 5
    for cell in part.cells[1:]:
        assert sources[cell.id] == cell.source
        assert "torch." not in cell.source
        assert "launch(" not in cell.source
    imported = part.cells[0].source
    assert "torch" not in imported
    assert "course_lib.runtime" not in imported


def test_what_a_browser_has_not_is_noticed():
    assert runs_in_browser("simulator.pipeline.engine")
    assert runs_in_browser("course_lib.observe.show.predict")
    assert not runs_in_browser("torch")
    assert not runs_in_browser("course_lib.observe.show.source")  # colours its listing with Pygments
    assert not runs_in_browser("course_lib.pipeline.executor")
    with pytest.raises(ValueError, match=r"course_lib\.pipeline\.executor imports packages"):
        modules_for(["course_lib.pipeline.executor"])
    with pytest.raises(ValueError, match="no notebook of a chapter '98'"):
        chapter("98")


@pytest.mark.parametrize(("part", "cell"), cells(), ids=lambda x: getattr(x, "id", ""))
def test_the_words_above_a_cell_are_whole(part, cell):
    if cell.above:
        words = sentences(cell.above, cell.gap)
        assert len(words) > 40
        assert not re.search(r"[$\\]|\]\(|\.md\b", re.sub("<code>.*?</code>", "", words))
        assert not words.endswith("<p>")


def test_prose():
    text = "## One\n\nFirst.\n\n| a |\n| - |\n\nOf $p - 1$ [ranks](../docs/x.md#r), $\\frac{1}{v}(p-1)$ and $2\\,s^2b$."
    assert heading(text) == "One"
    assert sentences(text) == (
        "<p>Of <i>p</i> − 1 ranks, 1/<i>v</i> · (<i>p</i> − 1) and 2\u202f<i>s</i><sup>2</sup><i>b</i>.</p>\n"
    )
    assert (
        sentences("About a cell that is absent.\n\nAbout this one.", gap=True) == "<p>About this one.</p>\n"
    )
    with pytest.raises(ValueError, match="sqrt"):
        formula(r"\sqrt{2}")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = (1,", r"Line 1 is not complete Python: '\(' was never closed\."),
        ("a = 1\nb = a +* 2", r"Line 2 is not complete Python: invalid syntax\."),
        (
            "1\nguesss",
            "Line 2: the name 'guesss' is not defined: run the cells above this one first, or look",
        ),
        ("import torch_is_not_here", "Line 1: ModuleNotFoundError: No module named 'torch_is_not_here'."),
        ("{}['a']", "Line 1: there is no entry 'a'."),
        ("raise SystemExit", "Line 1: the cell has ended Python with exit()"),
        ("def f(): f()\nf()", "Line 1: a function calls itself without an end."),
        ("1 / 0", "Line 1: ZeroDivisionError: division by zero."),
        (
            "from simulator.pipeline.schedules import make_schedule\nmake_schedule('1f2b', 4, 8)",
            "Line 2: schedule must be one of .*, not 1f2b.",
        ),
    ],
)
def test_an_error_is_one_sentence(source, said):
    error = Chapter().run(source, print)["error"]
    assert re.match(said, error)
    assert "\n" not in error
    assert error.endswith(".")


def test_a_package_that_the_page_has_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    error = Chapter().run("import torch", print)["error"]
    assert error.startswith("Line 1: torch is not on this page")


def test_cells_share_their_names_and_show_the_last_value():
    kept, printed = Chapter(), []
    assert kept.run("a = 2\nprint('two')", printed.append) == {"text": "", "html": "", "error": ""}
    assert "".join(printed) == "two\n"
    assert kept.run("a + 1", print) == {"text": "3", "html": "<pre>3</pre>", "error": ""}
    assert kept.run("a + 1;", print)["text"] == ""
    assert kept.run("'<b>'", print)["html"] == "<pre>&#x27;&lt;b&gt;&#x27;</pre>"
    assert Chapter().run("a", print)["error"]  # another chapter knows nothing of it


def test_the_explorer_is_a_page_inside_of_the_page():
    found = Chapter().run("from simulator.explorer import explore\nexplore('zb-v', 4, 8)", print)
    assert found["text"].startswith("Timeline of zb-v on 4 ranks: 25.5 long")
    assert found["html"].startswith("<iframe")
    assert "srcdoc=" in found["html"]


def test_every_action_is_drawn_where_the_engine_puts_it():
    execution = simulate(make_schedule("zb-h1", 4, 8), 1, 1, 1, transfer=0.25)
    svg = plot_timeline(execution, unit="units").svg
    group = svg[svg.index("<g ") :]
    boxes = [
        tuple(map(float, box[::2]))
        for box in re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', group)
        if float(box[3]) > 20  # the thin rows are messages
    ]
    rows = [box for box in boxes if box[1] == max(width for _, width in boxes)]
    assert len(rows) == 4  # one pale row a rank
    left, scale = rows[0][0], rows[0][1] / execution.makespan
    drawn = sorted(box for box in boxes if box not in rows)
    spans = sorted((left + s.start * scale, (s.end - s.start) * scale) for s in execution.of(lane="compute"))
    assert len(drawn) == len(spans)
    for found, expected in zip(drawn, spans, strict=True):
        assert found == pytest.approx(expected, abs=0.03)


def test_bars_are_as_high_as_their_bytes():
    ranks = plan_memory(MODELS["gpt3-175b"], Plan(tp=8, pp=8, microbatches=64, attention="flash"))
    svg = plot_memory(ranks, capacity=80e9).svg
    found = re.findall(r'width="([\d.]+)" height="([\d.]+)" style="fill', svg)
    drawn = [float(height) for width, height in found if width != "12.00"]  # without the legend's squares
    held = [size for rank in ranks for size in rank.as_dict().values() if size]
    assert len([height for height in drawn if height]) == len(held)
    scale = sum(drawn) / sum(held)
    for height, size in zip(filter(None, drawn), held, strict=True):
        assert height == pytest.approx(size * scale, abs=0.02)


def test_pictures_can_be_read_and_refuse_nothing_to_draw():
    execution = simulate(make_schedule("1f1b", 4, 8), 1, 1, 1)
    history = replay(execution, saved=1e9)
    for picture in (
        plot_timeline(execution, execution, titles=["a", "b"], unit="units"),
        plot_bytes_over_time(history, history, titles=["<a>", "b"], unit="units"),
        plot_memory(plan_memory(MODELS["gpt2"], Plan()), bars=["one"], titles=["t"]),
    ):
        assert smallest_text(picture.svg) >= 11
        assert picture.alt.endswith(".")
        assert "<a>" not in picture.svg
    for draw in (plot_timeline, plot_memory, plot_bytes_over_time):
        with pytest.raises(ValueError, match="there is nothing to draw"):
            draw()
    with pytest.raises(ValueError, match=r"at most 4,000 actions, not 12,\d+"):
        plot_timeline(simulate(make_schedule("zb-h1", 32, 128), 1, 1, 1))
    with pytest.raises(ValueError, match="there is nothing to draw"):
        plot_timeline(Timeline([]))


def test_ticks():
    assert ticks(33, 8) == [0, 5, 10, 15, 20, 25, 30]
    assert ticks(0.3, 3) == pytest.approx([0, 0.1, 0.2, 0.3])


def test_the_command_deletes_no_folder_of_others(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["play", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        build.main()
    assert ended.value.code == 2
    assert "holds other files" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").exists()
