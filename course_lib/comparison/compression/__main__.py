"""``python -m course_lib.comparison.compression``: see ``course_lib.comparison.compression.cli``."""

from course_lib.comparison.compression.cli import main

if __name__ == "__main__":
    main(prog_name="python -m course_lib.comparison.compression")
