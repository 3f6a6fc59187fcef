"""Exercises: checked in the notebook, graded from the command line. An answer's way, file by file:

answers.py    the answer cells' source is taken from the learner's notebook; ``allowed.py`` says what need not be run
sandbox.py    a process of its own, in a copy of the course, with limits
runner.py     in that process: the course's cells, the answer's cell, its check; ``settings.py`` then sets all back
judge.py      the check observes the answer and the solution in each case, and looks for the mistake that explains it

What a check works with is in ``material.py``, ``mistakes.py``, ``ranks.py``, ``alive.py`` and ``samples_seen.py``; how
it says what it found in ``compare.py``, ``complaints.py``, ``failed.py`` and ``printed.py``. ``grade.py`` makes one
chapter's verdicts of it, ``results.py`` counts the points, and ``checked.py`` remembers what a notebook's check saw.
"""

CELL_TIMEOUT = 60.0  # seconds for an answer, and for a check
TIME_LIMIT = 600.0  # seconds for the chapter
COURSE_TIMEOUT = 120.0  # seconds for the course's own cells, which run before an answer
