"""``python -m course_lib.train``: see ``course_lib.train.cli``."""

from course_lib.train.cli import main

if __name__ == "__main__":
    main(prog_name="python -m course_lib.train")
