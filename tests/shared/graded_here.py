"""The grader without a process of its own: in place of ``course_lib.grading.sandbox.run``, where none is looked at."""

from course_lib.grading.runner import judged
from course_lib.grading.sandbox import Verdict
from course_lib.runtime import settings


def run_here(work, limits, on_begin):
    found = {}
    for each in work:
        on_begin(each["exercise"])
        with settings.kept():
            found[each["exercise"]] = Verdict(*judged(**each, begin=lambda step: None))
    return found, True
