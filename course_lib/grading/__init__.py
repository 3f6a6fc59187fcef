"""Exercises: checked in the notebook, graded from the command line. An answer's way, file by file:

grade.py      the answer cells' source is taken from the learner's notebook; ``allowed.py`` says what is not run
sandbox.py    a process of its own, in a copy of the course, with limits
runner.py     in that process: the course's cells, the answer's cell, its check
judge.py      the check observes the answer and the solution in each case, and looks for the mistake that explains it
results.py    the points of a chapter

A check works with ``material.py`` and ``mistakes.py``, and says what it found with ``compare.py``, ``complaints.py``
and ``failed.py``. ``checked.py`` remembers what a notebook's check saw.
"""

CELL_TIMEOUT = 60.0  # seconds for an answer, and for a check
TIME_LIMIT = 600.0  # seconds for the chapter
COURSE_TIMEOUT = 120.0  # seconds for the course's own cells, which run before an answer
