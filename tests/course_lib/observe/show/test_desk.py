"""The buttons of exercise notebooks, without a browser; pressed they are in ``tests/browser/test_first_contact.py``."""

from course_lib.observe.show.desk import course, desk, offer_hint


def test_where_no_button_can_be_the_commands_are_named(capsys):
    desk("05")
    assert capsys.readouterr().out == "course grade 05\ncourse progress\ncourse next\n"
    offer_hint("05.1")
    assert capsys.readouterr().out == ""


def test_a_command_says_what_it_says_in_a_terminal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = course("grade", "99")
    assert said.startswith("there are no exercises for chapter '99'")
    assert "\x1b" not in course("progress")
