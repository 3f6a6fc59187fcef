"""``python -m course_lib`` is ``course``."""

from course_lib.cli import main

main(prog_name="course")
