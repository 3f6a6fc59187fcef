"""``python -m course_lib.profile``: see ``course_lib.profile.cli``."""

from course_lib.profile.cli import main

if __name__ == "__main__":
    main(prog_name="python -m course_lib.profile")
