"""For every test: Ctrl-C works, also where the suite was started in the background; Triton runs without a GPU.

A shell starts ``make test &`` with SIGINT ignored. Python leaves it so, every process that a test starts inherits it,
and a test that interrupts one would wait in vain.
"""

import signal

import course_lib  # noqa: F401  before any test imports Triton, for which it chooses the interpreter

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--draw", default="0", help="other inputs for the answers in tests/wrong_answers: 1, 2, …"
    )
