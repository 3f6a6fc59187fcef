"""What explore() gives: a page, a still picture, answers to a widget's messages; and nothing heavy is imported."""

import re
import subprocess
import sys
from html import unescape
from itertools import pairwise

import pytest

from simulator.explorer import MemoryQuestion, explore, explore_memory
from simulator.explorer.answer import answer
from simulator.explorer.bundle import style
from simulator.explorer.question import Question
from simulator.explorer.widget import reply_about_memory, reply_to
from simulator.plots.timeline import lightness

HEAVY = ("anywidget", "matplotlib", "IPython", "numpy", "traitlets")


def test_nothing_heavy_is_imported():
    program = (
        "import sys; from simulator.explorer import explore; import simulator.explorer.widget; explore().html(); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    path = tmp_path / "explorer.html"
    explore("zb-v", ranks=3, microbatches=6).save(path)
    page = path.read_text(encoding="utf-8")
    assert '"schedule": "zb-v"' in page
    assert not [word for word in ("http://", "https://", "src=", "@import", "url(") if word in page]
    frame = explore("zb-v", ranks=3, microbatches=6).iframe(height=500)
    assert unescape(frame.split('srcdoc="')[1].rsplit('"', 1)[0]) == page
    assert 'height="500"' in frame


def test_colours_differ_in_lightness_in_both_themes():
    """Those who see no difference between red and green still see one between any two kinds of actions."""
    light, dark = style().split('[data-theme="dark"]')
    for theme in (light, light + dark):
        found = dict(re.findall(r"--(forward|backward|weights|idle): (#\w+)", theme))
        ordered = sorted(map(lightness, found.values()))
        assert len(ordered) == 4
        assert min(b - a for a, b in pairwise(ordered)) > 0.1, found


def test_a_name_from_a_reader_ends_no_script():
    page = explore().html()
    assert page.count("</script>") == 1
    assert page.count("<script") == 1


def test_a_message_is_answered_with_the_bytes_of_the_arrays():
    question = Question("zb-h1", 3, 5, transfer=0.2)
    reply, buffers = reply_to({"id": 7, "question": question.as_dict()})
    assert reply["id"] == 7
    found = {
        name: memoryview(part.tobytes()).cast(code).tolist()
        for (name, code), part in zip(reply["arrays"], buffers, strict=True)
    }
    assert reply["head"] | found == answer(question).as_dict()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"ranks": 0}, "ranks must be a whole number of at least 1, not 0"),
        ({"colour": "red"}, "there is nothing called 'colour'"),
    ],
)
def test_a_wrong_message_is_answered_in_a_sentence(wrong, sentence):
    reply, buffers = reply_to({"id": 1, "question": Question().as_dict() | wrong})
    assert reply["error"].startswith(sentence)
    assert buffers == []
    with pytest.raises(ValueError, match=sentence):
        explore(**wrong)


def test_the_still_picture_says_what_it_shows():
    still = explore("1f1b", ranks=4, microbatches=8).still()
    assert still["text/html"].startswith('<div class="explorer-still"><img alt="Timeline of 1f1b on 4 ranks')
    assert still["text/plain"] == "Timeline of 1f1b on 4 ranks: 33 long, 27.3% of the computing time idle."
    large = explore("1f1b", ranks=16, microbatches=128).still()
    assert "<img" not in large["text/html"]
    assert large["text/plain"] == "1f1b: 429 long, 10.5% idle"


@pytest.mark.parametrize(
    ("challenge", "sentence"),
    [
        ({"makespan": 0, "bytes": 1e9}, "makespan must be a number more than 0, not 0"),
        ({"makespan": 9, "bytes": float("nan")}, "bytes must be a number more than 0, not nan"),
        ({"makespan": 9}, "a challenge must have a makespan and bytes, not makespan"),
    ],
)
def test_a_challenge_is_refused_in_a_sentence(challenge, sentence):
    with pytest.raises(ValueError, match=sentence):
        explore(challenge=challenge)


def test_the_still_of_a_challenge_gives_nothing_away():
    still = explore(challenge={"makespan": 28, "bytes": 4e9}).still()
    assert still["text/plain"] == "A challenge: run this cell to see it."
    assert "<img" not in still["text/html"]


def test_the_calculator_is_a_page_and_a_picture(tmp_path):
    shown = explore_memory("gpt2", "laptop-cpu", dp=2)
    assert '"model": "gpt2", "gpu": "laptop-cpu"' in shown.html()
    assert shown.still()["text/html"].startswith('<div class="explorer-still"><img alt=')
    reply, _ = reply_about_memory({"id": 3, "question": MemoryQuestion().as_dict() | {"dp": 0}})
    assert reply == {"id": 3, "error": "dp must be a whole number of at least 1, not 0"}
