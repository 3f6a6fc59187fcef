"""For every test: Ctrl-C works, also where the suite was started in the background; Triton runs without a GPU.

A shell starts ``make test &`` with SIGINT ignored. Python leaves it so, every process that a test starts inherits it,
and a test that interrupts one would wait in vain.

Tests run in an order that is drawn anew each time: no test may need another one. ``--order 1234`` draws it again.
With pytest-xdist, this file also says what one worker runs in one go (a unit), and which units begin first.
"""

import gc
import random
import re
import signal
import sys
from collections import Counter
from types import ModuleType

import cloudpickle.cloudpickle
import pytest

import course_lib  # noqa: F401  before any test imports Triton, for which it chooses the interpreter

gc.disable()  # until all tests are collected: the collector would look again and again at what torch brings along

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def submodules(code, globals_):
    """What a function uses below the modules among its globals, found by name."""
    found = []
    names = [m.__name__ for m in globals_ if isinstance(m, ModuleType) and getattr(m, "__package__", None)]
    for name in names:  # which grows
        inside = [f"{name}.{part}" for part in code.co_names if f"{name}.{part}" in sys.modules]
        names += inside
        found += [sys.modules[each] for each in inside]
    return found


# cloudpickle's own search reads all of sys.modules, beside pytest thousands, for each module that each function names:
# a quarter of what this process does for wrong answers on ranks.
cloudpickle.cloudpickle._find_imported_submodules = submodules

# The longest units begin first: one that begins last keeps one worker busy while the others have nothing left to do.
# The two files that drive a browser are kept apart. What is not named here follows, files of many tests first.
BEGIN = (
    "tests/browser/test_first_contact.py",
    "tests/course_lib/train/test_ends.py",
    "tests/course_lib/grading/test_grade.py",
    "tests/wrong_answers/",
    "tests/browser/test_pictures.py",
    "notebooks/",
    "tests/course_lib/runtime/",
    "tests/course_lib/test_",
    "tests/course_lib/tensor_parallel/",
    "tests/test_types.py",
)
ANSWERS = "tests/wrong_answers/test_answers.py"


def pytest_addoption(parser):
    parser.addoption(
        "--draw", default="0", help="other inputs for the answers in tests/wrong_answers: 1, 2, …"
    )

    parser.addoption("--order", type=int, default=None, help="the number that a run printed as its order")


def pytest_configure(config):
    if config.option.order is None:
        config.option.order = random.SystemRandom().randrange(10_000)
    if config.getoption("nbval", False):
        config.pluginmanager.import_plugin("warm_kernels")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["order"] = node.config.option.order  # all workers must collect alike


def pytest_report_header(config):
    return f"order of the tests: --order {config.option.order}"


def unit(nodeid):
    """What runs on one worker together with this test: its file; the answers to exercises, chapter by chapter."""
    path, _, name = nodeid.partition("::")
    chapter = re.search(r"\[(\d\d)[._]", name) if path == ANSWERS else None
    return f"{path} {chapter[1]}" if chapter else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """``--dist loadfile`` with the units above, in the order that the workers have collected."""
    if config.getvalue("dist") not in ("loadfile", "loadgroup"):
        return None
    from xdist.scheduler import LoadFileScheduling

    class LoadUnits(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return unit(nodeid)

    config.option.loadscopereorder = False
    return LoadUnits(config, log)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_unconfigure():
    gc.unfreeze()  # else libraries complain of objects that are left


def pytest_collection_modifyitems(config, items):
    worker = getattr(config, "workerinput", None)
    tests = Counter(unit(item.nodeid) for item in items)
    draws = random.Random(worker["order"] if worker else config.option.order)
    drawn = {name: draws.random() for name in sorted(tests)}

    def place(item):
        name = unit(item.nodeid)
        begins = next((i for i, start in enumerate(BEGIN) if name.startswith(start)), len(BEGIN))
        first = (begins, -tests[name]) if worker else (drawn[name],)
        return *first, name, 0 if name.endswith(".ipynb") else draws.random()  # cells stay in their order

    items.sort(key=place)
