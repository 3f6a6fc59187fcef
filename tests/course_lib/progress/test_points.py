"""What a learner has earned, remembered in a file that may be damaged."""

import pytest

from course_lib.progress import points


@pytest.mark.parametrize(
    "damaged",
    [
        '{"06_zero": {"06.1": 2}',
        "[1]",
        '{"hints": 3}',
        '{"06_zero": {"06.1": "x"}}',
        "[" * 100_000,
        '{"06_zero": 5}',
    ],
)
def test_a_damaged_file_of_progress_is_kept_aside_and_not_in_the_way(tmp_path, damaged, capsys):
    file = tmp_path / points.FILE
    file.write_text(damaged)
    assert [sum(table.values()) for table in points.load(tmp_path).values()] in ([], [0])
    assert points.next_hint("06.1", 3, tmp_path) == 1
    assert f"{points.FILE} was damaged: it is kept as .backups/" in capsys.readouterr().err
    assert [copy.read_text() for copy in (tmp_path / ".backups").iterdir()] == [damaged]
    assert points.next_hint("06.1", 3, tmp_path) == 2
    assert capsys.readouterr().err == ""


def test_a_notebook_is_executed_without_the_points_of_whoever_does_it(tmp_path, monkeypatch):
    (tmp_path / points.FILE).write_text('{"05_ddp": {"05.1": 4}}')
    assert points.load(tmp_path)
    monkeypatch.setenv("COURSE_POINTS", "none")
    assert points.load(tmp_path) == {}
