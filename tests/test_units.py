"""How the suite is divided among workers: tests/conftest.py."""

import importlib.util
from pathlib import Path

HERE = Path(__file__).parent
ANSWERS = "tests/wrong_answers/test_answers.py"


def divided():
    spec = importlib.util.spec_from_file_location("conftest_of_all_tests", HERE / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_file_is_a_unit_and_the_answers_are_one_for_each_chapter():
    unit = divided().unit
    assert unit("tests/test_links.py::test_x[05_ddp]") == unit("tests/test_links.py::test_y")
    of_05 = {
        unit(f"{ANSWERS}::{name}")
        for name in ("test_a[05.2-the_mean]", "test_b[05_ddp-05.3]", "test_c[05_ddp]")
    }
    assert of_05 == {f"{ANSWERS} 05"}
    assert unit(f"{ANSWERS}::test_a[06.1-a_rank]") == f"{ANSWERS} 06"


def test_what_begins_first_is_there():
    for start in divided().BEGIN:
        assert list(HERE.parent.glob(f"{start}*")), f"no test begins with {start}"
