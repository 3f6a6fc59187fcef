"""Saves that survive: a kill at any moment, a full disk, damaged files, two runs in one folder."""

import re
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from forked_programs import run_forked

from course_lib.checkpoints.folders import REPLACED, UNFINISHED, hidden, lock, recover
from course_lib.checkpoints.manifest import DamagedSave, is_complete, read_save, save_name
from course_lib.checkpoints.saves import (
    DiskFull,
    checked,
    complete_saves,
    keep_newest,
    newest_whole,
    write_save,
)

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "checkpoint_kills.py"


def save(folder, content, **about):
    """Two files, the second empty."""

    def write(part):
        (part / "a").write_bytes(content)
        (part / "b").touch()
        return ["a", "b"]

    write_save(folder, write, about)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_save_is_read_as_it_was_written_and_replaces_an_older_one(tmp_path):
    for content in (b"old", b"new"):
        save(tmp_path / "here", content, step=3, rates=[0.5])
        assert checked(tmp_path / "here").about == {"step": 3, "rates": [0.5]}
        assert (tmp_path / "here" / "a").read_bytes() == content
        assert names(tmp_path) == ["here"]
    (tmp_path / "notes").mkdir()
    save(tmp_path / "notes", b"into an empty folder")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").touch()
    with pytest.raises(ValueError, match=r"thesis holds something else, so no checkpoint was written there"):
        save(tmp_path / "thesis", b"")
    assert names(tmp_path) == ["here", "notes", "thesis"]
    assert names(tmp_path / "thesis") == ["chapter"]


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda new: (new / "a").write_bytes(b"sh"), "a has 2 bytes, and 6 were written"),
        (lambda new: flip(new / "a"), "a has other bytes than were written"),
        (lambda new: (new / "a").unlink(), "a cannot be read (No such file or directory)"),
        (lambda new: (new / "a").write_bytes(b"theirs"), "a has other bytes than were written"),
        (lambda new: flip(new / "save.json"), "save.json is damaged"),
        (lambda new: (new / "save.json").write_bytes(b""), "save.json is damaged"),
        (lambda new: (new / "save.json").unlink(), "save.json is not there"),
    ],
)
def test_what_is_damaged_is_named_and_the_save_before_it_is_taken(tmp_path, damage, said):
    old, new = tmp_path / save_name(1, "run"), tmp_path / save_name(2, "run")
    save(old, b"before", step=1)
    save(new, b"newest", step=2)
    damage(new)
    with pytest.raises(DamagedSave, match=re.escape(str(new)) + ".*" + re.escape(said)):
        checked(new)
    with pytest.warns(UserWarning, match=re.escape(said)):
        assert newest_whole(tmp_path).folder == old


def test_the_newest_is_newest_by_its_time_and_old_ones_are_removed(tmp_path):
    for step, run in ((1, "long"), (20, "long"), (3, "short")):
        save(tmp_path / save_name(step, run), b"x", step=step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert newest_whole(tmp_path).about["step"] == 3
        assert newest_whole(tmp_path / "nothing") is None
    keep_newest(tmp_path, 2)
    assert names(tmp_path) == ["step-00000003-short", "step-00000020-long"]
    assert [kept.about["step"] for kept in complete_saves(tmp_path)] == [3, 20]


def test_a_full_disk_is_said_to_be_full_and_the_old_save_stays(tmp_path):
    save(tmp_path / "here", b"old")

    def write(part):
        (part / "begun").write_bytes(b"x" * 100)
        with open("/dev/full", "wb") as full:  # every write ends with "no space left on device"
            torch.save({"x": torch.zeros(10_000)}, full)
        return ["begun"]

    with pytest.raises(DiskFull, match=r"No space left on the disk: .*/here was not saved"):
        write_save(tmp_path / "here", write, {})
    assert names(tmp_path) == ["here"], "what was begun is removed"
    assert checked(tmp_path / "here").files["a"][0] == 3
    save(tmp_path / "here", b"there is room again")
    assert checked(tmp_path / "here").files["a"][0] == 19


def test_what_a_killed_process_has_left_is_removed_or_gets_its_place(tmp_path):
    final = tmp_path / "here"
    being_written, unfinished, empty = (hidden(final, UNFINISHED) for _ in range(3))
    for part in (being_written, unfinished, empty):
        part.mkdir()
    with lock(being_written, create=True):
        lock(unfinished, create=True).close()
        (unfinished / "half").write_bytes(b"x")
        recover(tmp_path)
        assert names(tmp_path) == [being_written.name]
    for between_two_renames in ((REPLACED,), (REPLACED, UNFINISHED)):
        for kind in between_two_renames:
            save(final, kind.encode())
            final.rename(hidden(final, kind))
        recover(tmp_path)
        assert names(tmp_path) == ["here"]
        assert (final / "a").read_bytes() == kind.encode()
        assert is_complete(final)


def test_the_time_is_that_of_the_state_and_not_of_the_last_byte(tmp_path):
    def slow(part):
        slow.writing = time.time()
        return []

    write_save(tmp_path / "here", slow, {})
    assert read_save(tmp_path / "here").time <= slow.writing


@pytest.mark.timeout(300)
def test_six_kills_at_random_moments_lose_nothing():
    """Of the two hundred of ``benchmarks/checkpoint_kills.py``."""
    command = [sys.executable, str(BENCHMARK), "--kills", "6"]
    ended = run_forked(command)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "6 kills, 0 saves lost, damaged or never removed" in ended.stdout
