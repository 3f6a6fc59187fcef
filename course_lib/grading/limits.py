"""How long a grading may take."""

CELL_TIMEOUT = 60.0  # seconds for an answer, and for a check
TIME_LIMIT = 600.0  # seconds for the chapter
COURSE_TIMEOUT = 120.0  # seconds for a cell of the course's own, which runs before any answer
