"""torchrun's own agents train as one device does, and nothing is left of them."""

from types import SimpleNamespace

import pytest
from digits_alone import digits_alone
from forked_programs import Program, template

from course_lib.elastic import torchrun_fleet
from course_lib.elastic.leftovers import what_is_left
from course_lib.elastic.torchrun_fleet import TorchrunFleet

PATIENT = 250  # seconds: a limit for a machine that is busy
STEPS, FATAL = 8, 7


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    """torchrun and its workers need not import torch."""
    template()  # with the environment that this process has, and not with a test's
    monkeypatch.setattr(torchrun_fleet, "subprocess", SimpleNamespace(Popen=Program))


def test_a_worker_is_killed_under_torchrun():
    program = ("-m", "course_lib.elastic.torchrun_fleet", str(STEPS), str(FATAL))
    with TorchrunFleet(program, agents=2, settings="last_call_timeout=200") as theirs:
        journal = theirs.wait(PATIENT)
    assert not what_is_left(journal, [theirs.endpoint], theirs.folder.name)
    assert len(journal.of("kill")) == 1
    steps = journal.of("step", rank=0)
    # By process, not by the clock: the old one may end step 6 after the kill.
    after = [e["step"] for e in steps if e["pid"] != steps[0]["pid"]]
    assert after == [5, 6, 7, 8], "it goes on behind the checkpoint of step 4"
    assert len({e["pid"] for e in journal.of("step")}) == 4, "all processes are new"

    losses, _ = digits_alone(STEPS)
    assert [journal.losses()[step] for step in range(1, STEPS + 1)] == pytest.approx(losses, rel=1e-3)


def test_what_torchrun_said_is_quoted_when_it_ends_early(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with (
        TorchrunFleet(("no_such_script.py",), agents=1, restarts=0) as fleet,
        pytest.raises(TimeoutError, match="no_such_script"),
    ):
        fleet.wait(PATIENT)
    assert not what_is_left(fleet.journal, [fleet.endpoint], fleet.folder.name)
    assert [*tmp_path.iterdir()] == []
