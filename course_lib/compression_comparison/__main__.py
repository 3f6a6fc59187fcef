"""``python -m course_lib.compression_comparison``: see ``course_lib.compression_comparison.cli``."""

from course_lib.compression_comparison.cli import main

if __name__ == "__main__":
    main(prog_name="python -m course_lib.compression_comparison")
