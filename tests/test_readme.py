"""The README is a door: what it shows first, and that its tables agree with the notebooks and the map."""

import math
import re
from pathlib import Path

from course_lib.chapters.course_map import LANES
from course_lib.chapters.footer import with_map
from course_lib.notebooks.places import chapters_in
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.predict.memory import model_states

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_chapter_is_in_the_table_with_its_minutes():
    listed = re.findall(r"^\| (\d\d) \| \[.+?\]\(notebooks/(.+?\.ipynb)\) \| (\d+) \|", README, re.MULTILINE)
    assert [name for _, name, _ in listed] == [p.name for p in chapters_in(ROOT / "notebooks")]
    assert all(name.startswith(number) and 10 <= int(minutes) <= 50 for number, name, minutes in listed)


def test_lanes_and_minutes_are_those_of_the_map():
    assert with_map(README) == README, "run python -m course_lib.chapters.footer"
    assert all(f"| {lane} | {numbers[0]}, " in README for lane, numbers in LANES.items())
    assert with_map(with_map(README.replace(" h 35 min", " h 34 min"))) == README


def test_the_first_screen_shows_asks_and_says_the_one_command():
    """What it is like, a bet whose answer is folded, and the command: before any heading, in this order."""
    door = README.partition("\n## ")[0]
    places = [door.index(what) for what in ("](docs/moving_timeline.svg)", "?**", "<details>", "make lab")]
    assert places == sorted(places)
    needed = model_states(MODELS["gpt3-175b"].parameters, Plan()).total / GPUS["h100"].memory
    assert f"\n{math.ceil(needed)}. " in door.partition("<details>")[2]
    assert f"{math.ceil(needed)}" not in door.partition("<details>")[0], "the answer is in sight"
    assert len(README.split()) < 1300, "a door, not a manual: move it to docs/"
