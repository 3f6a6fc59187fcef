"""The kernel that runs a learner's answers."""

import subprocess
import sys

TWICE = """
from nbval.kernel import RunningKernel

begun = []

def first_fails(self, name):
    begun.append(name)
    if len(begun) == 1:
        raise RuntimeError("Kernel didn't respond in 60 seconds")

RunningKernel.__init__ = first_fails
from course_lib.grading.runner import WatchedKernel

WatchedKernel("python3")
print(*begun)
"""


def test_a_kernel_that_does_not_answer_is_started_once_more():
    """In a process of its own, because the runner's import changes how pytest looks for plugins."""
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["python3", "python3"]
