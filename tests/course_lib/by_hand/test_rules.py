"""What a file of ``course_lib/by_hand`` may be: closed, short, and narrow enough for a listing."""

import ast
import sys
from pathlib import Path

import pytest
from source_lines import code_lines

FOLDER = Path(__file__).parents[3] / "course_lib" / "by_hand"
FILES = sorted(FOLDER.glob("*.py"))
AT_MOST, WIDTH = 150, 73
TRACING = {"course_lib.runtime.trace", "course_lib.runtime.tracing"}


def is_main(node):
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


def imported(tree):
    """The full names that a file imports, but for what stands under ``if __name__ == "__main__"``."""
    for statement in tree.body:
        for node in [] if is_main(statement) else ast.walk(statement):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_closed(path):
    for name in imported(ast.parse(path.read_text())):
        top = name.split(".")[0]
        assert top in ("torch", *sys.stdlib_module_names) or name in TRACING, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_short_and_narrow(path):
    source = path.read_text()
    assert code_lines(source) <= AT_MOST, f"{path.name} has {code_lines(source)} lines of code"
    wide = [number for number, line in enumerate(source.splitlines(), 1) if len(line) > WIDTH]
    assert not wide, f"{path.name} is wider than {WIDTH} characters in lines {wide}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_main_block_has_at_most_six_lines(path):
    source = path.read_text()
    for node in filter(is_main, ast.parse(source).body):
        block = "\n".join(source.splitlines()[node.lineno : node.end_lineno])
        assert sum(bool(line.strip()) for line in block.splitlines()) <= 6, f"{path.name} does too much there"


def test_these_tests_see_what_they_forbid():
    assert list(imported(ast.parse("def f():\n    from course_lib.by_hand.ddp import Bucket"))) == [
        "course_lib.by_hand.ddp.Bucket"
    ]
    assert not list(imported(ast.parse('if __name__ == "__main__":\n    import course_lib.observe')))
    source = ['"""One', 'two."""', "", "# three", "x = [", "    1,", "]  # four", "def f():", '    "five"']
    assert code_lines("\n".join([*source, '    return """', "6", '"""'])) == 7
